"""How a run stood faults: what counts as one, and what the three figures and the two times say."""

from __future__ import annotations

import logs
import pytest
from logs import Log
from test_analyze_views import ask, started

from analyze import told
from analyze.database import opened
from analyze.report import stories


def played() -> Log:
    """Three rounds of two workers, ten seconds each: one is killed in the second, late in the third."""
    log = started(workers=2, rounds=3)
    for round_ in range(3):
        log.t = 10.0 * round_
        log.round_start(round_)
        if round_ == 0:
            log.up(0, 0)
            log.up(1, 0)
        log.t += 4
        if round_ == 1:
            killed = {"exit_code": None, "error": "the worker was killed", "injected": "kill"}
            log.add("exec", 1, 1, output_tail="", output_bytes=0, attempt=1, duration_s=4.0, **killed)
            log.add("worker_down", 1, 1, reason="lost", detail="killed", for_good=False, injected="kill")
        if round_ == 2:
            log.up(1, 2)
            log.add("reject", 2, 1, reason="late", detail="not waited for")
            ended = "ended: 1 had delivered"
            log.add("exec", 2, 1, output_tail="", output_bytes=0, attempt=1, duration_s=4.0, error=ended)
        log.t = 10.0 * (round_ + 1)
        log.round_end(round_, 2 if round_ == 0 else 1)
    log.end(3)
    return log


CASES = [
    (
        "SELECT round, rank, what, injected, t_s, to_commit_s, to_strength_s FROM faults",
        [(1, 1, "training failed", "kill", 14.0, 6.0, None)],
    ),
    (
        "SELECT workers, round(participation, 6), committed, tries, faults, injected FROM resilience",
        [(2, 0.666667, 3, 3, 1, 1)],
    ),
    # Worker 0 is up for 30 s, worker 1 from 0 to 14 and from 24 to 30; of 60.
    ("SELECT round(liveness, 6) FROM resilience", [(round(50 / 60, 6),)]),
    (
        "SELECT to_commit_s, longest_to_commit_s, elapsed_s, commits_per_hour FROM resilience",
        [(6.0, 6.0, 30.0, 360.0)],
    ),
    ("SELECT calm_rounds, calm_s, throughput FROM resilience", [(2, 10.0, 1.0)]),
]


@pytest.mark.parametrize(("query", "want"), CASES)
def test_a_kill_and_one_who_is_late(tmp_path, query, want):
    assert ask(played(), tmp_path, query) == want


@pytest.mark.parametrize(("reason", "what"), [("late", "training failed"), ("deadline", "not in time")])
def test_one_who_is_late_by_a_fault_has_met_one(tmp_path, reason, what):
    log = started(workers=2, rounds=1)
    log.round_start(0)
    log.t += 5
    log.add("reject", 0, 1, reason=reason, detail="not waited for")
    log.add(
        "exec",
        0,
        1,
        output_tail="",
        output_bytes=0,
        attempt=1,
        duration_s=5.0,
        error="ended",
        injected="slow",
    )
    log.round_end(0, 1)
    log.end(1)
    got = ask(log, tmp_path, "SELECT rank, what, injected, to_commit_s FROM faults")
    assert got == [(1, what, "slow", 0.0)]


@pytest.mark.parametrize("after_s", [1e9, 61.5])
def test_a_fault_that_struck_after_its_call_ended_is_dated_by_its_end(tmp_path, after_s):
    log = started(workers=1, rounds=1)
    log.round_start(0)
    log.t += 60
    slow = {"exit_code": 0, "error": None, "injected": "slow", "injected_after_s": after_s}
    log.add("exec", 0, 0, output_tail="", output_bytes=0, attempt=1, duration_s=60.0, **slow)
    log.t += 1
    log.round_end(0, 1)
    log.end(1)
    assert ask(log, tmp_path, "SELECT round(to_commit_s, 6) FROM faults") == [(1.0,)]


def test_a_fault_is_dated_when_it_struck_and_not_when_its_call_was_given_up(tmp_path):
    log = started(workers=2, rounds=1)
    log.round_start(0)
    log.t += 60
    hung = {
        "exit_code": None,
        "error": "timed out after 1 min",
        "injected": "freeze",
        "injected_after_s": 20.0,
    }
    log.add("exec", 0, 1, output_tail="", output_bytes=0, attempt=1, duration_s=60.0, **hung)
    log.t += 1
    slow = {"exit_code": 0, "error": None, "injected": "slow", "injected_after_s": 0.0}
    log.add("exec", 0, 0, output_tail="", output_bytes=0, attempt=1, duration_s=61.0, **slow)
    log.round_end(0, 1)
    log.end(1)
    got = ask(log, tmp_path, "SELECT rank, what, injected, round(to_commit_s, 6) FROM faults ORDER BY seq")
    assert got == [(1, "training failed", "freeze", 41.0), (0, "training", "slow", 61.0)]


@pytest.mark.parametrize(("injected", "want"), [("freeze", [(1, "freeze")]), (None, [])])
def test_what_the_end_of_a_run_cancelled_is_a_fault_only_if_one_held_it_up(tmp_path, injected, want):
    log = started(workers=2, rounds=1)
    log.round_start(0)
    log.t += 60
    cut = {"exit_code": None, "error": "cancelled", "injected": injected}
    log.add("exec", 0, 1, output_tail="", output_bytes=0, attempt=1, duration_s=60.0, **cut)
    log.round_end(0, 0, outcome="interrupted", reason="the run was ended")
    log.end(0, status="interrupted")
    assert ask(log, tmp_path, "SELECT rank, injected FROM faults") == want


def test_a_run_without_faults_is_not_told_of(tmp_path):
    log = logs.big(3, 4)
    with opened([log.write(tmp_path)]) as database:
        (story,) = stories(database)
    assert story.resilience is not None
    if not story.resilience["faults"]:
        assert told.resilience_sentences(story.resilience) == []


def test_the_sentences_and_a_comparison(tmp_path):
    path = played().write(tmp_path)
    calm = started(workers=2, rounds=1)
    calm.run = "calm"
    for event in calm.events:
        event["run"] = "calm"
    calm.round_start(0)
    calm.t += 5
    calm.round_end(0, 2)
    calm.end(1)
    other = tmp_path / "calm.jsonl"
    other.write_bytes(b"".join(line + b"\n" for line in calm.lines()))
    with opened([path, other]) as database:
        (story,) = stories(database, other)
    said = told.resilience_sentences(story.resilience, story.against)
    assert said[0] == "1 fault (the first of a worker in a try of a round), 1 of them by --chaos or [sim]"
    assert said[1].startswith("liveness 83.3 %")
    assert said[-1] == "throughput 50.0 % of that of run calm, in committed rounds an hour"
    assert "there was none" in said[5]


def test_who_could_not_be_reached_left_a_trace(tmp_path):
    log = started(workers=2, rounds=2)
    for round_ in range(2):
        log.round_start(round_)
        log.add("exec", round_, 0, exit_code=0, output_tail="", output_bytes=0, attempt=1, duration_s=1.0)
        for attempt in (1, 2) if round_ == 0 else ():
            down = {"reason": "connect", "detail": "no route", "for_good": False, "attempt": attempt}
            log.add("worker_down", round_, 1, **down)
        log.round_end(round_, 1)
    log.end(2)
    told = ask(log, tmp_path, "SELECT round, attempt, what, text FROM losses WHERE rank = 1 ORDER BY seq")
    assert told == [(0, 1, "left", "connect: no route")] * 2 + [(1, None, "no trace", "in round 1")]
