"""A live log reaches up to now: who hangs, and since when, is why one looks at it."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import logs
import pytest

from analyze import report, sofar
from analyze.database import opened

AN_HOUR_US = 3_600_000_000


def hanging() -> logs.Log:
    """Return a log of two workers: one has delivered, the other trains."""
    log = logs.Log(workers=2)
    log.start()
    for rank in range(2):
        log.up(rank)
    log.round_start(0)
    log.add("exec_start", 0, 1, command="python train.py", attempt=1)
    log.add("exec_start", 0, 0, command="python train.py", attempt=1)
    log.t += 2
    log.add(
        "exec",
        0,
        0,
        exit_code=0,
        output_tail="",
        attempt=1,
        error=None,
        duration_s=2,
        output_bytes=0,
        output_path=None,
    )
    return log


@pytest.fixture
def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sofar, "silent_us", lambda *_: AN_HOUR_US)


def test_what_is_open_in_a_running_run_reaches_up_to_now(tmp_path: Path, an_hour_later: None):
    path = hanging().write(tmp_path)
    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with opened([path]) as database:
            (story,) = report.stories(database)
            (chart,) = report.charts_of(database, story)
    (work,) = story.open_work
    assert work["so_far_s"] == 3602
    (round_,) = story.rounds
    assert round_["duration_us"] == round_["end_us"] - round_["start_us"] == AN_HOUR_US + 2_000_000
    assert round_["longest_train_s"] == 3602
    assert story.run["train_us"] == round_["longest_train_us"]
    scheduler, idle, busy = chart.lanes
    assert not scheduler.bars
    assert [(bar.state, bar.end_us - bar.start_us) for bar in idle.bars] == [
        ("train", 2_000_000),
        ("wait", AN_HOUR_US),
    ]
    assert [(bar.state, bar.end_us) for bar in busy.bars] == [("train", chart.end_us)]


def test_a_crashed_run_is_open_until_its_log_stops(
    tmp_path: Path, analyze: Callable[..., tuple[int, str, str]]
):
    code, out, _ = analyze("summary", hanging().write(tmp_path))
    assert code == 0
    assert "w1: train open for 2.00 s or more, until the log stops (python train.py)" in out


@pytest.mark.parametrize(
    ("changes", "after_s", "silent_us"),
    [
        ({}, 25, 25_000_000),
        ({}, -25, 0),
        ({"status": "crashed"}, 25, 0),
        ({"job": '{"sim":{"line_bytes_per_s":1}}'}, 25, 0),
        ({"job": '{"sim":null}'}, 25, 25_000_000),
        ({"job": None}, 25, 25_000_000),
        ({"last_event": "nonsense"}, 25, 0),
        ({"last_event": None}, 25, 0),
    ],
)
def test_silence(changes: dict[str, str | None], after_s: float, silent_us: int):
    run = {"status": "running", "last_event": "2026-01-01T00:00:00.000000Z", "job": "{}", **changes}
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=after_s)
    assert sofar.silent_us(run, now) == silent_us
