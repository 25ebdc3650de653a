"""Runs that are killed, stopped or broken, and gone on with: same params, one log, nothing left behind.

Coordinators are killed with SIGKILL at moments drawn from a seed; ROUNDLOG_KILLS sets how many.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import COPY, RUNNER, Run, Started, environ, eventually, marked, read_log, runner, start, write_job
from simulated import sim_job

KILLS = int(os.environ.get("ROUNDLOG_KILLS", "5"))
TRAIN = """
import os
import numpy as np
seed = [int(os.environ["ROUNDLOG_" + name]) for name in ("SEED", "ROUND", "RANK")]
params = np.load(os.environ["ROUNDLOG_PARAMS"])
drawn = np.random.default_rng(seed).standard_normal(params.shape)
with open(os.environ["ROUNDLOG_WEIGHTS"], "wb") as file:
    np.save(file, params + drawn.astype(params.dtype))
"""
STAYS = """
import os
import numpy as np
from roundlog_rounds import rounds
for r in rounds():
    params = np.load(r.params)
    drawn = np.random.default_rng([r.round, int(os.environ["ROUNDLOG_RANK"])]).standard_normal(params.shape)
    with open(r.weights, "wb") as file:
        np.save(file, params + drawn.astype(params.dtype))
"""


def learning_job(folder: Path, **changes) -> Path:
    """Write a job whose weights depend on seed, round and rank, with evaluation and stateful optimizer."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAIN)
    given = {
        "rounds": 3,
        "workers": 2,
        "train": {"command": ["{python}", "train.py"], "files": ["train.py"]},
        "evaluate": {"command": "echo '{\"seen\": 1}' > $ROUNDLOG_METRICS"},
        "aggregate": {"optimizer": "fedadam"},
    }
    return write_job(folder, **{**given, **changes})


def resume(log: Path, *args: object, code: int = 0) -> Run:
    done = runner("resume", log, *args, code=code)
    return Run(done.returncode, done.stdout, done.stderr, log)


def endless(folder: Path, **changes) -> Path:
    """Write a job whose second round waits until the file `go` is there."""
    wait = f"[ $ROUNDLOG_ROUND = 0 ] || while [ ! -e {folder}/go ]; do sleep 0.02; done; "
    train = {"command": wait + COPY, **changes.pop("train", {})}
    return write_job(folder, train=train, **changes)


def wait_for(runs: Path, kind: str, count: int = 1) -> Path:
    """Wait until the only log has so many events of a kind; return it."""

    def there() -> bool:
        return any(log.read_text().count(f'"kind":"{kind}"') >= count for log in runs.glob("*.jsonl"))

    eventually(there, kind)
    (log,) = runs.glob("*.jsonl")
    return log


def test_killed_at_any_moment_it_ends_with_the_same_params(tmp_path: Path):
    whole = start(learning_job(tmp_path / "whole"))
    expected = whole.params.read_bytes()
    seconds = whole.one("run_end")["t"]
    rng = random.Random(20261201)
    resumed = sessions = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        with Started(learning_job(folder)) as started:
            eventually(lambda runs=started.runs: any(runs.glob("*.jsonl")), "a log")
            time.sleep(rng.uniform(0, seconds * 1.1))  # the moment is what is tested
        (log,) = started.runs.glob("*.jsonl")
        done = runner("resume", log, "-q", code=None)
        if done.returncode:
            assert done.returncode == 1
            assert "nothing to resume" in done.stderr
            continue
        resumed += 1
        events = read_log(log, torn=True)
        assert run_end(events)["status"] == "completed"
        assert (log.parent / run_end(events)["params_path"]).read_bytes() == expected
        committed = [e["round"] for e in events if e["kind"] == "aggregate" and e["error"] is None]
        assert committed == [0, 1, 2]
        ended = [e["round"] for e in events if e["kind"] == "round_end" and e["outcome"] == "ok"]
        assert ended == committed
        tries = [e["round"] for e in events if e["kind"] == "round_start"]
        assert len(tries) <= 4, "at most the open round is repeated"
        sessions += sum(e["kind"] == "run_resume" for e in events)
        assert not marked(log.stem)
    assert resumed >= KILLS // 2
    assert sessions == resumed


def test_a_command_that_stays_ends_with_its_coordinator_and_goes_on_with_the_next(tmp_path: Path):
    def job(folder: Path) -> Path:
        train = {"files": ["train.py", "{rounds}"], "resident": True}
        made = learning_job(folder, train={"command": ["{python}", "train.py"], **train})
        (folder / "train.py").write_text(STAYS)
        return made

    whole = start(job(tmp_path / "whole"), "-q")
    for kind, count in (("exec_start", 3), ("pull_start", 4)):
        with Started(job(tmp_path / kind), "-q") as started:
            log = wait_for(started.runs, kind, count)
            started.process.kill()
            started.process.wait()
        resume(log, "-q")
        assert (log.parent / run_end(read_log(log, torn=True))["params_path"]).read_bytes() == (
            whole.params.read_bytes()
        )
        assert not marked(log.stem)


