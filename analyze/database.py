"""Opens logs as a documented database and fences it in; knows no renderer and no command line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from analyze import explain, kept, lazy
from analyze.load import MEMORY_LIMIT, Loader
from analyze.log import Log
from analyze.shapes import columns
from analyze.source import stem
from analyze.tables import make_tables
from schemas.events import MAX_LINE_BYTES, VERSION
from schemas.upcast import Place

Row = dict[str, Any]

DEFAULT_FOLDER = "runs"
"""Where logs are looked for if none is named."""
IN_MEMORY_BYTES = 256 * 1024 * 1024
"""Logs that are larger together are loaded into a temporary file instead of memory."""


class NothingUsableError(Exception):
    """None of the logs holds an event; `hint` says what may help."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(slots=True)
class Database:
    """Loaded logs and the views over them."""

    con: duckdb.DuckDBPyConnection
    logs: list[Log] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Logs that gave nothing, in words."""
    twins: list[Log] = field(default_factory=list)
    """Logs that say what another says, and count once with it."""
    _tables: lazy.Tables | None = None

    @property
    def damaged(self) -> bool:
        """Say whether anything of any log is lost."""
        return bool(self.problems) or any(log.damaged for log in self.logs)

    def execute(self, query: str, parameters: Any = ()) -> duckdb.DuckDBPyConnection:
        """Run a query after making what it rests on.

        Raises:
            KeyboardInterrupt: it was interrupted.
        """
        try:
            self._need(query)
            return self.con.execute(query, parameters)
        except (RuntimeError, duckdb.InterruptException) as e:
            # So DuckDB tells of Ctrl-C, by a class of its own or by none.
            if "interrupt" in str(e).lower():
                raise KeyboardInterrupt from None
            raise

    def asked(self, query: str, parameters: Any = ()) -> duckdb.DuckDBPyConnection:
        """Run what a user asks, of which only the last statement may have a result.

        Raises:
            duckdb.ProgrammingError: an earlier one has a result too, which nobody would see.
            KeyboardInterrupt: it was interrupted.
        """
        alone(query)
        return self.execute(query, parameters)

    def _need(self, query: str) -> None:
        if self._tables is None:
            self._tables = lazy.Tables(self.con)
        self._tables.need(query)

    def batches(self, query: str, *parameters: Any, rows: int) -> Any:
        """Return an Arrow reader of a query's result, so many rows at a time."""
        self._need(query)
        relation: Any = self.con.sql(query, params=list(parameters))
        # Its name before DuckDB 2 was another.
        read = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
        return read(rows)

    def rows(self, query: str, *parameters: Any) -> list[Row]:
        """Return the rows of a query of ours as dicts."""
        cursor = self.execute(query, parameters)
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def warnings(self) -> Iterator[str]:
        """Yield what the user should know of logs given twice and of their versions."""
        for log in self.twins:
            yield f"{log.path} says the same as {log.twin}: they count once"
        for log in self.logs:
            if (log.newest_version or 0) > VERSION:
                yield (
                    f"{log.path} is of schema version {log.newest_version}, this analyzer knows {VERSION}: "
                    "what it does not know is kept in the column 'extra' of 'events'"
                )

    def explained(self, path: Path, number: int) -> Iterator[str]:
        """Yield what became of one line of the first log, from 1.

        Raises:
            OSError: the log can't be read again.
        """
        reject = next(iter(self.rows("SELECT * FROM rejects WHERE line = ? LIMIT 1", number)), None)
        event = next(iter(self.rows("SELECT * FROM events WHERE line = ? LIMIT 1", number)), None)
        row = reject or event or {"byte_offset": 0}
        offset = row["byte_offset"]
        length = reject["length"] if reject else MAX_LINE_BYTES
        raw = explain.raw_line(path, offset, length)
        if event:
            raw = raw.partition(b"\n")[0]
            length = len(raw)
        place = Place(run=stem(path), seq=number - 1, first_time=self.logs[0].first_time or 0.0)
        yield from explain.lines(
            raw, number=number, offset=offset, length=length, reject=reject, event=event, place=place
        )

    def fence(self) -> None:
        """Let no query reach files, the network or the configuration from here on."""
        self.con.execute("SET enable_external_access = false")
        self.con.execute("SET lock_configuration = true")

    def documented(self) -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
        """Yield each view, what it is, and name, type and meaning of its columns."""
        views = self.con.execute(
            "SELECT view_name, comment FROM duckdb_views() "
            "WHERE NOT internal AND schema_name = 'main' ORDER BY 1"
        ).fetchall()
        for view, comment in views:
            found = self.con.execute(
                "SELECT column_name, data_type, coalesce(comment, '') FROM duckdb_columns() "
                "WHERE table_name = ? AND schema_name = 'main' ORDER BY column_index",
                [view],
            ).fetchall()
            yield view, comment or "", found


