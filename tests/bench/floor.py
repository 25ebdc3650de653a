"""The floor of a round: start N processes on the same files, wait, average, save; nothing else.

Usage: floor.py N PARAMS.npy ROUNDS; prints the seconds of each round.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

STEP = Path(__file__).with_name("step.py")


def main() -> None:
    workers, params, rounds = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    weights = [params.with_name(f"weights-{rank}.npy") for rank in range(workers)]
    for _ in range(rounds):
        began = time.perf_counter()
        running = [
            subprocess.Popen(
                [sys.executable, str(STEP)],
                env={**os.environ, "ROUNDLOG_PARAMS": str(params), "ROUNDLOG_WEIGHTS": str(path)},
            )
            for path in weights
        ]
        for process in running:
            if process.wait() != 0:
                sys.exit("a step failed")
        total = np.load(weights[0])
        for path in weights[1:]:
            total += np.load(path)
        total /= workers
        np.save(params, total)
        print(time.perf_counter() - began)


if __name__ == "__main__":
    main()
