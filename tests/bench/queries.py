"""Every built-in query on 1,000,000 events, each as the first after loading: with all that it rests on.

Usage: python tests/bench/queries.py [EVENTS | LOG]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from load import write

from analyze import lazy
from analyze.database import Database, opened

REPEAT = 2
SLOWEST = 5
ROWS = 100_000


def forget(database: Database) -> None:
    """Make the tables that queries fill as empty as loading leaves them."""
    made = [name for name, (what, _) in lazy.statements().items() if what == "TABLE"]
    database.con.execute(";".join(f"TRUNCATE {name}" for name in made))
    database.con.execute("CHECKPOINT")
    database._tables = None


def asked(database: Database, view: str) -> tuple[float, float, int]:
    """Return wall and processor time of reading all rows of a view, and how many these are."""
    began, worked = time.perf_counter(), time.process_time()
    count = sum(len(batch) for batch in database.batches(f"FROM {view}", rows=ROWS))
    return time.perf_counter() - began, time.process_time() - worked, count


def measure(path: Path) -> None:
    with opened([path]) as database:
        events = sum(log.events for log in database.logs)
        views = [name for name, (what, _) in lazy.statements().items() if what == "VIEW" and "." not in name]
        found = []
        for view in views:
            times = []
            for _ in range(REPEAT):
                forget(database)
                times.append(asked(database, view))
            found.append((*min(times), view))
    found.sort(reverse=True)
    within = sum(wall < 1 for wall, *_ in found)
    print(f"{events:,} events: {within} of {len(found)} built-in queries took under a second, the slowest:")
    for wall, worked, rows, view in found[:SLOWEST]:
        print(f"  {view}: {wall:.2f} s ({worked:.2f} s of processor time), {rows:,} rows")


def main() -> None:
    said = sys.argv[1] if len(sys.argv) > 1 else "1000000"
    if not said.isdecimal():
        measure(Path(said))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.jsonl"
        write(path, int(said))
        measure(path)


if __name__ == "__main__":
    main()
