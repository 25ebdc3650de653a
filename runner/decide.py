"""What a round does next, given what has happened to its workers; no I/O, no clock, no trio.

``Round`` takes inputs and answers with actions. The one table of a worker's states is ``NEXT``: an input
that it doesn't have raises ``IllegalInputError`` and changes nothing. ``course`` plans the rounds of a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum as _Enum

from runner.errors import RoundlogError


class Enum(_Enum):
    """An enum whose members are looked up in tables as fast as any object is."""

    __hash__ = object.__hash__


class State(Enum):
    """Where one worker is in one round."""

    JOINING = "joining"
    JOIN_LATER = "waiting to join again"
    PUSHING = "pushing"
    PUSH_LATER = "waiting to push again"
    TRAINING = "training"
    TRAIN_LATER = "waiting to train again"
    PULLING = "pulling"
    PULL_LATER = "waiting to pull again"
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
    FAILED = "failed, may try again"
    RESTED = "waited"
    GIVEN_UP = "failed for this round"


class Step(Enum):
    """What is to be done with one worker."""

    JOIN = "join"
    PUSH = "push"
    TRAIN = "train"
    PULL = "pull"
    CHECK = "check"


class Failure(Enum):
    """What kind of failure it was; tells whether another try may help."""

    TRANSPORT = "transport"
    COMMAND = "command"
    DEADLINE = "deadline"
    REJECTED = "rejected"


class Alarm(Enum):
    """A time that has passed."""

    GRACE = "grace"
    DEADLINE = "deadline"


_GIVE_UP = (State.DROPPED, None)

NEXT: dict[tuple[State, Said], tuple[State, Step | None]] = {
    (State.JOINING, Said.JOINED): (State.PUSHING, Step.PUSH),
    (State.JOINING, Said.FAILED): (State.JOIN_LATER, None),
    (State.JOINING, Said.GIVEN_UP): _GIVE_UP,
    (State.JOIN_LATER, Said.RESTED): (State.JOINING, Step.JOIN),
    (State.JOIN_LATER, Said.GIVEN_UP): _GIVE_UP,
    (State.PUSHING, Said.PUSHED): (State.TRAINING, Step.TRAIN),
    (State.PUSHING, Said.FAILED): (State.PUSH_LATER, None),
    (State.PUSHING, Said.GIVEN_UP): _GIVE_UP,
    (State.PUSH_LATER, Said.RESTED): (State.PUSHING, Step.PUSH),
    (State.PUSH_LATER, Said.GIVEN_UP): _GIVE_UP,
    (State.TRAINING, Said.TRAINED): (State.PULLING, Step.PULL),
    (State.TRAINING, Said.FAILED): (State.TRAIN_LATER, None),
    (State.TRAINING, Said.GIVEN_UP): _GIVE_UP,
    (State.TRAIN_LATER, Said.RESTED): (State.PUSHING, Step.PUSH),
    (State.TRAIN_LATER, Said.GIVEN_UP): _GIVE_UP,
    (State.PULLING, Said.PULLED): (State.CHECKING, Step.CHECK),
    (State.PULLING, Said.FAILED): (State.PULL_LATER, None),
    (State.PULLING, Said.GIVEN_UP): _GIVE_UP,
    (State.PULL_LATER, Said.RESTED): (State.PULLING, Step.PULL),
    (State.PULL_LATER, Said.GIVEN_UP): _GIVE_UP,
    (State.CHECKING, Said.ACCEPTED): (State.DELIVERED, None),
    (State.CHECKING, Said.GIVEN_UP): _GIVE_UP,
}
"""From a worker's state and what happened, to its next state and what to do."""

_STEP = {
    State.JOINING: Step.JOIN,
    State.PUSHING: Step.PUSH,
    State.TRAINING: Step.TRAIN,
    State.PULLING: Step.PULL,
    State.CHECKING: Step.CHECK,
}

FINAL = frozenset({State.DELIVERED, State.DROPPED})


class IllegalInputError(RoundlogError):
    """Something was said that can't happen in this state; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a round needs to know of the job's policy.

    Attributes:
        quorum: least number of survivors that makes the round count.
        close_at: deliveries after which stragglers get only the grace time; None: all are waited for.
        grace_s: that time, in seconds.
        retries: how often a step is tried again after a failure of the transport.
        train_retries: how often the training command is tried again after it failed.
    """

    quorum: int
    close_at: int | None = None
    grace_s: float = 0.0
    retries: int = 0
    train_retries: int = 0


@dataclass(frozen=True, slots=True)
class Do:
    """Take a step with a worker; `attempt` counts from 1."""

    rank: int
    step: Step
    attempt: int


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Let a worker rest before its next `attempt`, then say ``RESTED``."""

    rank: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Drop:
    """End what a worker is doing: it has no part in this round any more.

    Attributes:
        rank: of the worker.
        was: its state so far.
        late: the others had delivered; it isn't blamed.
        reason: why, in words.
    """

    rank: int
    was: State
    late: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SetAlarm:
    """Say ``GRACE`` when this time has passed."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Close:
    """The round is over; its verdict can be asked for."""


