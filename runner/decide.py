"""What a round and a run do next, given what has happened; no I/O, no clock, no trio.

``Round`` takes inputs and answers with actions; ``Course`` plans the rounds of a run. The one table of
states is ``NEXT``: an input that it doesn't have raises ``IllegalInputError`` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from runner.errors import RoundlogError


class State(Enum):
    """Where one worker is in one round."""

    JOINING = "joining"
    PUSHING = "pushing"
    TRAINING = "training"
    PULLING = "pulling"
    CHECKING = "checking"
    DELIVERED = "delivered"
    DROPPED = "dropped"


class Said(Enum):
    """What happened to one worker."""

    JOINED = "joined"
    PUSHED = "pushed"
    TRAINED = "trained"
    PULLED = "pulled"
    ACCEPTED = "accepted"
    FAILED = "failed"


class Act(Enum):
    """What is to be done with one worker."""

    JOIN = "join"
    PUSH = "push"
    TRAIN = "train"
    PULL = "pull"
    CHECK = "check"


NEXT: dict[tuple[State, Said], tuple[State, Act | None]] = {
    (State.JOINING, Said.JOINED): (State.PUSHING, Act.PUSH),
    (State.PUSHING, Said.PUSHED): (State.TRAINING, Act.TRAIN),
    (State.TRAINING, Said.TRAINED): (State.PULLING, Act.PULL),
    (State.PULLING, Said.PULLED): (State.CHECKING, Act.CHECK),
    (State.CHECKING, Said.ACCEPTED): (State.DELIVERED, None),
    (State.JOINING, Said.FAILED): (State.DROPPED, None),
    (State.PUSHING, Said.FAILED): (State.DROPPED, None),
    (State.TRAINING, Said.FAILED): (State.DROPPED, None),
    (State.PULLING, Said.FAILED): (State.DROPPED, None),
    (State.CHECKING, Said.FAILED): (State.DROPPED, None),
}
"""From a worker's state and what happened, to its next state and what to do."""

FINAL = frozenset({State.DELIVERED, State.DROPPED})


class IllegalInputError(RoundlogError):
    """Something was said that can't happen in this state; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a round ends: with these survivors, or why without."""

    survivors: tuple[int, ...]
    dropped: tuple[int, ...]
    quorum: int

    @property
    def counts(self) -> bool:
        """Whether the quorum was met."""
        return len(self.survivors) >= self.quorum

    @property
    def reason(self) -> str | None:
        """Why the round doesn't count; None where it does."""
        if self.counts:
            return None
        return f"{len(self.survivors)} survivors, quorum is {self.quorum}"


class Round:
    """One try of one round.

    Args:
        number: of the round, from 0.
        ranks: the workers that take part.
        quorum: least number of survivors that makes it count.
    """

    def __init__(self, number: int, ranks: Iterable[int], quorum: int) -> None:
        self.number = number
        self.quorum = quorum
        self.states = dict.fromkeys(sorted(ranks), State.JOINING)
        self._busy = len(self.states)

    def start(self) -> list[tuple[Act, int]]:
        """Return what to do first, in rank order."""
        return [(Act.JOIN, rank) for rank in self.states]

    def on(self, said: Said, rank: int) -> Act | None:
        """Take what happened to a worker and return what to do with it next, if anything.

        Raises:
            IllegalInputError: it can't happen in the worker's state.
        """
        state = self.states.get(rank)
        found = None if state is None else NEXT.get((state, said))
        if found is None:
            where = "not in this round" if state is None else state.value
            raise IllegalInputError(f"{said.value!r} in round {self.number}: worker {rank} is {where}")
        self.states[rank], act = found
        if found[0] in FINAL:
            self._busy -= 1
        return act

    @property
    def over(self) -> bool:
        """Whether every worker has delivered or was dropped."""
        return self._busy == 0

    def verdict(self) -> Verdict:
        """Say how the round ends.

        Raises:
            IllegalInputError: it isn't over.
        """
        if not self.over:
            raise IllegalInputError(f"round {self.number} can't be judged: workers are still busy")
        ranks = {final: tuple(r for r, s in self.states.items() if s is final) for final in FINAL}
        return Verdict(ranks[State.DELIVERED], ranks[State.DROPPED], self.quorum)


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a try of a round with these workers."""

    number: int
    attempt: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run."""

    status: Literal["completed", "failed"]
    reason: str | None = None


@dataclass(slots=True)
class Course:
    """The way of a run through its rounds.

    Args:
        rounds: how many are wanted.
        workers: how many the job lists.
        quorum: least number of survivors of a round.
        round_retries: how often a round that failed is tried again.
        max_failures: after so many failed tries in a row a worker is left out for good.
        stop_on_loss: end the run as soon as a worker fails in a round.
    """

    rounds: int
    workers: int
    quorum: int
    round_retries: int
    max_failures: int
    stop_on_loss: bool = False
    number: int = 0
    attempt: int = 1
    failures: dict[int, int] = field(default_factory=dict)
    out: set[int] = field(default_factory=set)
    _finish: Finish | None = None

    def next(self) -> Begin | Finish:
        """Say what comes next."""
        if self._finish is not None:
            return self._finish
        if self.number == self.rounds:
            return Finish("completed")
        ranks = tuple(rank for rank in range(self.workers) if rank not in self.out)
        if len(ranks) < self.quorum:
            return Finish("failed", f"{len(ranks)} workers are left, quorum is {self.quorum}")
        return Begin(self.number, self.attempt, ranks)

    def ended(self, verdict: Verdict, failure: str | None) -> list[int]:
        """Take how a round ended.

        Args:
            verdict: its survivors and those that were dropped.
            failure: why it doesn't count; None where it was aggregated.

        Returns:
            The workers that are left out for good from now on.
        """
        for rank in verdict.survivors:
            self.failures.pop(rank, None)
        given_up = []
        for rank in verdict.dropped:
            self.failures[rank] = self.failures.get(rank, 0) + 1
            if self.failures[rank] >= self.max_failures:
                self.out.add(rank)
                given_up.append(rank)
        if failure is None:
            self.number, self.attempt = self.number + 1, 1
        elif self.attempt > self.round_retries:
            self._finish = Finish("failed", f"round {self.number} failed {self.attempt} times: {failure}")
        else:
            self.attempt += 1
        if self.stop_on_loss and verdict.dropped:
            lost = ", ".join(map(str, verdict.dropped))
            self._finish = Finish("failed", f"lost worker {lost} and the job says on_loss = 'stop'")
        return given_up
