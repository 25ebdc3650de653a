"""The decisions: the table of states is the whole truth, and every run comes to an honest end."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runner.decide import (
    FINAL,
    NEXT,
    Act,
    Begin,
    Course,
    Finish,
    IllegalInputError,
    Round,
    Said,
    State,
    Verdict,
)

PAIRS = list(itertools.product(State, Said))
WAY = [Said.JOINED, Said.PUSHED, Said.TRAINED, Said.PULLED, Said.ACCEPTED]


def round_in(state: State) -> Round:
    """Return a round of workers 0 and 1 whose worker 0 is in this state."""
    made = Round(7, [1, 0], quorum=1)
    if state is State.DROPPED:
        made.on(Said.FAILED, 0)
        return made
    for said in WAY:
        if made.states[0] is state:
            break
        made.on(said, 0)
    assert made.states[0] is state
    return made


@pytest.mark.parametrize(("state", "said"), PAIRS, ids=lambda x: x.value)
def test_every_input_in_every_state(state: State, said: Said):
    made = round_in(state)
    before, over = dict(made.states), made.over
    if (state, said) in NEXT:
        then, act = NEXT[state, said]
        assert made.on(said, 0) is act
        assert made.states == {**before, 0: then}
        return
    with pytest.raises(IllegalInputError) as caught:
        made.on(said, 0)
    assert str(caught.value) == f"{said.value!r} in round 7: worker 0 is {state.value}"
    assert (made.states, made.over) == (before, over)


def test_the_table_leads_every_state_to_an_end():
    assert {state for state, _ in NEXT} == set(State) - FINAL
    for state in set(State) - FINAL:
        assert NEXT[state, Said.FAILED] == (State.DROPPED, None)
        assert sum(1 for s, said in NEXT if s is state and said is not Said.FAILED) == 1
    assert {act for _, act in NEXT.values()} == set(Act) - {Act.JOIN} | {None}


@pytest.mark.parametrize("said", list(Said))
def test_a_worker_that_is_not_in_the_round(said: Said):
    made = Round(7, [0, 1], quorum=1)
    with pytest.raises(IllegalInputError, match=r"worker 5 is not in this round"):
        made.on(said, 5)
    assert set(made.states.values()) == {State.JOINING}


def test_a_round_is_not_judged_while_workers_are_busy():
    made = Round(0, [0, 1], quorum=1)
    made.on(Said.FAILED, 0)
    with pytest.raises(IllegalInputError, match="still busy"):
        made.verdict()


def test_it_begins_in_rank_order():
    assert Round(0, [3, 0, 2], quorum=1).start() == [(Act.JOIN, 0), (Act.JOIN, 2), (Act.JOIN, 3)]


@pytest.mark.parametrize(("survivors", "quorum"), list(itertools.product(range(4), range(1, 4))))
def test_quorum(survivors: int, quorum: int):
    verdict = Verdict(tuple(range(survivors)), (8, 9), quorum)
    assert verdict.counts == (survivors >= quorum)
    assert verdict.reason == (None if verdict.counts else f"{survivors} survivors, quorum is {quorum}")


class Rounds(RuleBasedStateMachine):
    """One round whose workers go on, fail, and are heard of out of turn, in any order."""

    @initialize(ranks=st.sets(st.integers(0, 6), min_size=1), quorum=st.integers(1, 4))
    def begin(self, ranks: set[int], quorum: int) -> None:
        self.round = Round(0, ranks, quorum)
        self.todo = {rank: act for act, rank in self.round.start()}
        assert set(self.todo) == ranks

    @precondition(lambda self: self.todo)
    @rule(data=st.data(), well=st.booleans())
    def report(self, data: st.DataObject, well: bool) -> None:
        rank = data.draw(st.sampled_from(sorted(self.todo)))
        act = self.todo.pop(rank)
        said = {
            Act.JOIN: Said.JOINED,
            Act.PUSH: Said.PUSHED,
            Act.TRAIN: Said.TRAINED,
            Act.PULL: Said.PULLED,
            Act.CHECK: Said.ACCEPTED,
        }[act]
        then = self.round.on(said if well else Said.FAILED, rank)
        if then is not None:
            self.todo[rank] = then
        assert well or then is None

    @rule(said=st.sampled_from(Said), rank=st.integers(0, 7))
    def hear_anything(self, said: Said, rank: int) -> None:
        state = self.round.states.get(rank)
        if (state, said) in NEXT:
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
        assert self.round.over == (not busy)
        if self.round.over:
            verdict = self.round.verdict()
            assert sorted(verdict.survivors + verdict.dropped) == sorted(self.round.states)
            assert list(verdict.survivors) == sorted(verdict.survivors)
            assert not verdict.counts or len(verdict.survivors) >= verdict.quorum


class Courses(RuleBasedStateMachine):
    """A run whose rounds are lost and won in any way."""

    @initialize(
        rounds=st.integers(1, 4),
        workers=st.integers(1, 5),
        quorum=st.integers(1, 5),
        retries=st.integers(0, 3),
        max_failures=st.integers(1, 4),
        stop=st.booleans(),
    )
    def begin(  # noqa: PLR0917 - given by name
        self, rounds: int, workers: int, quorum: int, retries: int, max_failures: int, stop: bool
    ) -> None:
        self.course = Course(rounds, workers, min(quorum, workers), retries, max_failures, stop)
        self.committed: list[int] = []
        self.tries: dict[int, int] = {}
        self.streak = dict.fromkeys(range(workers), 0)
        self.out: set[int] = set()

    @precondition(lambda self: isinstance(self.course.next(), Begin))
    @rule(data=st.data(), aggregates=st.booleans())
    def go_through_a_round(self, data: st.DataObject, aggregates: bool) -> None:
        course, begin = self.course, self.course.next()
        assert course.next() == begin, "asking changes nothing"
        assert begin.ranks == tuple(r for r in range(course.workers) if r not in self.out)
        assert len(begin.ranks) >= course.quorum
        self.tries[begin.number] = self.tries.get(begin.number, 0) + 1
        assert begin.attempt == self.tries[begin.number] <= course.round_retries + 1
        dropped = tuple(sorted(data.draw(st.sets(st.sampled_from(begin.ranks)))))
        survivors = tuple(r for r in begin.ranks if r not in dropped)
        verdict = Verdict(survivors, dropped, course.quorum)
        failure = verdict.reason or (None if aggregates else "no aggregate")
        given_up = course.ended(verdict, failure)
        if failure is None:
            self.committed.append(begin.number)
        for rank in begin.ranks:
            self.streak[rank] = self.streak[rank] + 1 if rank in dropped else 0
        assert given_up == [r for r in dropped if self.streak[r] >= course.max_failures]
        assert not self.out & set(given_up)
        self.out |= set(given_up)
        if course.stop_on_loss and dropped:
            assert course.next().status == "failed"

    @rule()
    def ask_again(self) -> None:
        assert self.course.next() == self.course.next()

    @invariant()
    def it_stays_honest(self) -> None:
        if not hasattr(self, "course"):
            return
        course = self.course
        assert self.committed == list(range(course.number))
        assert course.number <= course.rounds
        assert course.out == self.out
        then = course.next()
        if isinstance(then, Finish):
            assert course.next() == then, "an end is final"
            assert (then.reason is None) == (then.status == "completed")
            assert then.status != "completed" or course.number == course.rounds


TestRounds = Rounds.TestCase
TestCourses = Courses.TestCase
for case in (TestRounds, TestCourses):
    case.settings = settings(max_examples=60, stateful_step_count=40)


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 3),
    st.integers(1, 4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_every_run_ends(rounds, workers, retries, max_failures, stop, rng):  # noqa: PLR0917 - given by name
    course = Course(rounds, workers, min(2, workers), retries, max_failures, stop)
    for _ in range(rounds * (retries + 1) + 1):
        if isinstance(begin := course.next(), Finish):
            return
        dropped = tuple(r for r in begin.ranks if rng.random() < 0.4)
        verdict = Verdict(tuple(r for r in begin.ranks if r not in dropped), dropped, course.quorum)
        course.ended(verdict, verdict.reason)
    raise AssertionError("more tries than there can be")


def test_reasons_of_a_failed_run():
    retried = Course(rounds=2, workers=3, quorum=2, round_retries=1, max_failures=9)
    for _ in range(2):
        retried.ended(Verdict((0,), (1, 2), 2), "1 survivors, quorum is 2")
    assert retried.next() == Finish("failed", "round 0 failed 2 times: 1 survivors, quorum is 2")
    left = Course(rounds=2, workers=3, quorum=2, round_retries=5, max_failures=1)
    assert left.ended(Verdict((0,), (1, 2), 2), "1 survivors, quorum is 2") == [1, 2]
    assert left.next() == Finish("failed", "1 workers are left, quorum is 2")
    stopped = Course(rounds=2, workers=3, quorum=1, round_retries=5, max_failures=5, stop_on_loss=True)
    stopped.ended(Verdict((0,), (1, 2), 1), None)
    assert stopped.next() == Finish("failed", "lost worker 1, 2 and the job says on_loss = 'stop'")


def test_a_failure_is_forgotten_after_a_success():
    course = Course(rounds=9, workers=2, quorum=1, round_retries=0, max_failures=2)
    lost, fine = Verdict((0,), (1,), 1), Verdict((0, 1), (), 1)
    assert [course.ended(v, None) for v in (lost, fine, lost, fine, lost, lost)] == [[], [], [], [], [], [1]]
    assert course.next() == Begin(6, 1, (0,))
