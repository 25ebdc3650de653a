"""The log when the disk or somebody else is against it: nothing untrue in it, one sentence, exit code 1."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from functools import partial
from pathlib import Path

import pytest
from jobs import (
    COPY,
    PATIENCE_S,
    RUNNER,
    Started,
    environ,
    eventually,
    processes_under,
    runner,
    unmeasured,
    write_job,
)
from simulated import sim_job


def waiting(folder: Path) -> Path:
    """Write a job whose second round waits until the file `go` is there."""
    script = f"[ $ROUNDLOG_ROUND = 0 ] || while [ ! -e {folder}/go ]; do sleep 0.02; done; {COPY}"
    return write_job(folder, train={"command": script}, rounds=3)


def whole(log: Path) -> list[dict]:
    """Return the events of a log whose last line may be cut off; all others must be whole, in order."""
    *lines, last = log.read_bytes().split(b"\n")
    events = [json.loads(line) for line in lines]
    assert [e["seq"] for e in events] == list(range(len(events)))
    if last and not last.endswith(b"}"):  # or all but its newline was written
        with pytest.raises(json.JSONDecodeError):
            json.loads(last)
    return events


def committed_is_true(log: Path, events: list[dict]) -> None:
    """See that what the log says was made is there, unless newer ones have taken its place."""
    made = [e for e in events if e["kind"] == "aggregate" and e["error"] is None]
    for event in made[-1:]:
        assert (log.parent / event["params_path"]).stat().st_size > 0
    ended = [e["round"] for e in events if e["kind"] == "round_end" and e["outcome"] == "ok"]
    assert ended == [e["round"] for e in made][: len(ended)]


@pytest.mark.parametrize("way", ["moved", "deleted", "replaced", "folder moved"])
def test_a_log_that_is_taken_away(tmp_path: Path, way: str):
    with Started(waiting(tmp_path)) as started:
        eventually(lambda: list(started.runs.glob("*/workers/*/params-0001.npy")), "the second round")
        (log,) = started.runs.glob("*.jsonl")
        kept = tmp_path / "kept.jsonl"
        if way == "deleted":
            log.unlink()
        elif way == "folder moved":
            started.runs.rename(tmp_path / "elsewhere")
            kept = tmp_path / "elsewhere" / log.name
        else:
            log.rename(kept)
            if way == "replaced":
                log.write_text("another\n")
        (tmp_path / "go").touch()
        run = started.end()
    assert run.code == 1
    assert run.err.count("error: ") == 1, run.err
    assert ("put the log back" in run.err) == (way != "replaced")
    if way != "folder moved":
        word = "deleted" if way == "deleted" else "moved away"
        assert f"it was {word} while it was being written" in run.err
    if way == "replaced":
        assert log.read_text() == "another\n"
    if way != "deleted":
        events = whole(kept)
        assert not [e for e in events if e["kind"] == "run_end" and e["status"] == "completed"]
    assert not processes_under(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 1900, 2600, 3700, 6000])
def test_a_disk_that_is_full_after_so_many_bytes(tmp_path: Path, size: int):
    """A limit on the size of files stands in for the disk: a write that goes beyond takes a part or none."""
    job = sim_job(tmp_path, rounds=9, workers=2)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    runs = tmp_path / "runs"
    done = runner("start", job, "--runs", runs, code=1, preexec_fn=limit, env=unmeasured())
    assert done.stderr.count("error: ") == 1, done.stderr
    (log,) = runs.glob("*.jsonl")
    assert log.stat().st_size <= size
    events = whole(log)
    assert "run_end" not in {e["kind"] for e in events[:-1]}
    committed_is_true(log, events)


def test_a_full_disk_under_real_workers(tmp_path: Path):
    job = write_job(tmp_path, rounds=30)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (9000, 9000))
    runs = tmp_path / "runs"
    done = runner("start", "-q", job, "--runs", runs, code=1, preexec_fn=limit, env=unmeasured())
    assert done.stderr.count("error: ") == 1, done.stderr
    (log,) = runs.glob("*.jsonl")
    committed_is_true(log, whole(log))
    assert not processes_under(tmp_path)
    assert f"hint: to go on, make room on the disk, then: runner resume {log}" in done.stderr
    runner("resume", "-q", log)
    assert json.loads(log.read_bytes().splitlines()[-1])["status"] == "completed"


def test_a_folder_that_is_read_only(tmp_path: Path):
    job = write_job(tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o555)
    if os.access(runs, os.W_OK):  # nobody is refused to root; /sys refuses all
        runs = Path("/sys/roundlog-runs")
    done = runner("start", job, "--runs", runs, code=1)
    assert done.stderr.count("error: ") == 1
    assert "can't make the run's folder" in done.stderr
    assert done.stdout == ""


def test_a_pipe_that_is_full_holds_up_nothing(tmp_path: Path):
    """Nobody reads stderr, and more is said than a pipe takes: the run and the process end all the same."""
    job = sim_job(tmp_path, rounds=40, workers=20)
    runs = tmp_path / "runs"
    process = subprocess.Popen(
        [RUNNER, "start", "-v", job, "--runs", runs],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(),
    )
    try:
        eventually(
            lambda: any('"kind":"run_end"' in log.read_text() for log in runs.glob("*.jsonl")), "the end"
        )
        assert process.wait(timeout=PATIENCE_S) == 0
        out, _ = process.communicate()
        assert whole(Path(out.decode().strip()))[-1]["status"] == "completed"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("size", "simulated"), [("44k", False), ("100k", False), ("8k", True), ("100k", True)]
)
def test_a_real_disk_that_is_full(tmp_path: Path, size: str, simulated: bool):
    """Once there is room again, the run is gone on with; but for one that never had params."""
    changes = {"rounds": 30, "workers": 4}
    job = sim_job(tmp_path, **changes) if simulated else write_job(tmp_path, **changes)
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size="$1" none "$2" && { code=0; "$3" start "$4" --runs "$2/runs" || code=$?; '
        'cp -a "$2/runs" "$5"; exit $code; }'
    )
    command = ["unshare", "-rm", "sh", "-c", script, "sh", size, disk, RUNNER, job, kept]
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", disk], check=False).returncode:
        if os.environ.get("ROUNDLOG_REQUIRE_ALL"):
            pytest.fail("no disk can be mounted here, and nothing may be skipped")
        pytest.skip("no disk can be mounted here")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=unmeasured(), timeout=PATIENCE_S
    )
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stderr.count("error: ") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "Errno" not in done.stderr, done.stderr
    assert list(disk.iterdir()) == []
    (log,) = kept.glob("*.jsonl")
    events = whole(log)
    committed_is_true(log, events)
    assert not processes_under(tmp_path)
    if events and events[0]["params_sha256"]:
        runner("resume", "-q", log)
        after = [json.loads(line) for line in log.read_bytes().splitlines() if line.endswith(b"}")]
        assert (after[-1]["status"], after[-1]["rounds"]) == ("completed", 30)
