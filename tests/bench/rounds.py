"""Wall time of a round of the runner as a ratio to the floor, interleaved, and the runner's peak memory.

Usage: python tests/bench/rounds.py [--repeat N]
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CASES = ((4, 1, 10), (16, 1, 4), (4, 100, 8))
"""Workers, MB of params, rounds."""
TARGET = 1.15
MEMORY_TARGET = 4.0


def floor(folder: Path, workers: int, rounds: int) -> list[float]:
    command = [sys.executable, str(HERE / "floor.py"), str(workers), str(folder / "floor.npy"), str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(line) for line in done.stdout.split()]


def runner(folder: Path) -> tuple[list[float], float]:
    """Run the job; return the seconds of each round, from its start to the next one's, and peak MB.

    The last round counts to its own end: what follows is the run's, as the floor's exit is.
    """
    program = Path(sys.executable).with_name("runner")
    process = subprocess.Popen(
        [program, "start", "--quiet", "--runs", str(folder / "runs"), str(folder / "job.toml")],
        stdout=subprocess.PIPE,
        text=True,
    )
    peak = 0.0

    def watch() -> None:
        nonlocal peak
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            with suppress(OSError, IndexError):
                peak = max(peak, int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6)
            done.wait(0.02)

    done = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    out, _ = process.communicate()
    done.set()
    thread.join()
    log = Path(out.strip())
    events = [json.loads(line) for line in log.read_text().splitlines()]
    if events[-1]["status"] != "completed":
        sys.exit(f"the run failed: {events[-1]['reason']}")
    shutil.rmtree(folder / "runs")  # or its dirty pages are written while the floor runs
    starts = [e["t"] for e in events if e["kind"] == "round_start"]
    starts.append(next(e["t"] for e in reversed(events) if e["kind"] == "round_end"))
    return [b - a for a, b in itertools.pairwise(starts)], peak


def case(folder: Path, workers: int, megabytes: int, rounds: int, repeat: int) -> None:
    array = np.random.default_rng(0).standard_normal(megabytes * 250_000).astype(np.float32)
    np.save(folder / "init.npy", array)
    np.save(folder / "floor.npy", array)
    (folder / "job.toml").write_text(
        f'name = "bench"\nrounds = {rounds}\nworkers = {workers}\n'
        '[params]\nfile = "init.npy"\nkeep = 1\n'
        f'[train]\ncommand = ["{{python}}", {json.dumps(str(HERE / "step.py"))}]\n'
    )
    floors: list[float] = []
    runs: list[float] = []
    peak = 0.0
    for _ in range(repeat):
        floors += floor(folder, workers, rounds)
        seconds, used = runner(folder)
        runs += seconds
        peak = max(peak, used)
    low, high = statistics.median(floors), statistics.median(runs)
    print(
        f"{workers:>3} x {megabytes:>3} MB  floor {low:7.3f} s  runner {high:7.3f} s  "
        f"ratio {high / low:5.2f} (target {TARGET})  peak {peak:6.0f} MB"
        + (f" = {peak / megabytes:.1f} arrays (target {MEMORY_TARGET:.0f})" if megabytes >= 100 else ""),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    print("a round, training command adds a constant; medians, interleaved")
    for workers, megabytes, rounds in CASES:
        with tempfile.TemporaryDirectory() as folder:
            case(Path(folder), workers, megabytes, rounds, repeat)


if __name__ == "__main__":
    main()