Action = Do | RetryAfter | Drop | SetAlarm | Close


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a round ended.

    Attributes:
        survivors: whose weights count, in rank order.
        failed: who failed, in rank order.
        late: who was not waited for, in rank order.
        quorum: least number of survivors that makes the round count.
    """

    survivors: tuple[int, ...]
    failed: tuple[int, ...]
    late: tuple[int, ...]
    quorum: int

    @property
    def reason(self) -> str | None:
        """Why the round doesn't count; None where it does."""
        if len(self.survivors) >= self.quorum:
            return None
        said = f"quorum missed: {len(self.survivors)} delivered, {len(self.failed)} failed"
        taking_part = len({*self.survivors, *self.failed, *self.late})
        few = f", but only {taking_part} took part" if taking_part < self.quorum else ""
        return f"{said}, {self.quorum} needed{few}"


class Round:
    """One try of one round.

    Args:
        number: of the round, from 0.
        ranks: the workers that take part.
        rules: when it is over and when it counts.
    """

    def __init__(self, number: int, ranks: Iterable[int], rules: Rules) -> None:
        self.number = number
        self.rules = rules
        self.states = dict.fromkeys(sorted(ranks), State.JOINING)
        self.closed = False
        self._tries: dict[tuple[int, Step], int] = {}
        self._late: set[int] = set()
        self._busy = len(self.states)
        self._delivered = 0
        self._in_grace = False

    def start(self) -> list[Action]:
        """Return what to do first, in rank order."""
        return [self._do(rank, Step.JOIN) for rank in self.states] + self._settle()

    def on(self, said: Said, rank: int, failure: Failure | None = None) -> list[Action]:
        """Take what happened to a worker and return what is to be done.

        Args:
            said: what happened; ``FAILED`` becomes ``GIVEN_UP`` where the rules allow no other try.
            rank: to which worker.
            failure: of what kind a failure was.

        Raises:
            IllegalInputError: it can't happen in the worker's state.
        """
        state = self.states.get(rank)
        if said is Said.FAILED and state in _STEP and not self._may_retry(state, rank, failure):
            said = Said.GIVEN_UP
        found = None if state is None or self.closed else NEXT.get((state, said))
        if found is None:
            where = "not in it" if state is None else state.value
            over = ", which is closed" if self.closed else ""
            raise IllegalInputError(f"{said.value!r} in round {self.number}{over}: worker {rank} is {where}")
        self.states[rank], step = found
        if found[0] in FINAL:
            self._busy -= 1
            self._delivered += found[0] is State.DELIVERED
        if said is Said.FAILED and state is not None:
            return [RetryAfter(rank, self._tries[rank, _STEP[state]] + 1)]
        actions: list[Action] = [] if step is None else [self._do(rank, step)]
        return actions + self._settle()

    def alarm(self, alarm: Alarm) -> list[Action]:
        """Take that a time has passed; the workers still busy are dropped.

        Raises:
            IllegalInputError: no grace time had begun, or the round is over.
        """
        if self.closed or (alarm is Alarm.GRACE and not self._in_grace):
            raise IllegalInputError(f"{alarm.value!r} in round {self.number}: it isn't waited for")
        if alarm is Alarm.GRACE:
            return self._end(f"{self._delivered} had delivered and the grace time had passed", late=True)
        return self._end("the round's deadline had passed", late=False)

    def verdict(self) -> Verdict:
        """Say how the round ended.

        Raises:
            IllegalInputError: it isn't over.
        """
        if not self.closed:
            raise IllegalInputError(f"round {self.number} can't be judged: it isn't over")
        dropped = [rank for rank, state in self.states.items() if state is State.DROPPED]
        return Verdict(
            survivors=tuple(rank for rank, state in self.states.items() if state is State.DELIVERED),
            failed=tuple(rank for rank in dropped if rank not in self._late),
            late=tuple(rank for rank in dropped if rank in self._late),
            quorum=self.rules.quorum,
        )

    def _do(self, rank: int, step: Step) -> Do:
        self._tries[rank, step] = self._tries.get((rank, step), 0) + 1
        return Do(rank, step, self._tries[rank, step])

    def _may_retry(self, state: State, rank: int, failure: Failure | None) -> bool:
        if (state, Said.FAILED) not in NEXT or failure is Failure.REJECTED:
            return False
        transport = failure is Failure.TRANSPORT
        allowed = self.rules.retries if transport else self.rules.train_retries
        return self._tries[rank, _STEP[state]] <= allowed and (transport or state is State.TRAINING)

    def _settle(self) -> list[Action]:
        """See whether the round is over, or about to be."""
        rules = self.rules
        if self._busy == 0:
            return self._end("", late=False)
        if self._delivered + self._busy < rules.quorum:
            return self._end("the quorum could not be met any more", late=True)
        if rules.close_at is None or self._delivered < rules.close_at or self._in_grace:
            return []
        if rules.grace_s == 0:
            return self._end(f"{self._delivered} had delivered", late=True)
        self._in_grace = True
        return [SetAlarm(rules.grace_s)]

    def _end(self, reason: str, *, late: bool) -> list[Action]:
        """Close the round and drop who is still busy."""
        busy = {rank: state for rank, state in self.states.items() if state not in FINAL}
        self.states.update(dict.fromkeys(busy, State.DROPPED))
        if late:
            self._late |= busy.keys()
        self._busy = 0
        self.closed = True
        return [*(Drop(rank, was, late, reason) for rank, was in busy.items()), Close()]
