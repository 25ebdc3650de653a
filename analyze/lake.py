"""Writes runs as a folder of Parquet files, partitioned by run, that any engine reads; knows no log.

``DIR/<view>/run=<id>/<log>.parquet``: as Hive lays data out, and DuckDB, polars, pyarrow and Spark read them.
The id stands in the folder's name, percent-encoded, and not in the file.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from analyze.database import Database

VIEWS = ("runs", "rounds", "workers", "spans", "metrics", "events")
"""What is written; all else follows from these."""
_ROWS = 100_000
_MAX_NAME_BYTES = 200


def write(database: Database, folder: Path) -> Iterator[tuple[str, Path]]:
    """Write each run; what was there of the same run and log is replaced, other runs stay.

    Args:
        database: with the runs.
        folder: made if need be.

    Yields:
        The run's id, and the folder of its rows of ``runs``, once all of it is in place.

    Raises:
        OSError: the folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = database.rows("SELECT run, run_no, file FROM runs ORDER BY run, run_no")
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as name:
        room = Path(name)
        for number, run in enumerate(runs):
            log = hashlib.sha256(run["file"].encode("utf-8", "surrogateescape")).hexdigest()[:16]
            made = {view: room / f"{number}-{view}" for view in VIEWS}
            for view, path in made.items():
                _write_view(database, view, run["run_no"], path)
            for view, path in made.items():
                place = folder / view / f"run={_encoded(run['run'])}"
                place.mkdir(parents=True, exist_ok=True)
                shutil.move(path, place / f"{log}.parquet")
            yield run["run"], folder / VIEWS[0] / f"run={_encoded(run['run'])}"


def _encoded(run: str) -> str:
    """Return an id as part of a folder's name; a very long one is cut, and told apart by its hash."""
    name = quote(run, safe="", errors="replace")
    if len(name) <= _MAX_NAME_BYTES:
        return name
    return f"{name[:_MAX_NAME_BYTES].rpartition('%')[0]}-{hashlib.sha256(run.encode()).hexdigest()[:16]}"


def _write_view(database: Database, view: str, run_no: int, path: Path) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - for this alone

    columns = database.rows(
        "SELECT column_name AS name, data_type AS type FROM duckdb_columns() WHERE table_name = ? "
        "AND schema_name = 'main' ORDER BY column_index",
        view,
    )
    chosen = ", ".join(_column(column) for column in columns if column["name"] != "run")
    # The names are those of our own views.
    query = f'SELECT {chosen} FROM "{view}" WHERE run_no = ?'  # noqa: S608 - names of ours alone
    reader = database.batches(query, run_no, rows=_ROWS)
    with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)


def _column(column: dict[str, Any]) -> str:
    """Return a column as every engine has it: JSON is text."""
    name = f'"{column["name"]}"'
    return f"CAST({name} AS VARCHAR) AS {name}" if column["type"] == "JSON" else name
