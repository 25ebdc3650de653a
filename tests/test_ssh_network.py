"""Runs over a network of real hosts, each in a namespace: cables cut, servers stopped, machines rebooted."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import Run, Started, eventually, processes_under, write_job
from network import Machine, Network

BUILTIN = Path(__file__).parents[1] / "runner" / "builtin"
ROUNDS = 8
HEALTHY = 0.964
"""Accuracy after these rounds when nothing happens."""
NOISE = 0.02
"""What one round more or less makes out, and twice what one image in a hundred does."""
GATE = 'if [ -e "$HOME/hold" ]; then : >"$HOME/held"; while [ -e "$HOME/hold" ]; do sleep 0.1; done; fi; '
"""Holds the training command of a machine where its faults are to strike."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("network"), 4) as made:
        yield made


def host(machine: Machine, **more: Any) -> dict[str, Any]:
    sshd = machine.sshd
    return {
        "host": machine.address,
        "key": str(sshd.key),
        "host_key": sshd.host_key,
        "folder": str(sshd.home / "work"),
        **more,
    }


def digits_job(folder: Path, machines: list[Machine]) -> Path:
    """Write the built-in job for these hosts."""
    folder.mkdir()
    for file in BUILTIN.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    text = (BUILTIN / "job.toml").read_text()
    ours = "command = " + json.dumps(f"{GATE}exec {sys.executable} train.py")
    text = text.replace('command = ["{python}", "train.py"]', ours)
    text = re.sub(r"(?m)^(workers|rounds|DIGITS_FAIL) = .*\n", "", text)
    more = "[ssh]\nlost_s = 1.5\nconnect_s = 5\n[policy]\nquorum = 2\nretries = 0\nmax_failures = 8\n"
    tables = [
        "[[worker]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in host(machine).items())
        for machine in machines
    ]
    path = folder / "job.toml"
    path.write_text(f"rounds = {ROUNDS}\n" + text + more + "".join(tables))
    return path


class Watched(Started):
    """A run whose log is read while it goes on."""

    def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for an event, and return it."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            for log in self.runs.glob("*.jsonl"):
                for line in log.read_text().splitlines(keepends=True):
                    event = json.loads(line) if line.endswith("\n") else {"kind": None}
                    if event["kind"] == kind and all(event[name] == value for name, value in fields.items()):
                        found.append(event)
            return bool(found)

        eventually(there, f"{kind} {fields}", 20)
        return found[0]


def accuracy(run: Run) -> float:
    return float(run.kind("metric", rank=None)[-1]["values"]["accuracy"])


def held(machine: Machine) -> None:
    eventually((machine.sshd.home / "held").exists, "the training", 20)


def test_the_digits_learn_while_hosts_are_cut_off_stopped_and_rebooted(tmp_path: Path, network: Network):
    _, cut, stopped, rebooted = network.machines
    path = digits_job(tmp_path / "job", network.machines)
    (cut.sshd.home / "hold").touch()
    with Watched(path, within=network.hub.enter) as watched:
        held(cut)
        cut.shape("32kbit")  # the next params would take 4 s
        (cut.sshd.home / "hold").unlink()
        watched.until("push_start", round=1, rank=1)
        before = cut.received_bytes()
        eventually(lambda: cut.received_bytes() > before + 3000, "a part of the push")
        cut.cut()
        watched.until("worker_down", rank=1)
        cut.unshape()
        cut.mend()
        watched.until("worker_up", rank=1, round=2)
        (stopped.sshd.home / "hold").touch()
        held(stopped)
        stopped.sshd.signal(signal.SIGSTOP)
        second = watched.until("worker_down", rank=2)
        stopped.sshd.stop()
        (stopped.sshd.home / "hold").unlink()
        stopped.sshd.start()
        watched.until("worker_up", rank=2, round=second["round"] + 1)
        (rebooted.sshd.home / "hold").touch()
        held(rebooted)
        rebooted.reboot()
        (rebooted.sshd.home / "hold").unlink()
        run = watched.end()
    assert run.code == 0, run.err
    assert run.one("run_end")["status"] == "completed"
    first, second, third = (run.kind("worker_down", rank=rank)[0] for rank in (1, 2, 3))
    assert [e["reason"] for e in (first, second, third)] == ["lost"] * 3
    silence = "the connection was lost: it no longer answers"
    assert first["detail"] == second["detail"] == silence
    assert third["detail"] == "the connection was lost: Connection reset by peer"
    for kind, down in (("push", first), ("exec", second), ("exec", third)):
        (failed,) = (e for e in run.kind(kind, rank=down["rank"]) if e["error"])
        assert (failed["round"], failed["error"]) == (down["round"], down["detail"])
        (end,) = run.kind("round_end", round=down["round"])
        assert end["failed"] == [down["rank"]]
    assert run.kind("round_end")[-1]["survivors"] == 4, "all came back"
    assert abs(accuracy(run) - HEALTHY) <= NOISE
    assert not processes_under(path.parent)


@pytest.mark.parametrize(
    ("rate", "count"),
    [("400kbit", 20_000), ("24mbit", 1_200_000)],  # 160 KB in 3.2 s; 9.6 MB, by OpenSSH's client, likewise
    ids=["small", "large"],
)
def test_a_slow_link_that_is_full_is_no_loss(tmp_path: Path, network: Network, rate: str, count: int):
    slow = network.machines[0]
    path = write_job(
        tmp_path / "job",
        workers=None,
        worker=[host(slow)],
        rounds=1,
        ssh={"lost_s": 1.5},
        policy={"retries": 0},
    )
    np.save(path.parent / "params.npy", np.random.default_rng(0).standard_normal(count))
    slow.shape(rate)
    try:
        with Started(path, within=network.hub.enter) as started:
            run = started.end()
    finally:
        slow.unshape()
    assert run.code == 0, run.err
    assert run.one("push")["duration_s"] > 2, "it was slow"
    assert not run.kind("worker_down")
