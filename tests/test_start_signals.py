"""The real command line: how it is ended from outside, and what it shows where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import (
    COPY,
    RUNNER,
    Started,
    environ,
    eventually,
    processes_under,
    read_log,
    runner,
    start,
    write_job,
)

BUSY = "echo up > up; trap '' TERM; setsid sleep 600 & sleep 600 & sleep 600"


def ups(folder: Path) -> int:
    return len(list(folder.glob("runs/*/workers/*/up")))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_in_mid_training(tmp_path: Path, number: signal.Signals, code: int):
    with Started(write_job(tmp_path, train={"command": BUSY})) as started:
        eventually(lambda: ups(tmp_path) == 2, "training")
        began = time.monotonic()
        run = started.end(number)
    assert time.monotonic() - began < 5
    assert run.code == code
    assert run.log.is_file()
    end = run.one("run_end")
    assert (end["status"], end["reason"]) == ("interrupted", f"interrupted by {number.name}")
    assert run.one("round_end")["outcome"] == "interrupted"
    assert {e["error"] for e in run.kind("exec")} == {"cancelled"}
    assert not list(processes_under(tmp_path))
    assert digest(run) == run.one("run_start")["params_sha256"]


def digest(run) -> str:
    return subprocess.run(
        ["sha256sum", run.params], capture_output=True, text=True, check=True
    ).stdout.split()[0]


def test_ctrl_c_again_and_again(tmp_path: Path):
    with Started(write_job(tmp_path, train={"command": BUSY})) as started:
        eventually(lambda: ups(tmp_path) == 2, "training")
        for _ in range(5):
            started.process.send_signal(signal.SIGINT)
        run = started.end(signal.SIGINT)
    assert run.code == 130, "whether the signals came one by one or as one"
    assert not list(processes_under(tmp_path))


def test_ctrl_c_while_initial_params_are_made(tmp_path: Path):
    job = write_job(tmp_path, params={"file": None, "command": "echo up > up; sleep 600"})
    with Started(job) as started:
        eventually((tmp_path / "up").exists, "the params command")
        run = started.end(signal.SIGINT)
    assert run.code == 130
    assert run.events[-1]["kind"] == "run_end"
    assert run.events[-1]["status"] == "interrupted"
    assert not list(processes_under(tmp_path))


def test_ctrl_c_in_the_evaluation(tmp_path: Path):
    job = write_job(tmp_path, evaluate={"command": "echo up > up; sleep 600"})
    with Started(job) as started:
        eventually((tmp_path / "up").exists, "the evaluation")
        run = started.end(signal.SIGINT)
    assert run.code == 130
    assert run.one("exec", rank=None)["error"] == "cancelled"
    end = run.one("run_end")
    assert (end["status"], end["rounds"]) == ("interrupted", 1)
    assert run.one("round_end")["survivors"] == 2, "the aggregate was made and counts"
    assert not list(processes_under(tmp_path))


def test_two_runs_at_once_leave_each_other_alone(tmp_path: Path):
    """One waits in its evaluation while another of the same job goes from its beginning to its end."""
    wait = 'if test -n "$SLOW"; then echo up > up; until test -e go; do sleep 0.01; done; fi'
    job = write_job(tmp_path, rounds=1, evaluate={"command": wait})
    with Started(job, env=environ(SLOW="1")) as slow:
        eventually((tmp_path / "up").exists, "the evaluation")
        quick = start(job)
        (tmp_path / "go").write_text("")
        slowed = slow.end()
    for run in (quick, slowed):
        assert run.code == 0
        assert run.one("exec", rank=None)["error"] is None
    assert quick.log != slowed.log


def test_the_log_is_locked_while_the_run_lives(tmp_path: Path):
    with Started(write_job(tmp_path, train={"command": BUSY})) as started:
        eventually(lambda: ups(tmp_path) == 2, "training")
        (log,) = (tmp_path / "runs").glob("*.jsonl")
        locked = subprocess.run(["flock", "-n", log, "true"], check=False).returncode
        started.end(signal.SIGINT)
    assert locked == 1
    assert subprocess.run(["flock", "-n", log, "true"], check=False).returncode == 0


def test_quiet_shows_nothing(tmp_path: Path):
    assert start(write_job(tmp_path), "--quiet").err == ""


def test_lines(tmp_path: Path):
    run = start(
        write_job(tmp_path, workers=3, train={"command": f"test $ROUNDLOG_RANK = 1 && exit 3; {COPY}"})
    )
    lines = run.err.splitlines()
    assert any(line.startswith("\u2500") and "round 0: 3 workers" in line for line in lines)
    assert any("round 0: 2/3 survivors" in line for line in lines)
    assert [line for line in lines if line.startswith("!!") and "w1" in line and "exit code 3" in line]
    assert any("aggregate" in line and "|W|" in line and "delta" in line for line in lines)
    assert not any("_start" in line for line in lines if "run_start" not in line)
    assert "\x1b" not in run.err
    assert f"report: analyze report {run.log}" in run.err


def test_verbose_shows_beginnings(tmp_path: Path):
    run = start(write_job(tmp_path), "-v")
    assert run.err.count("push_start") == run.err.count("exec_start") == run.err.count("pull_start") == 4


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"NO_COLOR": "1"},
        {"TERM": "dumb", "FORCE_COLOR": None},
    ],
    ids=str,
)
def test_poor_terminals(tmp_path: Path, env: dict[str, str | None]):
    script = f"{COPY}; printf 'l\\303\\266ss \\377 \\033[31m1\\n'"
    run = start(write_job(tmp_path, rounds=1, train={"command": script}), env=environ(**env))
    assert "\x1b" not in run.err
    assert run.kind("exec")[0]["output_tail"] == "l\u00f6ss \ufffd [31m1"


def shell(script: str, job: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script, "sh", RUNNER, job, job.parent / "runs"],
        capture_output=True,
        text=True,
        env=environ(**more),
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("script", "quiet"),
    [
        ('"$1" start "$2" --runs "$3" 2>&-', True),
        ('"$1" start "$2" --runs "$3" </dev/null 2> >(head -1 >/dev/null); code=$?; exit $code', False),
        ('"$1" start "$2" --runs "$3" </dev/null 2> >(true)', False),
        ('"$1" start "$2" --runs "$3" <&- 2>/dev/null', False),
    ],
    ids=["closed", "head -1", "gone", "stdin closed"],
)
def test_a_stderr_that_is_closed_never_stops_the_run(tmp_path: Path, script: str, quiet: bool):
    job = write_job(tmp_path, rounds=3, train={"command": COPY})
    done = shell(script, job)
    (log,) = (tmp_path / "runs").glob("*.jsonl")
    assert read_log(log)[-1]["status"] == "completed"
    assert done.stdout == f"{log}\n"
    assert done.returncode == 0, done.stderr


def test_a_stdout_that_is_closed_is_no_traceback(tmp_path: Path):
    done = shell('"$1" start "$2" --runs "$3" | true', write_job(tmp_path, rounds=1))
    assert "Traceback" not in done.stderr
    (log,) = (tmp_path / "runs").glob("*.jsonl")
    assert read_log(log)[-1]["status"] == "completed"


def test_a_runs_folder_that_can_not_be_made(tmp_path: Path):
    job = write_job(tmp_path)
    done = runner("start", job, "--runs", tmp_path / "job.toml" / "runs", code=1)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "Not a directory" in line


def test_a_progress_bar_needs_a_terminal(tmp_path: Path):
    assert "round 0" in start(write_job(tmp_path, rounds=1), "--progress").err


@pytest.mark.parametrize("options", [[], ["--progress"]], ids=["lines", "bar"])
def test_on_a_terminal(tmp_path: Path, options: list[str]):
    job = write_job(tmp_path, workers=3, train={"command": f"test $ROUNDLOG_RANK = 1 && exit 3; {COPY}"})
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [RUNNER, "start", job, "--runs", tmp_path / "runs", *options],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environ(TERM="xterm-256color", COLUMNS="80", NO_COLOR=None),
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the far end is closed
        pass
    os.close(ours)
    process.communicate(timeout=30)
    assert process.returncode == 0
    text = shown.decode()
    assert "\x1b[" in text
    assert (
        ("2/2 rounds" in text.replace("\x1b[32m", "").replace("\x1b[0m", ""))
        if options
        else "round 1" in text
    )
    assert "exit code 3" in text


def test_wrong_usage(tmp_path: Path):
    for args in (["start", "--nonsense"], ["nonsense"], ["check"], []):
        done = runner(*args, code=2)
        assert done.stdout == ""
        assert done.stderr
    assert runner("--version").stdout.startswith("runner")
    assert not (tmp_path / "runs").exists()


def test_a_wrong_job_file_starts_nothing(tmp_path: Path):
    job = write_job(tmp_path, rounds=0, workers="two", nonsense=1)
    done = runner("start", job, "--runs", tmp_path / "runs", code=2)
    assert done.stdout == ""
    assert done.stderr.count("error: ") == 3
    assert done.stderr.count("hint: ") == 1
    assert not (tmp_path / "runs").exists()
    assert runner("start", tmp_path / "missing.toml", code=2).stderr.startswith("error: ")


def test_whole_numbers_without_end(tmp_path: Path):
    """Allowed or not, it must be said before anything is started, and never end in a traceback."""
    job = write_job(tmp_path, rounds=1, train={"env": {"N": 10**30}, "output_limit_bytes": 10**25})
    done = runner("start", job, "--runs", tmp_path / "runs", "-q", code=None)
    if done.returncode == 2:
        assert "train" in done.stderr
    else:
        assert done.returncode == 0
        assert json.loads(Path(done.stdout.strip()).read_text().splitlines()[0])["kind"] == "run_start"


def test_a_log_that_can_not_grow_ends_the_run_with_one_clear_error(tmp_path: Path):
    job = write_job(tmp_path, rounds=50, train={"command": COPY})
    done = subprocess.run(
        [
            "sh",
            "-c",
            'ulimit -f 16; exec "$@"',
            "sh",
            RUNNER,
            "start",
            job,
            "--runs",
            tmp_path / "runs",
            "-q",
        ],
        capture_output=True,
        text=True,
        env=environ(COVERAGE_PROCESS_START=None, COVERAGE_PROCESS_CONFIG=None),
        timeout=30,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
    assert "can't write the log" in done.stderr or "could be written" in done.stderr


SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "runner.cli":
            print("importing", flush=True)
            time.sleep(60)

import runner.entry
sys.meta_path.insert(0, Slow())
runner.entry.main()
"""


def test_ctrl_c_while_it_is_still_imported():
    command = [sys.executable, "-c", SLOW_IMPORT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert err == ""
