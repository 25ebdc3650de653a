"""Runs jobs of simulated workers in this process; for tests alone."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs import read_log, write_job

from runner import jobfile, simulation
from runner.runfolder import RunFolder

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUIET = {"train_s": 10, "latency_s": 0, "line_bytes_per_s": 1_000_000, "params_bytes": 1_000_000}
"""Ten seconds of training; a transfer takes one."""


def sim_job(folder: Path, *faults: dict[str, Any], sim: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write a job of simulated workers: `sim` changes what they are like, the rest is as of ``write_job``."""
    given = {**QUIET, **(sim or {}), "faults": list(faults)}
    train = {"command": None, **changes.pop("train", {})}
    changes = {"workers": 4, "params": None, "train": train, **changes}
    return write_job(folder, sim=given, **changes)


def simulate(*faults: dict[str, Any], sim: dict[str, Any] | None = None, **changes: Any) -> list[dict]:
    """Run such a job and return its events, each valid."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loaded = jobfile.load(sim_job(folder / "job", *faults, sim=sim, **changes))
        files = RunFolder.create(folder / "runs", loaded.job.name, NOW)
        simulation.run(loaded, files, NOW)
        return read_log(files.log)


def canonical(events: list[dict]) -> list[tuple]:
    """Return what must be the same whenever the seed is, in an order that doesn't depend on chance."""
    host = {"v", "run", "seq", "pid", "host", "versions", "job", "ts", "init_s"}
    kept = [{k: v for k, v in e.items() if k not in host} for e in events]
    for event in kept:
        for name in ("params_path", "output_path"):
            event.pop(name, None)
    order = [
        (e["t"], -1 if e["round"] is None else e["round"], -1 if e["rank"] is None else e["rank"])
        for e in kept
    ]
    return sorted(
        ((*key, e["kind"], repr(sorted(e.items(), key=str))) for key, e in zip(order, kept, strict=True))
    )


def of(events: list[dict], kind: str, **fields: Any) -> list[dict]:
    return [e for e in events if e["kind"] == kind and all(e[k] == v for k, v in fields.items())]
