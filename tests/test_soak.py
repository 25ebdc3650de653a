"""The soak: random runs are honest, and what would be dishonest is seen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import read_log, runner
from simulated import NOW, sim_job

from runner import jobfile, simulation, soak
from runner.runfolder import RunFolder

SECONDS = 8.0


def test_random_seeds():
    """Bounded by the clock: a slow machine tries fewer. The schema is looked at here, too."""
    first = time.time_ns() // 10**6 % 10**9
    until = time.monotonic() + SECONDS
    statuses = set()

    def check(log: Path) -> None:
        statuses.add(read_log(log)[-1]["status"])

    seed = first
    while time.monotonic() < until:
        wrong = soak.soak(seed, check)
        assert not wrong, f"runner soak --seeds {seed}: {wrong}"
        seed += 1
    assert statuses <= {"completed", "failed"}


def test_a_seed_gives_the_same_case_and_the_cases_differ():
    assert soak.case(7) == soak.case(7)
    cases = [soak.case(seed) for seed in range(200)]
    assert {fault.what for case in cases for fault in case.job.sim.faults} == {
        "crash",
        "hang",
        "slow",
        "nan",
        "shape",
        "vanish",
        "partition",
    }
    assert {case.chaos is None for case in cases} == {True, False}


def test_the_command_line(tmp_path: Path):
    assert "3 seeds, 0 failed" in runner("soak", "--seeds", "4-6").stdout
    assert "1 seeds, 0 failed" in runner("soak", "--seeds", "9").stdout
    assert runner("soak", code=2).stdout == ""
    assert runner("soak", "--seeds", "5-1", code=2).stdout == ""


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> tuple[Any, RunFolder]:
    folder = tmp_path_factory.mktemp("honest")
    loaded = jobfile.load(sim_job(folder / "job", {"what": "nan", "ranks": [1], "rounds": [1]}, rounds=3))
    files = RunFolder.create(folder / "runs", "t", NOW)
    simulation.run(loaded, files, NOW)
    return loaded.job, files


def lie(events: list[dict], kind: str, **changes: Any) -> None:
    event = [e for e in events if e["kind"] == kind][1]
    event.update(changes)


LIES = {
    "seq has gaps": lambda events: events.pop(7),
    "t goes back": lambda events: events[-1].update(t=0.0),
    "the contract doesn't have": lambda events: events[9].update(wat=1),
    "the run has no end": lambda events: events.pop(),
    "are not each counted once": lambda events: lie(events, "aggregate", ranks=[0, 2, 2]),
    "were never let in": lambda events: lie(events, "aggregate", ranks=[0, 1, 2]),
    "quorum is 2": lambda events: lie(events, "aggregate", ranks=[0], num_workers=1),
    "a second aggregate": lambda events: events.insert(
        -2, {**[e for e in events if e["kind"] == "aggregate"][-1]}
    ),
    "another round were pulled": lambda events: lie(events, "pull", path="weights-0007.npy"),
    "is accounted for twice": lambda events: lie(events, "round_end", failed=[1, 1]),
    "took part": lambda events: lie(events, "round_end", failed=[]),
    "committed in the order": lambda events: lie(events, "aggregate", round=0),
    "run_end tells of": lambda events: events[-1].update(rounds=9),
    "bytes of 1000000 got across": lambda events: lie(events, "push", arrived_bytes=5),
    "not what was observed": lambda events: events[3].update(path="x"),
}


@pytest.mark.parametrize("said", LIES)
def test_a_lie_is_seen(honest, tmp_path: Path, said: str):
    job, files = honest
    events = [json.loads(line) for line in files.log.read_text().splitlines()]
    assert list(soak.mistakes(job, files, events)) == []
    seen = [dict(event) for event in events]
    LIES[said](events)
    changed = RunFolder(files.run, tmp_path / "changed.jsonl", tmp_path)
    changed.log.write_text("".join(json.dumps(event) + "\n" for event in events))
    found = list(soak.mistakes(job, changed, seen))
    assert any(said in what for what in found), found
