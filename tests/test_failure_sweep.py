"""Up to 60 of 100 simulated workers fail in every round: the run ends, its log is honest and can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobs import read_log
from simulated import NOW, sim_job

from analyze.cli import run as analyze
from runner import jobfile, simulation, soak
from runner.runfolder import RunFolder

WAYS: dict[str, dict[str, Any]] = {
    "crash in push": {"what": "crash", "during": "push", "times": 9},
    "crash in training": {"what": "crash"},
    "crash in pull": {"what": "crash", "during": "pull", "times": 9},
    "hang in pull": {"what": "hang", "during": "pull", "times": 9},
    "hang in training": {"what": "hang"},
    "NaN": {"what": "nan"},
    "vanish": {"what": "vanish"},
}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("way", WAYS)
def test_a_share_of_the_workers_fails(tmp_path: Path, way: str, share: float):
    job = sim_job(
        tmp_path / "job",
        {**WAYS[way], "probability": share},
        sim={"train_s": {"uniform": [10, 20]}},
        workers=24,
        spares=2,
        rounds=4,
        policy={"quorum": 0.5, "max_failures": 6},
        deadlines={"round_s": 300, "push_s": 60, "pull_s": 60},
        train={"timeout_s": 100},
    )
    loaded = jobfile.load(job)
    files = RunFolder.create(tmp_path / "runs", "sweep", NOW)
    seen: list[dict[str, Any]] = []

    class Watch:
        def __call__(self, event: dict[str, Any]) -> None:
            seen.append(dict(event))

        def close(self) -> None: ...

    result = simulation.run(loaded, files, NOW, [Watch()])
    assert list(soak.mistakes(loaded.job, files, seen)) == []
    events = read_log(files.log)
    counts = [e["num_workers"] for e in events if e["kind"] == "aggregate"]
    assert all(count >= loaded.job.quorum == 12 for count in counts)
    assert (result.status, len(counts)) == ("completed", 4) if share < 0.4 else result.status != "interrupted"
    if share == 0.0:
        assert counts == [24] * 4
    elif way != "vanish":
        struck = [e for e in events if e.get("injected")]
        assert 0.5 * share < len({(e["round"], e["rank"]) for e in struck}) / 24 / (events[-1]["rounds"] or 1)
    if share == 0.6 and way in {"crash in training", "hang in pull"}:
        assert analyze(["summary", str(files.log)]) == 0