def alone(query: str) -> None:
    """Let no result go unseen.

    Raises:
        duckdb.ProgrammingError: a statement before the last has a result, or there is no statement.
    """
    statements = duckdb.extract_statements(query)
    if not statements:
        raise duckdb.ProgrammingError("there is no statement in the query")
    for i, statement in enumerate(statements[:-1]):
        if statement.expected_result_type == [duckdb.ExpectedResultType.QUERY_RESULT]:
            raise duckdb.ProgrammingError(
                f"statement {i + 1} of {len(statements)} has a result, and only that of the last is shown: "
                "ask one at a time, or join them by UNION ALL"
            )


def _identity(path: Path) -> object:
    """Return what two names of one file have in common."""
    try:
        found = path.stat()
    except OSError:
        return path
    return (found.st_dev, found.st_ino)


def _why_unreadable(path: Path, error: OSError) -> str:
    if path.is_dir():
        return f"{path} is a directory"
    return f"{path}: {(error.strerror or str(error)).lower()}"


@contextmanager
def opened(
    paths: Sequence[Path], *, documented: bool = False, cache: Path | None = None
) -> Iterator[Database]:
    """Load logs and make the views; their documents only where they are asked for, since that takes time.

    `cache`: a folder where what is loaded may be kept and found again.

    Raises:
        NothingUsableError: no log holds an event.
    """
    names: dict[object, Path] = {}
    for path in paths:
        names.setdefault(_identity(path), path)
    once = list(names.values())
    found = None if cache is None else kept.look(cache, once)
    with _connected(once) as con:
        con.execute("SET autoinstall_known_extensions = false")
        con.execute("SET autoload_known_extensions = false")
        con.execute("SET enable_progress_bar = false")
        database = Database(con)
        if found is not None:
            found.attach(con)
            database.logs = [log for log in found.logs if log.twin is None]
            database.twins = [log for log in found.logs if log.twin is not None]
            database.problems = [log.problem for log in found.logs if log.problem]
        else:
            _load(database, once)
        if not any(log.events for log in database.logs):
            raise _nothing(database, once)
        _make_views(con, documented=documented)
        yield database


def _load(database: Database, paths: Sequence[Path]) -> None:
    make_tables(database.con)
    loader = Loader(database.con)
    for path in paths:
        try:
            log = loader.load(path)
        except OSError as e:
            database.problems.append(_why_unreadable(path, e))
            continue
        (database.logs if log.twin is None else database.twins).append(log)
        if log.problem:
            database.problems.append(log.problem)
    loader.finish()


@contextmanager
def _connected(paths: Sequence[Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Connect to a database in memory, or for large logs to one in a temporary file that needs little."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    if size <= IN_MEMORY_BYTES:
        with duckdb.connect(":memory:") as con:
            yield con
        return
    with (
        tempfile.TemporaryDirectory(prefix="roundlog-") as folder,
        duckdb.connect(str(Path(folder) / "logs.duckdb")) as con,
    ):
        con.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        yield con


def empty() -> duckdb.DuckDBPyConnection:
    """Return a database with the views and no rows."""
    con = duckdb.connect(":memory:")
    make_tables(con)
    _make_views(con, documented=True)
    return con


def _make_views(con: duckdb.DuckDBPyConnection, *, documented: bool) -> None:
    lazy.make(con)
    if not documented:
        return
    lazy.document(con)
    for name, shape in columns().items():
        if name != "run":
            doc = shape.doc.replace("'", "''")
            con.execute(f"COMMENT ON COLUMN events.\"{name}\" IS '{doc}'")


def _nothing(database: Database, paths: Sequence[Path]) -> NothingUsableError:
    if not database.problems:
        return NothingUsableError("no logs", "name a log, or a folder with logs by --runs")
    message = "; ".join(database.problems[:3])
    if len(database.problems) > 3:
        message += f"; and {len(database.problems) - 3} more"
    return NothingUsableError(message, _hint(database, paths))


def _hint(database: Database, paths: Sequence[Path]) -> str:
    if any("is a directory" in problem for problem in database.problems):
        return "name the log itself, such as runs/<run>.jsonl"
    if any(str(path) == DEFAULT_FOLDER and not path.exists() for path in paths):
        return "go to the folder in which the runner was started, or name its logs or their folder"
    if not database.logs:
        return "'analyze runs' lists the logs in runs/"
    if any(log.running for log in database.logs):
        return "the run has just begun: try again in a moment"
    return "a log is written by 'runner start' as runs/<run>.jsonl"


def parsed(text: str | None) -> Any:
    """Return a JSON column's value."""
    return None if text is None else json.loads(text)
