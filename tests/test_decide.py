"""The decisions of a round: the table of states is the whole truth, and a round comes to an honest end."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runner.decide import (
    FINAL,
    NEXT,
    Alarm,
    Close,
    Do,
    Drop,
    Failure,
    IllegalInputError,
    RetryAfter,
    Round,
    Rules,
    Said,
    SetAlarm,
    State,
    Step,
    Verdict,
)

PAIRS = list(itertools.product(State, Said))
WAY = {
    State.JOINING: [],
    State.JOIN_LATER: [Said.FAILED],
    State.PUSHING: [Said.JOINED],
    State.PUSH_LATER: [Said.JOINED, Said.FAILED],
    State.TRAINING: [Said.JOINED, Said.PUSHED],
    State.TRAIN_LATER: [Said.JOINED, Said.PUSHED, Said.FAILED],
    State.PULLING: [Said.JOINED, Said.PUSHED, Said.TRAINED],
    State.PULL_LATER: [Said.JOINED, Said.PUSHED, Said.TRAINED, Said.FAILED],
    State.CHECKING: [Said.JOINED, Said.PUSHED, Said.TRAINED, Said.PULLED],
    State.DELIVERED: [Said.JOINED, Said.PUSHED, Said.TRAINED, Said.PULLED, Said.ACCEPTED],
    State.DROPPED: [Said.GIVEN_UP],
}
SUCCESS = {
    Step.JOIN: Said.JOINED,
    Step.PUSH: Said.PUSHED,
    Step.TRAIN: Said.TRAINED,
    Step.PULL: Said.PULLED,
    Step.CHECK: Said.ACCEPTED,
}


def deliver(made: Round, rank: int) -> list:
    """Take a worker through all its steps; return what the last one led to."""
    for said in WAY[State.DELIVERED]:
        actions = made.on(said, rank)
    return actions


def round_in(state: State) -> Round:
    """Return a round of workers 0 and 1 whose worker 0 is in this state."""
    made = Round(7, [1, 0], Rules(quorum=1, retries=9))
    made.start()
    for said in WAY[state]:
        made.on(said, 0, Failure.TRANSPORT)
    assert made.states[0] is state
    return made


@pytest.mark.parametrize(("state", "said"), PAIRS, ids=lambda x: x.name)
def test_every_input_in_every_state(state: State, said: Said):
    made = round_in(state)
    before = dict(made.states)
    if state is State.CHECKING and said is Said.FAILED:
        made.on(said, 0, Failure.REJECTED)
        assert made.states == {**before, 0: State.DROPPED}
        return
    if (state, said) in NEXT:
        then, step = NEXT[state, said]
        actions = made.on(said, 0, Failure.TRANSPORT)
        assert made.states == {**before, 0: then}
        assert [a.step for a in actions if isinstance(a, Do)] == ([] if step is None else [step])
        assert [a.rank for a in actions if isinstance(a, RetryAfter)] == [0] * (said is Said.FAILED)
        return
    with pytest.raises(IllegalInputError) as caught:
        made.on(said, 0, Failure.TRANSPORT)
    assert f"in round 7: worker 0 is {state.value}" in str(caught.value)
    assert made.states == before


def test_the_table_leads_every_state_to_an_end():
    assert {state for state, _ in NEXT} == set(State) - FINAL
    for state in set(State) - FINAL:
        assert NEXT[state, Said.GIVEN_UP] == (State.DROPPED, None)
    reached, todo = set(), {State.JOINING}
    while todo:
        reached |= todo
        todo = {then for (state, _), (then, _) in NEXT.items() if state in reached} - reached
    assert reached == set(State)


def test_a_worker_that_is_not_in_the_round():
    made = Round(7, [0, 1], Rules(quorum=1))
    with pytest.raises(IllegalInputError, match=r"worker 5 is not in it"):
        made.on(Said.JOINED, 5)


def test_it_begins_in_rank_order():
    made = Round(0, [3, 0, 2], Rules(quorum=1))
    assert made.start() == [Do(0, Step.JOIN, 1), Do(2, Step.JOIN, 1), Do(3, Step.JOIN, 1)]


@pytest.mark.parametrize(
    ("state", "failure", "retried"),
    [
        (State.PUSHING, Failure.TRANSPORT, True),
        (State.TRAINING, Failure.TRANSPORT, True),
        (State.PULLING, Failure.TRANSPORT, True),
        (State.TRAINING, Failure.COMMAND, False),
        (State.TRAINING, Failure.DEADLINE, False),
        (State.TRAINING, Failure.REJECTED, False),
        (State.CHECKING, Failure.REJECTED, False),
    ],
)
def test_what_is_tried_again(state: State, failure: Failure, retried: bool):
    made = round_in(state)
    actions = made.on(Said.FAILED, 0, failure)
    assert [type(a) for a in actions] == ([RetryAfter] if retried else [])
    assert (made.states[0] is State.DROPPED) != retried


def test_a_command_is_tried_again_only_as_often_as_the_job_says():
    made = Round(0, [0], Rules(quorum=1, retries=5, train_retries=1))
    made.start()
    made.on(Said.JOINED, 0)
    made.on(Said.PUSHED, 0)
    assert made.on(Said.FAILED, 0, Failure.COMMAND) == [RetryAfter(0, 2)]
    assert made.on(Said.RESTED, 0) == [Do(0, Step.PUSH, 2)]
    assert made.on(Said.PUSHED, 0) == [Do(0, Step.TRAIN, 2)]
    assert made.on(Said.FAILED, 0, Failure.COMMAND) == [Close()]


def test_grace_begins_when_enough_have_delivered():
    made = Round(0, [0, 1, 2], Rules(quorum=1, close_at=2, grace_s=30))
    made.start()
    with pytest.raises(IllegalInputError):
        made.alarm(Alarm.GRACE)
    assert deliver(made, 2) == []
    assert deliver(made, 0) == [SetAlarm(30)]
    (drop, close) = made.alarm(Alarm.GRACE)
    assert (drop.rank, drop.was, drop.late, close) == (1, State.JOINING, True, Close())
    assert made.verdict() == Verdict((0, 2), (), (1,), 1)
    with pytest.raises(IllegalInputError, match="closed"):
        made.on(Said.JOINED, 1)
    with pytest.raises(IllegalInputError):
        made.alarm(Alarm.DEADLINE)


def test_only_the_fastest_are_needed_without_grace():
    made = Round(0, [0, 1, 2], Rules(quorum=1, close_at=1))
    made.start()
    drops = deliver(made, 1)
    assert [(a.rank, a.late) for a in drops if isinstance(a, Drop)] == [(0, True), (2, True)]
    assert made.verdict().survivors == (1,)


def test_the_deadline_blames_who_is_still_busy():
    made = Round(0, [0, 1], Rules(quorum=2))
    made.start()
    deliver(made, 0)
    made.alarm(Alarm.DEADLINE)
    assert made.verdict() == Verdict((0,), (1,), (), 2)
    assert made.verdict().reason == "quorum missed: 1 delivered, 1 failed, 2 needed"


def test_a_round_that_too_few_took_part_in_says_so():
    verdict = Verdict((), (0, 1, 2), (3,), 16)
    assert verdict.reason == "quorum missed: 0 delivered, 3 failed, 16 needed, but only 4 took part"


def test_a_round_that_can_not_meet_its_quorum_is_not_waited_for():
    made = Round(0, [0, 1, 2], Rules(quorum=3))
    made.start()
    actions = made.on(Said.FAILED, 1, Failure.COMMAND)
    assert [a.rank for a in actions if isinstance(a, Drop)] == [0, 2]
    assert made.verdict() == Verdict((), (1,), (0, 2), 3)


class Rounds(RuleBasedStateMachine):
    """One round whose workers go on, fail, rest and are too late, in any order."""

    @initialize(
        ranks=st.sets(st.integers(0, 6), min_size=1),
        quorum=st.integers(1, 4),
        close_at=st.none() | st.integers(1, 6),
        grace_s=st.sampled_from([0.0, 5.0]),
        retries=st.integers(0, 2),
        train_retries=st.integers(0, 2),
    )
    def begin(  # noqa: PLR0917 - given by name
        self,
        ranks: set[int],
        quorum: int,
        close_at: int | None,
        grace_s: float,
        retries: int,
        train_retries: int,
    ) -> None:
        rules = Rules(
            quorum=quorum, close_at=close_at, grace_s=grace_s, retries=retries, train_retries=train_retries
        )
        self.round = Round(0, ranks, rules)
        self.todo: dict[int, Step | None] = {}
        self.tries: dict[tuple[int, Step], int] = {}
        self.delivered: list[int] = []
        self.closed = 0
        self.grace = False
        self.take(self.round.start())

    def take(self, actions: list) -> None:
        for action in actions:
            assert not self.closed, "nothing follows a close"
            match action:
                case Do(rank, step, attempt):
                    assert rank not in self.todo, "one step at a time"
                    self.tries[rank, step] = self.tries.get((rank, step), 0) + 1
                    assert attempt == self.tries[rank, step]
                    self.todo[rank] = step
                case RetryAfter(rank, attempt):
                    assert attempt >= 2
                    self.todo[rank] = None
                case Drop(rank, was, _, reason):
                    del self.todo[rank]
                    assert was not in FINAL
                    assert reason
                case SetAlarm(seconds):
                    assert seconds > 0
                    assert not self.grace, "grace begins once"
                    self.grace = True
                case Close():
                    self.closed += 1

    @precondition(lambda self: self.todo)
    @rule(data=st.data(), failure=st.none() | st.sampled_from(Failure))
    def report(self, data: st.DataObject, failure: Failure | None) -> None:
        rank = data.draw(st.sampled_from(sorted(self.todo)))
        step = self.todo.pop(rank)
        if step is None:
            said = Said.RESTED
        elif failure is not None:
            said = Said.FAILED
        else:
            said = SUCCESS[step]
            if said is Said.ACCEPTED:
                self.delivered.append(rank)
        self.take(self.round.on(said, rank, failure))

    @rule(alarm=st.sampled_from(Alarm), wanted=st.integers(0, 5))
    def time_passes(self, alarm: Alarm, wanted: int) -> None:
        if wanted:
            return
        if self.round.closed or (alarm is Alarm.GRACE and not self.grace):
            before = dict(self.round.states)
            with pytest.raises(IllegalInputError):
                self.round.alarm(alarm)
            assert self.round.states == before
        else:
            self.take(self.round.alarm(alarm))
            assert self.closed

    @rule(said=st.sampled_from(Said), rank=st.integers(0, 7))
    def hear_anything(self, said: Said, rank: int) -> None:
        state = self.round.states.get(rank)
        legal = (state, said) in NEXT or (state is State.CHECKING and said is Said.FAILED)
        if legal and not self.round.closed:
            return
        before = dict(self.round.states)
        with pytest.raises(IllegalInputError):
            self.round.on(said, rank)
        assert self.round.states == before

    @invariant()
    def every_worker_is_accounted_for(self) -> None:
        if not hasattr(self, "round"):
            return
        busy = {rank for rank, state in self.round.states.items() if state not in FINAL}
        assert busy == set(self.todo)
        assert self.closed == self.round.closed
        assert self.closed or busy, "a round nobody is busy in is over"
        if not self.closed:
            with pytest.raises(IllegalInputError):
                self.round.verdict()
            return
        verdict = self.round.verdict()
        assert sorted(verdict.survivors + verdict.failed + verdict.late) == sorted(self.round.states)
        assert list(verdict.survivors) == sorted(self.delivered), "each is counted once"
        assert (verdict.reason is None) == (len(verdict.survivors) >= self.round.rules.quorum)
        for (_, step), tries in self.tries.items():
            assert tries <= 1 + 3 * (self.round.rules.retries + self.round.rules.train_retries), step


TestRounds = Rounds.TestCase
TestRounds.settings = settings(max_examples=60, stateful_step_count=50)


def test_the_diagram_in_the_docs_is_the_table():
    docs = Path(__file__).parent.parent / "docs"
    made = runpy.run_path(str(docs / "make_states.py"))["text"]()
    assert (docs / "states.md").read_text(encoding="utf-8") == made
