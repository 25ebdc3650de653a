"""Plans the rounds of a run: who takes part, how long they have, what comes next; no I/O, no clock."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runner.decide import Verdict

_LONGEST_REST_S = 60.0
WINDOW = 20
"""Rounds that a learnt deadline looks back on."""
LEARNT_FROM = 3
"""Rounds it takes to learn one; the first has the ceiling, the next ``GENEROUS`` times the longest so far."""
GENEROUS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoDeadline:
    """A round's deadline learnt from the rounds so far: median plus `k` median absolute deviations.

    What is learnt from is how long those took who delivered: a round that had to be cut off tells no more.

    Attributes:
        k: how many deviations.
        floor_s: never less than this, in seconds.
        ceiling_s: never more.
    """

    k: float
    floor_s: float
    ceiling_s: float

    def of(self, needed_s: list[float], attempt: int = 1) -> float:
        """Return a try's deadline in seconds, after rounds that needed so long; each has twice the last."""
        if not needed_s:
            return self.ceiling_s
        if len(needed_s) < LEARNT_FROM:
            learnt = GENEROUS * max(needed_s)
        else:
            median = statistics.median(needed_s)
            learnt = median + self.k * statistics.median(abs(s - median) for s in needed_s)
        longer = 2.0 ** min(attempt - 1, 32)
        return round(min(max(learnt, self.floor_s) * longer, self.ceiling_s), 6)


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
        spares: how many more stand by; each takes the place of one that is left out for good.
        quorum: least number of survivors of a round.
        round_retries: how often a round that failed is tried again.
        max_failures: a worker that fails in so many rounds in a row is left out for good.
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
        """Tries of this round that don't count as failed: cut short, or before spares came in or a resume."""
        self.places: dict[int, int] = {rank: rank for rank in range(workers)}
        self._workers = workers
        self._all_spares = range(workers, workers + spares)
        self._spares = deque(self._all_spares)
        self._failures: dict[int, tuple[int, int]] = {}
        """In how many rounds in a row a worker failed, and which was the last."""
        self._needed_s: deque[float] = deque(maxlen=WINDOW)
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
            deadline = deadline.of(list(self._needed_s), self.attempt)
        return Begin(
            self.number, self.attempt + self.interrupted, dict(sorted(self.places.items())), deadline
        )

    def ended(self, verdict: Verdict, failure: str | None, needed_s: float | None) -> dict[int, str]:
        """Take how a try of a round ended.

        Args:
            verdict: who delivered and who didn't.
            failure: why it doesn't count; None where it was aggregated.
            needed_s: how long those took who delivered; None where that isn't known.

        Returns:
            The workers that are left out for good from now on, and why.
        """
        for rank in verdict.survivors:
            self._failures.pop(rank, None)
        for rank in verdict.failed:
            rounds, last = self._failures.get(rank, (0, -1))
            self._failures[rank] = (rounds if last == self.number else rounds + 1), self.number
        out = {
            rank: f"failed {rounds_running(self.max_failures)}"
            for rank in verdict.failed
            if self._failures[rank][0] >= self.max_failures
        }
        came_in = self._leave_out(out)
        if failure is None:
            if needed_s is not None:
                self._needed_s.append(needed_s)
            self.number, self.attempt, self.interrupted = self.number + 1, 1, 0
        else:
            self.attempt += 1
        if failure is not None and self.attempt > self.round_retries + 1:
            worst = sorted(verdict.failed, key=lambda rank: (-self._failures[rank][0], rank))
            swapped = [rank for rank in worst if rank not in out][: len(self._spares)]
            if swapped or came_in:
                out |= dict.fromkeys(
                    swapped, f"failed in the last try of round {self.number}: a spare takes over"
                )
                self._leave_out(swapped)
                self._try_anew()
            else:
                self._finish = Finish("failed", f"round {self.number} failed {self._times()}: {failure}")
        if self.stop_on_loss and verdict.failed:
            lost = ", ".join(map(str, verdict.failed))
            self._finish = Finish("failed", f"worker {lost} failed and the job says on_loss = 'stop'")
        return dict(sorted(out.items()))

    def _leave_out(self, ranks: Iterable[int]) -> bool:
        """Take workers out and spares in; say whether one came in."""
        before = len(self._spares)
        for rank in ranks:
            shard = self.places.pop(rank)
            if self._spares:
                self.places[self._spares.popleft()] = shard
        return len(self._spares) < before

    def _try_anew(self) -> None:
        """Let the tries of this round begin again; their numbers go on."""
        self.attempt, self.interrupted = 1, self.interrupted + self.attempt - 1

    def _times(self) -> str:
        count = self.attempt - 1
        times = "once" if count == 1 else f"{count} times"
        return f"{times} more, at try {count + self.interrupted}" if self.interrupted else times

    def resumed(self) -> None:
        """Go on after a new process took over; where the run had failed, everyone gets another chance."""
        stuck = self.number < self.rounds and len(self.places) < self.quorum
        if self._finish is not None or stuck:
            self.places = {rank: rank for rank in range(self._workers)}
            self._spares = deque(self._all_spares)
            self._failures.clear()
            self._finish = None
            self._try_anew()

    def stop(self, reason: str) -> None:
        """End the run before the next round."""
        self._finish = self._finish or Finish("interrupted", reason)


def rounds_running(count: int) -> str:
    """Say in how many rounds in a row; the tries of a round count as one."""
    return "in a round" if count == 1 else f"in {count} rounds running"
