"""The writer of the log: whole lines, exact times, no secret, one writer, and a clear end when it can't."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from jobs import assert_valid, read_log

from runner.errors import LogError
from schemas.events import (
    BODIES,
    MAX_LINE_BYTES,
    Exec,
    Metric,
    Push,
    PushStart,
    RoundEnd,
    RunStart,
    WorkerDown,
)
from schemas.text import event_line

SECRET = "s3cr3t-t0ken"


def down(detail: str = "x") -> WorkerDown:
    return WorkerDown(reason="lost", detail=detail, for_good=False)


def metric(**values: float) -> Metric:
    return Metric(values=values, num_samples=1.0)


def executed(tail: str, **more: object) -> Exec:
    given = {"exit_code": 0, "output_bytes": 1, "output_path": "x", "attempt": 1}
    return Exec(output_tail=tail, **{**given, **more})


def read(path: Path) -> list[dict]:
    return read_log(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_the_envelope(recorder_at, path):
    recorder = recorder_at()
    recorder.emit(down(), round=4, rank=2)
    recorder.emit(metric(loss=0.5))
    first, second = read(path)
    assert list(first)[:8] == ["v", "run", "seq", "t", "ts", "kind", "round", "rank"]
    assert (first["v"], first["run"], first["kind"]) == (1, "20260101-000000-t-0000", "worker_down")
    assert (first["round"], first["rank"], second["round"], second["rank"]) == (4, 2, None, None)
    assert first["ts"].endswith("Z")
    assert len(first["ts"]) == len("2026-01-01T00:00:00.000000Z")


def test_a_clock_that_jumps_never_takes_t_back(recorder_at, path):
    readings = iter([100.0, 101.0, 100.5, 50.0, 101.5])
    recorder = recorder_at(clock=lambda: next(readings))
    told = [recorder.emit(down()) for _ in range(4)]
    assert told == [1_000_000, 1_000_000, 1_000_000, 1_500_000]
    assert [e["t"] for e in read(path)] == [1.0, 1.0, 1.0, 1.5]


def test_a_clock_that_jumps_makes_no_negative_duration(recorder_at, path):
    readings = iter([0.0, 5.0, 2.0])
    recorder = recorder_at(clock=lambda: next(readings))
    began = recorder.now_us()
    recorder.emit(RoundEnd(survivors=1, total_nodes=1, outcome="ok"), since_us=began)
    (event,) = read(path)
    assert event["duration_s"] >= 0


def test_durations_are_exact_in_microseconds(recorder_at, path):
    steps = itertools.accumulate(itertools.cycle([0.1234567, 1e-6, 3600.0000004, 0.0]))
    recorder = recorder_at(clock=lambda: next(steps))
    starts = []
    for _ in range(50):
        starts.append(recorder.emit(PushStart(path="p", attempt=1)))
        recorder.emit(Push(path="p", size_bytes=1, attempt=1), since_us=starts[-1])
    ends = [e for e in read(path) if e["kind"] == "push"]
    assert [round(e["t"] * 1e6) - round(e["duration_s"] * 1e6) for e in ends] == starts


def test_secrets_reach_no_part_of_the_log(recorder_at, path):
    recorder = recorder_at(secrets=[SECRET, "", "s3cr3t"])
    job = {"a": [{"b": f"x{SECRET}y", SECRET: 1}, ("s3cr3t",)], "name": SECRET}
    recorder.emit(
        RunStart(
            job=job,
            total_nodes=1,
            versions={"x": SECRET},
            host=SECRET,
            pid=1,
            params_sha256=None,
            params_path=None,
            params_bytes=None,
            init_s=None,
        )
    )
    recorder.emit(executed(f"token {SECRET}{SECRET}!", error=f"bad {SECRET}"))
    recorder.emit(Metric(values={SECRET: 1.0}, num_samples=None))
    recorder.emit(down(SECRET + "x" * MAX_LINE_BYTES))
    text = path.read_text() + "".join(p.read_text() for p in (path.parent / "log").iterdir())
    assert "s3cr3t" not in text
    start, ran, reported, _ = read(path)
    assert start["job"] == {"a": [{"b": "x***y", "***": 1}, ["***"]], "name": "***"}
    assert ran["output_tail"] == "token ******!"
    assert reported["values"] == {"***": 1.0}


def test_a_secret_that_is_a_word_of_the_contract_harms_no_event(recorder_at, path):
    """A value such as "1" or "exec" is a bad secret, but the log must stay a log."""
    recorder = recorder_at(secrets=["exec", "v", "t", "kind", "ok", "round"])
    recorder.emit(executed("exec"))
    recorder.emit(RoundEnd(survivors=1, total_nodes=1, outcome="ok"), since_us=0)
    assert [e["kind"] for e in read(path)] == ["exec", "round_end"]


def test_listeners_see_what_is_in_the_log(recorder_at, path):
    seen: list[dict] = []
    recorder = recorder_at(secrets=[SECRET], listeners=[lambda event: seen.append(dict(event))])
    recorder.emit(down(SECRET))
    recorder.emit(metric(loss=1.0))
    assert seen == read(path)


@pytest.mark.parametrize("where", ["value", "nested", "key"])
def test_lone_surrogates(recorder_at, path, where):
    recorder = recorder_at()
    odd = "caf\udce9"
    if where == "value":
        recorder.emit(down(odd))
    elif where == "nested":
        recorder.emit(executed("x", error=odd))
    else:
        recorder.emit(Metric(values={odd: 1.0}, num_samples=None))
    assert b"caf?" in path.read_bytes()
    read(path)


@pytest.mark.parametrize("size", [MAX_LINE_BYTES - 400, MAX_LINE_BYTES, 10 * MAX_LINE_BYTES])
def test_a_line_has_64_kib_at_most_and_the_rest_is_beside_it(recorder_at, path, size):
    recorder = recorder_at()
    recorder.emit(down("x" * size), round=1, rank=0)
    recorder.emit(down("next"))
    lines = path.read_bytes().splitlines(keepends=True)
    assert all(len(line) <= MAX_LINE_BYTES for line in lines)
    long, _ = read(path)
    if size < MAX_LINE_BYTES - 200:
        assert "overflow_path" not in long
        assert long["detail"] == "x" * size
        return
    assert long["overflow_path"] == "log/event-0.json"
    whole = json.loads((path.parent / long["overflow_path"]).read_text())
    assert whole["detail"] == "x" * size
    assert {name: whole[name] for name in ("seq", "t", "kind", "round", "rank")} == {
        name: long[name] for name in ("seq", "t", "kind", "round", "rank")
    }


def test_a_long_object_goes_beside_the_line(recorder_at, path):
    recorder = recorder_at()
    values = {f"metric {i} " + "\u0416" * 80: i / 7 for i in range(1000)}
    recorder.emit(Metric(values=values, num_samples=3.0))
    assert max(len(line) for line in path.read_bytes().splitlines(keepends=True)) <= MAX_LINE_BYTES
    (event,) = read(path)
    assert (event["values"], event["num_samples"]) == ({}, 3.0)
    assert json.loads((path.parent / event["overflow_path"]).read_text())["values"] == values


def test_an_existing_log_is_never_written_to(recorder_at, path):
    path.write_text("precious\n")
    with pytest.raises(LogError, match="File exists"):
        recorder_at()
    assert path.read_text() == "precious\n"


def test_a_second_writer_is_refused(recorder_at, path):
    recorder_at()
    with pytest.raises(LogError):
        recorder_at()


def test_a_folder_that_is_missing(recorder_at, tmp_path):
    with pytest.raises(LogError, match="can't make the log"):
        recorder_at(path=tmp_path / "missing" / "log.jsonl")


def test_the_log_is_locked_until_it_is_closed(recorder_at, path):
    recorder = recorder_at()
    script = (
        "import fcntl, sys\nwith open(sys.argv[1]) as f:\n"
        " try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n except BlockingIOError: sys.exit(9)"
    )
    ask = [sys.executable, "-c", script, path]
    assert subprocess.run(ask, check=False).returncode == 9
    recorder.close()
    recorder.close()
    assert subprocess.run(ask, check=False).returncode == 0


def test_children_do_not_keep_the_lock(recorder_at, path):
    recorder = recorder_at()
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        recorder.close()
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        child.kill()
        child.wait()


def failing(number: int):
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


def test_after_a_failed_write_nothing_is_written_any_more(recorder_at, path, monkeypatch):
    recorder = recorder_at()
    recorder.emit(down("first"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        with pytest.raises(LogError, match="No space left"):
            recorder.emit(down("second"))
    with pytest.raises(LogError, match="No space left"):
        recorder.emit(down("third"))
    assert [e["detail"] for e in read(path)] == ["first"]


def test_a_write_that_takes_only_a_part_is_the_last(recorder_at, path, monkeypatch):
    recorder = recorder_at()
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
        with pytest.raises(LogError, match="only 10 of"):
            recorder.emit(down())
    with pytest.raises(LogError):
        recorder.emit(down())
    assert path.stat().st_size == 10


def test_an_overflow_file_that_can_not_be_written(recorder_at, path):
    recorder = recorder_at()
    (path.parent / "log").rmdir()
    with pytest.raises(LogError, match="too long for a line"):
        recorder.emit(down("x" * MAX_LINE_BYTES))
    with pytest.raises(LogError):
        recorder.emit(down())
    assert path.read_bytes() == b""


@pytest.mark.trio
async def test_flush_that_fails_is_the_end(recorder_at, path, monkeypatch):
    recorder = recorder_at()
    recorder.emit(down())
    await recorder.flush()
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(LogError, match="Input/output"):
        await recorder.flush()
    with pytest.raises(LogError):
        recorder.emit(down())


@pytest.mark.trio
async def test_a_flush_syncs_an_overflow_file_too(recorder_at, path, monkeypatch):
    recorder = recorder_at()
    recorder.emit(down("x" * MAX_LINE_BYTES))
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    await recorder.flush()
    folder = path.parent / "log"
    assert synced == [str(folder / "event-0.json"), str(folder), str(path)]
    await recorder.flush()
    assert synced[3:] == [str(path)]


def test_numbers_beyond_64_bits_are_no_crash(recorder_at, path):
    recorder = recorder_at()
    recorder.emit(
        RunStart(
            job={"rounds": 10**30, "env": {"N": -(10**25)}},
            total_nodes=1,
            versions={},
            host="h",
            pid=1,
            params_sha256=None,
            params_path=None,
            params_bytes=None,
            init_s=None,
        )
    )
    (event,) = read(path)
    assert float(event["job"]["rounds"]) == 1e30


def test_paths_are_relative_to_the_log(recorder_at, tmp_path):
    recorder = recorder_at()
    assert recorder.relative(tmp_path / "log" / "a" / "b.npz") == "log/a/b.npz"
    assert recorder.relative(tmp_path.parent / "x") == "../x"


def test_every_kind_has_a_test_of_validity():
    """``assert_valid`` itself: an event that is wrong must not pass for right."""
    with pytest.raises(AssertionError):
        assert_valid({"kind": "worker_down"})
    for body in BODIES:
        assert body.kind in event_line({"kind": body.kind, "t": 1.0})


def gathering(recorder_at):
    """Return a recorder of simulated time, which stands still."""
    return recorder_at(clock=lambda: 0.0, began=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.trio
async def test_lines_of_simulated_time_are_written_together_and_none_is_split(recorder_at, path):
    recorder = gathering(recorder_at)
    recorder.emit(down())
    assert path.read_bytes() == b"", "nobody waits for it"
    await recorder.flush()
    assert len(read(path)) == 1
    for _ in range(500):
        recorder.emit(down("x" * 300))
        assert path.read_bytes().endswith(b"\n")
    assert 100 < len(read(path)) < 501
    recorder.emit(down("y" * 60_000))
    recorder.close()
    events = read(path)
    assert [len(e["detail"]) for e in events] == [1, *[300] * 500, 60_000]


@pytest.mark.trio
async def test_gathered_lines_that_can_not_be_written(recorder_at, path, monkeypatch):
    recorder = gathering(recorder_at)
    recorder.emit(down())
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        with pytest.raises(LogError, match="No space left"):
            await recorder.flush()
    with pytest.raises(LogError, match="No space left"):
        recorder.emit(down())
    recorder.close()
    assert path.read_bytes() == b"", "nothing is written after what is missing"


def test_gathered_lines_that_can_not_be_written_at_the_end(recorder_at, monkeypatch):
    recorder = gathering(recorder_at)
    recorder.emit(down())
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        with pytest.raises(LogError, match="No space left"):
            recorder.close()
    recorder.close()