@pytest.mark.parametrize("share", [0.03, 0.4, 0.77])
def test_a_simulation_that_was_cut_short_ends_with_the_same_params(tmp_path: Path, share: float):
    """What a kill leaves is a log that ends anywhere: here it is cut off within a round."""
    faults = [{"what": what, "probability": 0.2} for what in ("crash", "nan", "vanish")]
    sim = {"train_s": {"lognormal": {"median": 10, "sigma": 0.3}}}
    given = {"rounds": 6, "workers": 20, "policy": {"max_failures": 99, "quorum": 1}, "params": {"keep": 99}}
    whole = start(sim_job(tmp_path, *faults, sim=sim, aggregate={"optimizer": "diloco"}, **given), "-q")
    expected = whole.params.read_bytes()
    survivors = [e["survivors"] for e in whole.kind("round_end")]
    data = whole.log.read_bytes()
    whole.log.write_bytes(data[: round(share * len(data))])
    run = resume(whole.log, "-q")
    events = read_log(whole.log, torn=True)
    assert (whole.log.parent / run_end(events)["params_path"]).read_bytes() == expected
    ended = [e for e in events if e["kind"] == "round_end" and e["outcome"] == "ok"]
    assert [e["survivors"] for e in ended] == survivors
    assert max(e["attempt"] for e in events if e["kind"] == "round_start") == 2
    assert run.code == 0


def run_end(events: list[dict]) -> dict:
    return [e for e in events if e["kind"] == "run_end"][-1]


def test_what_a_dead_coordinator_left_running_is_ended_and_strangers_are_not(tmp_path: Path):
    once = "[ $ROUNDLOG_ROUND = 0 ] || [ -e again ] || { touch again; sleep 600; }; "
    with Started(write_job(tmp_path, train={"command": once + COPY})) as started:
        log = wait_for(started.runs, "exec_start", 4)
        eventually(lambda: marked(log.stem), "training")
        started.process.kill()
        started.process.wait()
    assert marked(log.stem)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        run = resume(log)
        assert stranger.poll() is None
        stranger.communicate(b"\n")
    assert not marked(log.stem)
    assert "left running" in run.one("run_resume")["reason"]
    assert [e["attempt"] for e in run.kind("round_start")] == [1, 1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on(tmp_path: Path, number: signal.Signals):
    with Started(endless(tmp_path)) as started:
        log = wait_for(started.runs, "exec_start", 4)
        started.end(number)
    (tmp_path / "go").touch()
    run = resume(log)
    assert [e["status"] for e in run.kind("run_end")] == ["interrupted", "completed"]
    assert run.one("run_resume")["reason"] == "interrupted"
    assert [e["round"] for e in run.kind("aggregate")] == [0, 1]


def test_stop_ends_after_the_round(tmp_path: Path):
    with Started(endless(tmp_path, rounds=3)) as started:
        log = wait_for(started.runs, "exec_start", 4)
        runner("stop", log)
        (tmp_path / "go").touch()
        run = started.end()
    assert run.code == 130
    assert run.kind("run_end")[-1]["reason"] == "asked to stop"
    assert run.kind("run_end")[-1]["rounds"] == 2
    assert "nothing to stop" in runner("stop", log, code=1).stderr
    assert resume(log).kind("run_end")[-1]["rounds"] == 3


def test_a_failed_run_gets_another_chance(tmp_path: Path):
    command = f'[ -e {tmp_path}/mended ] && cp "$ROUNDLOG_PARAMS" "$ROUNDLOG_WEIGHTS"'
    failed = start(write_job(tmp_path, train={"command": command}), code=1)
    (tmp_path / "mended").touch()
    run = resume(failed.log)
    assert run.kind("run_end")[-1]["status"] == "completed"
    attempts = [(e["round"], e["attempt"]) for e in run.kind("round_start")]
    assert len(set(attempts)) == len(attempts)


def test_a_torn_tail_is_closed_and_told(tmp_path: Path):
    with Started(endless(tmp_path)) as started:
        log = wait_for(started.runs, "exec_start", 4)
        started.process.kill()
        started.process.wait()
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"v":1,"run":"' + b"\0" * 9)
    (tmp_path / "go").touch()
    resume(log)
    assert log.read_bytes().startswith(whole + b'{"v":1,"run":"' + b"\0" * 9 + b"\n")
    (told,) = [e for e in read_log(log, torn=True) if e["kind"] == "run_resume"]
    assert (told["broken_offset"], told["broken_bytes"]) == (len(whole), 23)


def test_a_torn_tail_that_was_told_of_is_no_damage(tmp_path: Path):
    with Started(endless(tmp_path, rounds=3)) as started:
        log = wait_for(started.runs, "exec_start", 4)
        started.process.kill()
        started.process.wait()
    with log.open("ab") as file:
        file.write(b'{"v":1,"ru')
    with subprocess.Popen(
        [RUNNER, "resume", log], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as again:
        wait_for(log.parent, "run_resume")
        again.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    resume(log)
    sessions = [e["session"] for e in read_log(log, torn=True) if e["kind"] == "run_resume"]
    assert sessions == [1, 2]


def test_damage_in_the_middle_is_refused(tmp_path: Path):
    with Started(endless(tmp_path)) as started:
        log = wait_for(started.runs, "exec_start", 4)
        started.end(signal.SIGINT)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], b"garbage\n", *lines[4:]]))
    before = log.read_bytes()
    assert "damaged" in runner("resume", log, code=1).stderr
    assert log.read_bytes() == before


