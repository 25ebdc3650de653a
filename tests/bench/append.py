"""Cost of appending one event, against one write of the same bytes.

Usage: python tests/bench/append.py
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from runner.recorder import Recorder
from schemas.events import Push

COUNT = 20_000
REPEAT = 7


def recorded(folder: Path, number: int) -> float:
    body = Push(path="params-0001.npz", size_bytes=1_000_000, attempt=1)
    with Recorder(folder / f"{number}.jsonl", "bench", folder) as recorder:
        began = time.perf_counter()
        for _ in range(COUNT):
            recorder.emit(body, round=1, rank=2, since_us=0)
        return (time.perf_counter() - began) / COUNT


def raw(folder: Path, number: int) -> float:
    lines = (folder / f"{number}.jsonl").read_bytes().splitlines(keepends=True)
    fd = os.open(folder / f"{number}.raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    began = time.perf_counter()
    for line in lines:
        os.write(fd, line)
    took = time.perf_counter() - began
    os.close(fd)
    return took / COUNT


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        appends, writes = [], []
        for number in range(REPEAT):
            appends.append(recorded(folder, number))
            writes.append(raw(folder, number))
    cost, low = statistics.median(appends), statistics.median(writes)
    print(f"one event: {cost * 1e6:.1f} us; a bare write of its line: {low * 1e6:.1f} us; {cost / low:.1f}x")


if __name__ == "__main__":
    main()
