"""Loading 1,000,000 events into the analyzer, against DuckDB reading the same file raw.

Usage: python tests/bench/load.py [EVENTS]
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from analyze.database import opened
from analyze.shapes import columns
from runner.recorder import Recorder
from schemas.events import Exec, ExecStart, Pull, PullStart, Push, PushStart, RoundEnd, RoundStart

REPEAT = 3
TARGET = 1.5
WORKERS = 99
SHA256 = "0" * 64
SIZE = 1_000_000


def write(path: Path, count: int) -> None:
    """Write rounds of 99 workers until there are so many events."""
    with Recorder(path, path.stem, path.parent) as recorder:
        written = number = 0
        while written < count:
            since = recorder.emit(
                RoundStart(active_nodes=WORKERS, total_nodes=WORKERS, params_sha256=SHA256, attempt=1),
                round=number,
            )
            for rank in range(WORKERS):
                output = f"bench/worker-{rank}.txt"
                for start, end in (
                    (
                        PushStart(path="params.npz", attempt=1),
                        Push(path="params.npz", size_bytes=SIZE, attempt=1),
                    ),
                    (
                        ExecStart(command="python3 train.py", attempt=1),
                        Exec(
                            exit_code=0,
                            output_tail=f"loss {1 / (number + 1):.4f}",
                            output_bytes=1000,
                            output_path=output,
                            attempt=1,
                        ),
                    ),
                    (
                        PullStart(path="weights.npz", attempt=1),
                        Pull(path="weights.npz", size_bytes=SIZE, attempt=1),
                    ),
                ):
                    began = recorder.emit(start, round=number, rank=rank)
                    recorder.emit(end, round=number, rank=rank, since_us=began)
            recorder.emit(
                RoundEnd(survivors=WORKERS, total_nodes=WORKERS, outcome="ok"), round=number, since_us=since
            )
            written += 6 * WORKERS + 2
            number += 1


def raw(path: Path) -> float:
    """Read every field of every kind into a typed column, as a peer that checks nothing would."""
    types = ", ".join(f"'{name}': '{field.sql}'" for name, field in columns().items())
    began = time.perf_counter()
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE e AS SELECT * FROM read_ndjson(?, columns = {{{types}}})", [str(path)])
    return time.perf_counter() - began


def analyzer(path: Path) -> float:
    began = time.perf_counter()
    with opened([path]):
        return time.perf_counter() - began


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.jsonl"
        write(path, count)
        raws, loads = [], []
        for _ in range(REPEAT):
            raws.append(raw(path))
            loads.append(analyzer(path))
        size = path.stat().st_size
    low, high = statistics.median(raws), statistics.median(loads)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{count:,} events, {size / 1e6:.0f} MB: DuckDB raw with typed columns {low:.2f} s, checked "
        f"{high:.2f} s, ratio {high / low:.2f} (target {TARGET}); peak memory {peak:.0f} MB"
    )


if __name__ == "__main__":
    main()