def test_params_that_are_not_the_logs_are_refused(tmp_path: Path):
    with Started(endless(tmp_path)) as started:
        log = wait_for(started.runs, "exec_start", 4)
        run = started.end(signal.SIGINT)
    before = log.read_bytes()
    run.params.write_bytes(run.params.read_bytes()[:-1] + b"\x01")
    assert "SHA-256 differs" in runner("resume", log, code=1).stderr
    run.params.unlink()
    assert "can't read the params to go on with" in runner("resume", log, code=1).stderr
    assert log.read_bytes() == before, "nothing was done, so nothing is in the log"


def test_a_job_that_changed_in_a_way_that_matters_is_refused(tmp_path: Path):
    job = endless(tmp_path, rounds=3, train={"files": ["extra.txt"]})
    (tmp_path / "extra.txt").write_text("a")
    text = job.read_text()
    with Started(job) as started:
        log = wait_for(started.runs, "exec_start", 4)
        started.end(signal.SIGINT)
    (tmp_path / "go").touch()
    job.write_text(text.replace('"rounds" = 3', '"rounds" = 4'))
    said = runner("resume", log, code=2).stderr
    assert "rounds: received 4, was 3" in said
    job.write_text(text)
    (tmp_path / "extra.txt").write_text("b")
    assert "extra.txt was changed" in runner("resume", log, code=2).stderr
    (tmp_path / "extra.txt").write_text("a")
    job.unlink()
    assert resume(log).kind("run_end")[-1]["status"] == "completed"


def test_nothing_to_resume(tmp_path: Path):
    run = start(write_job(tmp_path))
    before = run.log.read_bytes()
    assert "the run is complete" in runner("resume", run.log, code=1).stderr
    assert run.log.read_bytes() == before
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "nothing to resume" in runner("resume", empty, code=1).stderr
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"seq": 0, "t": 0, "ts": "2026-01-01T00:00:00Z", "kind": "x"}) + "\n")
    assert "not a log" in runner("resume", other, code=1).stderr
    assert "can't open" in runner("resume", tmp_path / "none.jsonl", code=1).stderr


def test_a_log_that_is_being_written_is_not_taken_over(tmp_path: Path):
    with Started(endless(tmp_path)) as started:
        log = wait_for(started.runs, "exec_start", 4)
        assert "another process is writing" in runner("resume", log, code=1).stderr
        (tmp_path / "go").touch()
        assert started.end().code == 0
    assert not [e for e in read_log(log) if e["kind"] == "run_resume"]


def test_a_clock_that_went_back_two_hours(tmp_path: Path):
    with Started(endless(tmp_path)) as started:
        log = wait_for(started.runs, "exec_start", 4)
        started.process.kill()
        started.process.wait()
    lines = log.read_text().splitlines()
    last = json.loads(lines[-1])
    last["ts"] = "2099-01-01T00:00:00.000000Z"
    log.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    (tmp_path / "go").touch()
    assert resume(log).kind("run_end")[-1]["status"] == "completed"


def test_a_second_signal_ends_at_once(tmp_path: Path):
    job = write_job(tmp_path, train={"command": "trap '' TERM INT; sleep 600 & wait; sleep 600"})
    process = subprocess.Popen(
        [RUNNER, "start", job, "--runs", tmp_path / "runs"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ(),
    )
    log = wait_for(tmp_path / "runs", "exec_start", 2)
    eventually(lambda: len(marked(log.stem)) >= 2, "training")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    eventually(lambda: not marked(log.stem), "their end")


def test_a_method_that_failed_is_mended_and_gone_on_with(tmp_path: Path):
    """Once is enough: it would fail again, after another training of all."""
    method = tmp_path / "mine.py"
    method.write_text("def mean(inputs):\n    return {} if inputs.number else inputs.params\n")
    job = write_job(tmp_path, aggregate={"method": "mine:mean"}, rounds=3)
    run = start(job, code=1)
    (failed,) = [e for e in run.kind("round_end") if e["outcome"] == "failed"]
    assert (failed["round"], len(run.kind("round_start"))) == (1, 2)
    assert run.one("run_end")["reason"].startswith(
        "round 1 failed: no aggregate: mine:mean returned no array"
    )
    assert "mend it, then resume" in run.err
    method.write_text("def mean(inputs):\n    return inputs.params\n")
    resumed = resume(run.log)
    assert resumed.one("run_resume")["reason"] == "failed; mine.py was changed"
    assert resumed.kind("run_end")[-1]["status"] == "completed"
