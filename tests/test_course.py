"""The rounds of a run: it always ends, keeps its quorum, and a replayed log leads where it led."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runner.course import LEARNT_FROM, AutoDeadline, Begin, Course, Finish
from runner.decide import Verdict
from runner.errors import RunError
from runner.past import Try, replay


def course_of(**changes) -> Course:
    return Course(
        **{"rounds": 2, "workers": 3, "quorum": 2, "round_retries": 1, "max_failures": 9, **changes}
    )


class Courses(RuleBasedStateMachine):
    """A run whose rounds are lost and won in any way; its log is replayed at the end."""

    @initialize(
        given=st.fixed_dictionaries(
            {
                "rounds": st.integers(1, 4),
                "workers": st.integers(1, 5),
                "spares": st.integers(0, 2),
                "quorum": st.integers(1, 5),
                "round_retries": st.integers(0, 3),
                "max_failures": st.integers(1, 4),
                "stop_on_loss": st.booleans(),
            }
        )
    )
    def begin(self, given: dict) -> None:
        self.given = {**given, "quorum": min(given["quorum"], given["workers"])}
        self.course = Course(**self.given)
        self.committed: list[int] = []
        self.tries: list[Try] = []
        self.streak: dict[int, set[int]] = {}
        """The rounds in a row in which each worker failed."""
        self.out: set[int] = set()
        self.session = 0

    @precondition(lambda self: isinstance(self.course.next(), Begin))
    @rule(data=st.data(), aggregates=st.booleans(), ended=st.integers(0, 6))
    def go_through_a_round(self, data: st.DataObject, aggregates: bool, ended: int) -> None:
        course, begin = self.course, self.course.next()
        assert course.next() == begin, "asking changes nothing"
        assert list(begin.shards) == sorted(begin.shards)
        assert sorted(begin.shards.values()) == sorted(set(begin.shards.values())), "each shard once"
        assert not self.out & set(begin.shards)
        assert course.quorum <= len(begin.shards) <= self.given["workers"]
        keys = {(t.number, t.start["attempt"]) for t in self.tries}
        assert (begin.number, begin.attempt) not in keys, "a try has a number of its own"
        start = {"round": begin.number, "attempt": begin.attempt}
        if ended == 0:  # the coordinator dies
            self.tries.append(Try(begin.number, self.session, start))
            course.interrupted += 1
            self.resume()
            return
        ranks = sorted(begin.shards)
        failed = set(data.draw(st.sets(st.sampled_from(ranks))))
        late = set(data.draw(st.sets(st.sampled_from(ranks)))) - failed
        survivors = tuple(r for r in ranks if r not in failed | late)
        verdict = Verdict(survivors, tuple(sorted(failed)), tuple(sorted(late)), course.quorum)
        failure = verdict.reason or (None if aggregates else "no aggregate")
        given_up = course.ended(verdict, failure, 1.0)
        outcome = "ok" if failure is None else "failed"
        end = {
            "outcome": outcome,
            "reason": failure,
            "failed": sorted(failed),
            "late": sorted(late),
            "delivered_s": 1.0,
        }
        aggregate = {"ranks": list(survivors)} if failure is None else None
        dies = failure is None and ended == 1
        self.tries.append(
            Try(begin.number, self.session, start, aggregate, None if dies else end, not_waited_for=late)
        )
        if failure is None:
            self.committed.append(begin.number)
        for rank in failed:
            self.streak.setdefault(rank, set()).add(begin.number)
        for rank in survivors:
            self.streak.pop(rank, None)
        often = {r for r in failed if len(self.streak[r]) >= course.max_failures}
        assert often <= given_up.keys() <= failed
        assert given_up.keys() - often == {r for r, why in given_up.items() if "a spare takes over" in why}
        self.out |= given_up.keys()
        then = course.next()
        if isinstance(then, Finish) and then.status == "failed" and failed:
            assert not course.standby or self.given["stop_on_loss"], "spares come in before a run fails"
        if dies:
            self.resume()

    def resume(self) -> None:
        """Go on in a new process."""
        stuck = isinstance(self.course.next(), Finish) and self.course.next().status == "failed"
        self.course.resumed()
        self.session += 1
        if stuck:
            self.out, self.streak = set(), {}

    @rule()
    def ask_again(self) -> None:
        assert self.course.next() == self.course.next()

    @precondition(lambda self: self.course.next() != Finish("completed") and self.session < 5)
    @rule()
    def interrupt(self) -> None:
        self.resume()

    def teardown(self) -> None:
        """Replay the log: it leads to the same place."""
        if not hasattr(self, "course"):
            return
        again = Course(**self.given)
        replay(again, self.tries)
        for _ in range(self.session - (self.tries[-1].session if self.tries else 0)):
            again.resumed()
        self.course.resumed()  # as replay does at its end
        assert again.next() == self.course.next()

    @invariant()
    def it_stays_honest(self) -> None:
        if not hasattr(self, "course"):
            return
        course = self.course
        assert self.committed == list(range(course.number))
        assert course.number <= course.rounds
        then = course.next()
        if isinstance(then, Finish):
            assert (then.reason is None) == (then.status == "completed")
            assert then.status != "completed" or course.number == course.rounds


TestCourses = Courses.TestCase
TestCourses.settings = settings(max_examples=50, stateful_step_count=30)


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_every_run_ends(rounds, workers, spares, retries, failures, rng):  # noqa: PLR0917 - given by name
    course = course_of(
        rounds=rounds,
        workers=workers,
        spares=spares,
        quorum=min(2, workers),
        round_retries=retries,
        max_failures=failures,
    )
    for _ in range((rounds + spares) * (retries + 1) + 1):
        if isinstance(begin := course.next(), Finish):
            return
        failed = tuple(r for r in begin.shards if rng.random() < 0.4)
        verdict = Verdict(tuple(r for r in begin.shards if r not in failed), failed, (), course.quorum)
        course.ended(verdict, verdict.reason, 1.0)
    raise AssertionError("more tries than there can be")


def test_reasons_of_a_failed_run():
    retried = course_of()
    for _ in range(2):
        retried.ended(Verdict((0,), (1, 2), (), 2), "quorum missed", 1.0)
    assert retried.next() == Finish("failed", "round 0 failed 2 times: quorum missed")
    retried.resumed()
    for _ in range(2):
        retried.ended(Verdict((0,), (1, 2), (), 2), "quorum missed", 1.0)
    assert retried.next() == Finish("failed", "round 0 failed 2 times more, at try 4: quorum missed")
    left = course_of(round_retries=5, max_failures=1)
    why = dict.fromkeys((1, 2), "failed in a round")
    assert left.ended(Verdict((0,), (1, 2), (), 2), "quorum missed", 1.0) == why
    assert left.next() == Finish("failed", "1 workers are left, quorum is 2")
    stopped = course_of(quorum=1, stop_on_loss=True)
    stopped.ended(Verdict((0,), (1, 2), (), 1), "quorum missed", 1.0)
    assert stopped.next() == Finish("failed", "worker 1, 2 failed and the job says on_loss = 'stop'")
    asked = course_of()
    asked.stop("asked to stop")
    assert asked.next() == Finish("interrupted", "asked to stop")


def test_a_failure_is_forgotten_after_a_success():
    course = course_of(rounds=9, workers=2, quorum=1, max_failures=2)
    lost, fine = Verdict((0,), (1,), (), 1), Verdict((0, 1), (), (), 1)
    given_up = [course.ended(v, None, 1.0) for v in (lost, fine, lost, fine, lost, lost)]
    assert given_up == [{}, {}, {}, {}, {}, {1: "failed in 2 rounds running"}]
    assert course.next() == Begin(6, 1, {0: 0}, None)


def test_who_was_not_waited_for_is_not_blamed():
    course = course_of(rounds=9, workers=2, quorum=1, max_failures=1)
    for _ in range(5):
        assert course.ended(Verdict((0,), (), (1,), 1), None, 1.0) == {}


def test_the_tries_of_a_round_are_one_failure():
    course = course_of(rounds=9, workers=2, quorum=2, round_retries=5, max_failures=2)
    lost, fine = Verdict((0,), (1,), (), 2), Verdict((0, 1), (), (), 2)
    assert not any(course.ended(lost, lost.reason, 1.0) for _ in range(3))
    course.ended(fine, None, 1.0)
    assert not any(course.ended(lost, lost.reason, 1.0) for _ in range(3)), "it had returned in between"
    assert course.next() == Begin(1, 4, {0: 0, 1: 1}, None)


def test_a_spare_comes_in_before_a_run_fails():
    """Where every worker is needed, one that always fails must not end the run while another stands by."""
    course = course_of(spares=2, quorum=3, round_retries=2)
    lost = Verdict((0, 2), (1,), (), 3)
    assert [course.ended(lost, lost.reason, 1.0) for _ in range(3)] == [
        {},
        {},
        {1: "failed in the last try of round 0: a spare takes over"},
    ]
    assert course.next() == Begin(0, 4, {0: 0, 2: 2, 3: 1}, None), "the number of a try is not used again"
    both = Verdict((2,), (0, 3), (), 3)
    for _ in range(2):
        assert course.ended(both, both.reason, 1.0) == {}
    assert list(course.ended(both, both.reason, 1.0)) == [0], "one spare for one worker"
    assert course.next() == Begin(0, 7, {2: 2, 3: 1, 4: 0}, None)
    for _ in range(3):
        assert course.ended(Verdict((2, 4), (3,), (), 3), "quorum missed", 1.0) == {}
    assert course.next() == Finish("failed", "round 0 failed 3 times more, at try 9: quorum missed")
    course.resumed()
    assert course.standby == 2, "everyone gets another chance, spares too"
    assert course.next() == Begin(0, 10, {0: 0, 1: 1, 2: 2}, None)


def test_a_spare_takes_the_shard_of_who_is_lost_for_good():
    course = course_of(spares=1, max_failures=1, rounds=5)
    assert list(course.ended(Verdict((0, 2), (1,), (), 2), None, 1.0)) == [1]
    assert course.next() == Begin(1, 1, {0: 0, 2: 2, 3: 1}, None)
    assert list(course.ended(Verdict((2, 3), (0,), (), 2), None, 1.0)) == [0]
    assert course.next() == Begin(2, 1, {2: 2, 3: 1}, None)


def test_a_learnt_deadline():
    auto = AutoDeadline(k=4, floor_s=10, ceiling_s=100)
    assert auto.of([]) == 100
    assert auto.of([20.0, 15.0]) == 60
    assert LEARNT_FROM == 3
    assert auto.of([20.0, 22.0, 24.0]) == 22 + 4 * 2
    assert auto.of([1.0] * 5) == 10
    assert auto.of([90.0, 50.0, 10.0]) == 100
    assert [auto.of([20.0, 22.0, 24.0], attempt) for attempt in (1, 2, 3)] == [30, 60, 100]
    course = course_of(rounds=9, deadline=auto)
    for seconds, deadline_s in ((20.0, 100), (22.0, 60), (24.0, 66)):
        assert course.next().deadline_s == deadline_s
        course.ended(Verdict((0, 1, 2), (), (), 2), None, seconds)
    assert course.next().deadline_s == 30
    course.ended(Verdict((0,), (1, 2), (), 2), "quorum missed", None)
    assert course.next().deadline_s == 60, "what failed gets longer"


def test_a_replayed_log_leads_to_the_same_place():
    live, tries = course_of(rounds=9, spares=1, max_failures=2), []
    ends = [
        Verdict((0, 1), (2,), (), 2),
        Verdict((0,), (1, 2), (), 2),
        Verdict((1, 3), (), (0,), 2),
    ]
    for verdict in ends:
        begin = live.next()
        live.ended(verdict, verdict.reason, 2.0)
        end = {
            "outcome": "failed" if verdict.reason else "ok",
            "reason": verdict.reason,
            "failed": list(verdict.failed),
            "late": list(verdict.late),
            "workers_s": 2.0,
        }
        aggregate = None if verdict.reason else {"ranks": list(verdict.survivors)}
        tries.append(Try(begin.number, 0, {"attempt": begin.attempt}, aggregate, end))
    again = course_of(rounds=9, spares=1, max_failures=2)
    assert replay(again, tries) is None
    assert again.next() == live.next()
    assert vars(again) == vars(live)


def test_a_log_that_does_not_add_up_is_refused():
    with pytest.raises(RunError, match="round 3 doesn't follow"):
        replay(course_of(), [Try(3, 0, {"attempt": 1})])
