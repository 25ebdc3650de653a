"""Plans the rounds of a run: who takes part, how long they have, what comes next; no I/O, no clock."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Literal

from runner.decide import Verdict

_LONGEST_REST_S = 60.0
WINDOW = 20
"""Rounds that a learnt deadline looks back on."""
LEARNT_FROM = 3
"""Rounds it takes to learn one; until then the ceiling holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoDeadline:
    """A round's deadline learnt from the rounds so far: median plus `k` median absolute deviations.

    Attributes:
        k: how many deviations.
        floor_s: never less than this, in seconds.
        ceiling_s: never more.
    """

    k: float
    floor_s: float
    ceiling_s: float

    def of(self, durations_s: list[float]) -> float:
        """Return the deadline in seconds after rounds that took so long."""
        if len(durations_s) < LEARNT_FROM:
            return self.ceiling_s
        median = statistics.median(durations_s)
        deviation = statistics.median(abs(d - median) for d in durations_s)
        return round(min(max(median + self.k * deviation, self.floor_s), self.ceiling_s), 6)


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a try of a round.

    Attributes:
        number: of the round, from 0.
        attempt: which try, from 1.
        shards: the workers that take part, in rank order, and the shard each works on.
        deadline_s: how long the round may take; None for any time.
    """

    number: int
    attempt: int
    shards: dict[int, int]
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run."""

    status: Literal["completed", "failed", "interrupted"]
    reason: str | None = None


def rest_s(first_s: float, attempt: int) -> float:
    """Return the rest before an attempt, from the second on: doubling, up to a minute or the first one."""
    return max(first_s, min(first_s * 2.0 ** min(attempt - 2, 32), _LONGEST_REST_S))


class Course:
    """The way of a run through its rounds.

    Args:
        rounds: how many are wanted.
        workers: how many take part at a time.
        spares: how many more stand by; each takes the place of one that is lost for good.
        quorum: least number of survivors of a round.
        round_retries: how often a round that failed is tried again.
        max_failures: after so many failed rounds in a row a worker is left out for good.
        deadline: of a round, in seconds, or learnt; None for none.
        stop_on_loss: end the run as soon as a worker fails in a round.
    """

    def __init__(
        self,
        *,
        rounds: int,
        workers: int,
        spares: int = 0,
        quorum: int,
        round_retries: int,
        max_failures: int,
        deadline: float | AutoDeadline | None = None,
        stop_on_loss: bool = False,
    ) -> None:
        self.rounds = rounds
        self.quorum = quorum
        self.round_retries = round_retries
        self.max_failures = max_failures
        self.deadline = deadline
        self.stop_on_loss = stop_on_loss
        self.number = 0
        self.attempt = 1
        self.interrupted = 0
        """Tries of this round that were cut short; they don't count as failed."""
        self.places: dict[int, int] = {rank: rank for rank in range(workers)}
        self._workers = workers
        self._spares = deque(range(workers, workers + spares))
        self._failures: dict[int, int] = {}
        self._durations_s: deque[float] = deque(maxlen=WINDOW)
        self._finish: Finish | None = None

    @property
    def standby(self) -> int:
        """How many spares stand by; always the last ranks."""
        return len(self._spares)

    def next(self) -> Begin | Finish:
        """Say what comes next."""
        if self.number == self.rounds:
            return Finish("completed")
        if self._finish is not None:
            return self._finish
        if len(self.places) < self.quorum:
            return Finish("failed", f"{len(self.places)} workers are left, quorum is {self.quorum}")
        deadline = self.deadline
        if isinstance(deadline, AutoDeadline):
            deadline = deadline.of(list(self._durations_s))
        return Begin(
            self.number, self.attempt + self.interrupted, dict(sorted(self.places.items())), deadline
        )

    def ended(self, verdict: Verdict, failure: str | None, duration_s: float | None) -> list[int]:
        """Take how a try of a round ended.

        Args:
            verdict: who delivered and who didn't.
            failure: why it doesn't count; None where it was aggregated.
            duration_s: how long the workers took; None where that isn't known.

        Returns:
            The workers that are left out for good from now on.
        """
        for rank in verdict.survivors:
            self._failures.pop(rank, None)
        given_up = []
        for rank in verdict.failed:
            self._failures[rank] = self._failures.get(rank, 0) + 1
            if self._failures[rank] >= self.max_failures:
                given_up.append(rank)
                shard = self.places.pop(rank)
                if self._spares:
                    self.places[self._spares.popleft()] = shard
        if failure is None:
            if duration_s is not None:
                self._durations_s.append(duration_s)
            self.number, self.attempt, self.interrupted = self.number + 1, 1, 0
        else:
            if self.attempt > self.round_retries:
                times = "once" if self.attempt == 1 else f"{self.attempt} times"
                self._finish = Finish("failed", f"round {self.number} failed {times}: {failure}")
            self.attempt += 1
        if self.stop_on_loss and verdict.failed:
            lost = ", ".join(map(str, verdict.failed))
            self._finish = Finish("failed", f"worker {lost} failed and the job says on_loss = 'stop'")
        return given_up

    def resumed(self) -> None:
        """Go on after a new process took over; where the run had failed, everyone gets another chance."""
        stuck = self.number < self.rounds and len(self.places) < self.quorum
        if self._finish is not None or stuck:
            self.places = {rank: rank for rank in range(self._workers)}
            self._failures.clear()
            self.attempt, self.interrupted = 1, self.interrupted + self.attempt - 1
            self._finish = None

    def stop(self, reason: str) -> None:
        """End the run before the next round."""
        self._finish = self._finish or Finish("interrupted", reason)


def times_running(count: int) -> str:
    """Say how often in a row; each try of a round counts."""
    return "once" if count == 1 else f"{count} times running"
