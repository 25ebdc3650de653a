"""How runs over SSH end: interrupted, killed, beside a frozen machine; and what is left then."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from jobs import Started, eventually, read_log, runner
from sshd import Sshd
from sshjobs import clients, host, job, large_job, left_running, wait_for


def test_a_killed_coordinator_s_commands_are_ended_by_resume(tmp_path: Path, server: Sshd):
    with Started(large_job(tmp_path, server)) as started:
        (log,) = wait_for(started, '"kind":"exec_start"', 4)
        eventually(lambda: list(server.home.rglob("once")), "training")
        assert len(clients(tmp_path)) == 2
        started.process.kill()
        started.process.wait()
    assert left_running(log.stem)
    done = runner("resume", log)
    events = read_log(Path(done.stdout.strip()), torn=True)
    assert events[-1]["status"] == "completed"
    (resumed,) = [e for e in events if e["kind"] == "run_resume"]
    assert "left running" in resumed["reason"], "the far side is here, too"
    assert not left_running(log.stem)
    assert not clients(tmp_path)


def test_what_can_not_be_ended_on_a_frozen_machine_is_said(tmp_path: Path, server: Sshd):
    with Started(large_job(tmp_path, server)) as started:
        (log,) = wait_for(started, '"kind":"exec_start"', 4)
        eventually(lambda: list(server.home.rglob("once")), "training")
        server.signal(signal.SIGSTOP)
        run = started.end(signal.SIGINT)
        server.signal(signal.SIGCONT)
    assert run.code == 130
    down = run.kind("worker_down")
    assert {(e["rank"], e["reason"], e["round"]) for e in down} == {(0, "lost", None), (1, "lost", None)}
    where = f"worker 1 (ssh:127.0.0.1:{server.port})"
    assert f"{where} was out of reach at the end: what it ran may still run there" in run.err
    assert f"to go on: runner resume {log}, which ends that first" in run.err
    done = runner("resume", log)
    assert "out of reach" not in done.stderr
    assert not left_running(log.stem)


def test_a_second_interrupt_says_what_it_leaves(tmp_path: Path, server: Sshd):
    with Started(large_job(tmp_path, server)) as started:
        (log,) = wait_for(started, '"kind":"exec_start"', 4)
        eventually(lambda: list(server.home.rglob("once")), "training")
        server.signal(signal.SIGSTOP)  # so that the first takes its time

        def ended() -> bool:
            started.process.send_signal(signal.SIGINT)
            return started.process.poll() is not None

        eventually(ended, "the end")
        server.signal(signal.SIGCONT)
        _, err = started.process.communicate()
    assert "commands may still run on the workers" in err
    assert f"runner resume {log}" in err
    assert not clients(tmp_path)
    runner("resume", log)
    assert not left_running(log.stem)


@pytest.mark.parametrize("lines", [4, 13, 22])
def test_an_interrupt_at_any_moment_leaves_nothing(tmp_path: Path, server: Sshd, lines: int):
    with Started(large_job(tmp_path, server)) as started:
        wait_for(started, "\n", lines)
        run = started.end(signal.SIGINT)
    assert run.code == 130
    assert not left_running(run.log.stem)
    assert not clients(tmp_path)
    assert not list(server.home.rglob(".*.part"))
    assert not [line for line in run.err.splitlines() if "Warning" in line or "Exception" in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_running(tmp_path: Path, server: Sshd, number: signal.Signals):
    fork = "sh -c 'sleep 600 & sleep 600' & setsid sleep 600 & sleep 600"
    with Started(job(tmp_path, [host(server)] * 3, train={"command": fork})) as started:
        wait_for(started, '"kind":"exec_start"', 3)
        eventually(lambda: len(left_running(next(started.runs.glob("*.jsonl")).stem)) >= 12, "all processes")
        run = started.end(number)
    assert run.code == 128 + number
    assert run.events[-1]["status"] == "interrupted"
    eventually(lambda: not left_running(run.log.stem), "their end", 5)
    assert not [line for line in run.err.splitlines() if "Error" in line or "Warning" in line]
