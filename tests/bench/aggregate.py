"""Time and memory of making new params of 16 x 100 MB of weights, next to NumPy's own mean of the same files;
then the memory of every method by the number of workers.

Usage: python tests/bench/aggregate.py [--repeat N]

NumPy loads all files, stacks and averages them; roundlog reads them, averages in double precision, tells
norms and cosines, hashes, writes and syncs the new params. Each runs in a process of its own, interleaved.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WORKERS, MEGABYTES = 16, 100
FLEETS, SMALLER = (4, 16, 64), 25
"""Workers, and MB of each one's weights, where only memory is measured."""
METHODS = ("mean", "fedavgm", "fedadam", "diloco", "median", "trimmed_mean", "krum", "geometric_median")
TARGET = 1.3
PEAK = """
from pathlib import Path
def peak():  # not ru_maxrss, which begins at that of the process this one was started by
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6
"""
NUMPY = """
import sys, time
import numpy as np
began = time.perf_counter()
np.mean(np.stack([np.load(path) for path in sys.argv[3:]]), axis=0)
print(time.perf_counter() - began, peak())
"""
ROUNDLOG = """
import sys, time
from threadpoolctl import threadpool_limits
from runner.aggregate import Contribution, StateFile, aggregate
from runner.optimizers import DEFAULTS
from runner.recipe import Recipe
from runner.tiles import Plain
old, target, *paths = map(Path, sys.argv[2:])
kind = sys.argv[1]
optimizer = kind if kind in DEFAULTS else None
recipe = Recipe(optimizer=optimizer, settings=DEFAULTS[optimizer]) if optimizer else Recipe(method=kind)
given = [Contribution(rank, Plain.of(path), 1.0, 1.0) for rank, path in enumerate(paths)]
states = [StateFile(slot, None, target.with_name(slot + ".npz")) for slot in recipe.slots]
with threadpool_limits(1, user_api="blas"):
    began = time.perf_counter()
    aggregate(old, given, target, recipe, state=states)
print(time.perf_counter() - began, peak())
"""


def measure(program: str, *words: str) -> tuple[float, float]:
    command = [sys.executable, "-c", PEAK + program, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak


def saved(folder: Path, count: int, megabytes: int) -> list[str]:
    rng = np.random.default_rng(0)
    paths = [str(folder / f"{number}.npy") for number in range(count)]
    for path in paths:
        np.save(path, rng.standard_normal(megabytes * 250_000, np.float32))
    return paths


def memory(folder: Path) -> None:
    paths = saved(folder, FLEETS[-1] + 1, SMALLER)
    print(f"MB at the peak of the whole process, {SMALLER} MB of params, with {FLEETS} workers")
    for kind in METHODS:
        peaks = [
            measure(ROUNDLOG, kind, paths[0], str(folder / "new.npy"), *paths[1 : count + 1])[1]
            for count in FLEETS
        ]
        print(f"  {kind:<20}" + "".join(f"{peak:6.0f}" for peak in peaks), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = saved(folder, WORKERS + 1, MEGABYTES)
        kinds = ("mean", "fedadam", "multi_krum")
        numpy: list[tuple[float, float]] = []
        ours: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(repeat):
            numpy.append(measure(NUMPY, "", "", *paths[1:]))
            for kind in kinds:
                ours[kind].append(measure(ROUNDLOG, kind, paths[0], str(folder / "new.npy"), *paths[1:]))
    low = statistics.median(seconds for seconds, _ in numpy)
    print(f"{WORKERS} x {MEGABYTES} MB of weights; medians, interleaved; MB at the peak of the whole process")
    print(f"  NumPy's mean of the same files  {low:6.2f} s  {max(peak for _, peak in numpy):6.0f} MB")
    for kind in kinds:
        high = statistics.median(seconds for seconds, _ in ours[kind])
        peak = max(peak for _, peak in ours[kind])
        aim = f"(target {TARGET})" if kind == "mean" else ""
        print(f"  roundlog, {kind:<20}  {high:6.2f} s  {peak:6.0f} MB  ratio {high / low:5.2f} {aim}")
    with tempfile.TemporaryDirectory() as name:
        memory(Path(name))


if __name__ == "__main__":
    main()
