"""A round of commands that stay, next to the same commands started every round, in one run.

Usage: python tests/bench/resident.py [--repeat N]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

CASES = ((4, 1, 40, 0.010), (4, 100, 6, 0.40))
"""Workers, MB of params, rounds, target in seconds."""
COLD_ROUNDS = 4
SCRIPT = """
import numpy as np
from roundlog_rounds import rounds
for r in rounds():
    with open(r.weights, "wb") as file:
        np.save(file, np.load(r.params) + np.float32(1))
"""


def run(folder: Path, workers: int, rounds: int, *, resident: bool) -> list[float]:
    """Return the seconds of each round but the first."""
    (folder / "job.toml").write_text(
        f'name = "bench"\nrounds = {rounds + 1}\nworkers = {workers}\n[params]\nfile = "init.npy"\nkeep = 1\n'
        '[train]\ncommand = ["{python}", "train.py"]\nfiles = ["train.py", "{rounds}"]\n'
        f"resident = {str(resident).lower()}\n"
    )
    program = Path(sys.executable).with_name("runner")
    words = [str(program), "start", "-q", "--runs", str(folder / "runs"), str(folder / "job.toml")]
    log = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    events = [json.loads(line) for line in Path(log).read_text().splitlines()]
    starts = [e["t"] for e in events if e["kind"] == "round_start"]
    return [b - a for a, b in itertools.pairwise(starts[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    print("a round, local workers, command adds a constant; medians, interleaved")
    for workers, megabytes, rounds, target in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "train.py").write_text(SCRIPT)
            np.save(folder / "init.npy", np.random.default_rng(0).random(megabytes * 250_000, np.float32))
            stays: list[float] = []
            ends: list[float] = []
            for _ in range(repeat):
                stays += run(folder, workers, rounds, resident=True)
                ends += run(folder, workers, COLD_ROUNDS, resident=False)
        warm, cold = statistics.median(stays), statistics.median(ends)
        print(
            f"{workers:>3} x {megabytes:>3} MB  stays {warm * 1e3:6.1f} ms (target {target * 1e3:.0f})  "
            f"started each round {cold * 1e3:6.1f} ms  ratio {warm / cold:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
