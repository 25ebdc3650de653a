"""Cost of a simulated worker and round at three sizes of fleet, and what a fleet keeps under chaos.

Usage: python tests/bench/sim.py [--rounds N] [--most WORKERS]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNNER = Path(sys.executable).with_name("runner")
SIZES = (100, 1_000, 10_000)
TARGET_RATIO = 1.5
TARGET_S, TARGET_MB = 60, 1000
TARGET_THROUGHPUT, TARGET_PARTICIPATION = 0.977, 0.5
JOB = """
name = "bench"
rounds = {rounds}
workers = {workers}
seed = 1
[sim]
train_s = {{ lognormal = {{ median = 60, sigma = 0.1 }} }}
latency_s = {{ uniform = [0.02, 0.2] }}
line_bytes_per_s = {{ lognormal = {{ median = 12_500_000, sigma = 0.5 }} }}
uplink_bytes_per_s = 1_250_000_000
downlink_bytes_per_s = 1_250_000_000
params_bytes = 40_000_000
"""


@dataclass(frozen=True)
class Ran:
    """A run: its log, the seconds it took, those of the processor, and the most memory in MB."""

    log: Path
    seconds: float
    cpu_s: float
    megabytes: float


def run(folder: Path, job: Path, *options: str) -> Ran:
    """Run a job."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [RUNNER, "start", "-q", job, "--runs", folder / "runs", *options], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"the run failed: {out}")
    cpu_s = used.ru_utime + used.ru_stime
    return Ran(Path(out.strip()), time.perf_counter() - began, cpu_s, used.ru_maxrss * 1024 / 1e6)


def job(folder: Path, workers: int, rounds: int) -> Path:
    path = folder / f"{workers}-{rounds}.toml"
    path.write_text(JOB.format(workers=workers, rounds=rounds))
    return path


def fleets(folder: Path, rounds: int, most: int) -> None:
    # Costs are the processor's time, which others on the machine change less. That of a run that has one
    # worker is the program's start.
    start = min(run(folder, job(folder, 1, 1)).cpu_s for _ in range(2))
    costs: dict[int, float] = {}
    for workers in [size for size in SIZES if size <= most]:
        times = max(rounds, 20_000 // workers)  # a shorter run costs about as much as its start
        ran = run(folder, job(folder, workers, times))
        ran.log.unlink()
        costs[workers] = (ran.cpu_s - start) / workers / times
        targets = f" (target {TARGET_S} s, {TARGET_MB} MB)" if (workers, times) == (10_000, 20) else ""
        print(
            f"{workers:>6} workers x {times:>3} rounds: {ran.seconds:6.1f} s, "
            f"{ran.megabytes:4.0f} MB{targets}, "
            f"{costs[workers] * 1e6:5.0f} us a worker and round",
            flush=True,
        )
    ratio = max(costs.values()) / min(costs.values())
    print(f"dearest to cheapest: {ratio:.2f} (target {TARGET_RATIO})", flush=True)


def ends(log: Path) -> tuple[float, float]:
    """Return committed rounds a second and the mean share of survivors."""
    events = [json.loads(line) for line in log.read_text().splitlines() if '"kind":"round_end"' in line]
    committed = sum(e["outcome"] == "ok" for e in events)
    return committed / events[-1]["t"], sum(e["survivors"] / e["total_nodes"] for e in events) / len(events)


def chaos(folder: Path) -> None:
    job = EXAMPLES / "chaos-sim.toml"
    calm, _ = ends(run(folder, job).log)
    struck, participation = ends(run(folder, job, "--chaos", str(EXAMPLES / "chaos.toml")).log)
    print(
        f"32 workers under 125 faults an hour: {struck / calm:.1%} of the fault-free throughput "
        f"(target {TARGET_THROUGHPUT:.1%}), {participation:.1%} of the workers in a round "
        f"(target over {TARGET_PARTICIPATION:.0%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        chaos(Path(name))
        fleets(Path(name), options.rounds, options.most)


if __name__ == "__main__":
    main()
