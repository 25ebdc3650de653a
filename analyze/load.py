"""Loads logs into DuckDB tables, batch by batch; knows no question that is asked of them.

The tables are in the schema ``store``: ``logs`` (a row a file), ``runs`` (a row a run in a file), ``events``,
``rejects`` (a row a line that is no event) and ``gaps`` (events that are missing without a trace).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
from msgspec.json import encode

from analyze import source
from analyze.fast import Int64
from analyze.lines import HEAD_BYTES, chunks
from analyze.order import InOrder, faults, is_shuffled
from analyze.reader import Batch, Reader, Reject
from analyze.shapes import NULL, Field, of_kind
from analyze.source import stem
from schemas.events import BY_KIND

MICRO = 1_000_000
PILE_ROWS = 100_000
"""Events of one kind put into the database at once."""
OTHER = "other"
"""Where events of kinds that we do not know are."""

TABLES = """
CREATE SCHEMA store;
CREATE TABLE store.logs (
    log_no INTEGER, file VARCHAR, size_bytes BIGINT, lines BIGINT, running BOOLEAN,
    oldest_version BIGINT, newest_version BIGINT, shuffled BIGINT, cut VARCHAR);
CREATE TABLE store.runs (run_no INTEGER, log_no INTEGER, run VARCHAR);
CREATE TABLE store.rejects (
    log_no INTEGER, line BIGINT, byte_offset BIGINT, length BIGINT, reason VARCHAR, detail VARCHAR,
    head VARCHAR);
CREATE TABLE store.gaps (log_no INTEGER, run_no INTEGER, before_line BIGINT, missing BIGINT);
"""


@dataclass(slots=True)
class Log:
    """What loading one file found."""

    path: Path
    lines: int = 0
    events: int = 0
    rejects: int = 0
    missing: int = 0
    newest_version: int | None = None
    first_time: float | None = None
    """What the first event of version 0 shows as its time."""
    running: bool = False
    shuffled: int = 0
    """Events that are not where they were written: the lines were sorted or shuffled."""
    cut: str = ""
    """What of a compressed file could not be read, in words."""

    @property
    def damaged(self) -> bool:
        """Say whether anything of the log is lost."""
        return bool(self.rejects or self.missing or self.shuffled or self.cut)


def make_tables(con: duckdb.DuckDBPyConnection) -> None:
    """Make the empty tables; events lie in one narrow table a kind, since DuckDB fills a wide one slowly."""
    con.execute(TABLES)
    for kind in (*BY_KIND, OTHER):
        fields = ", ".join(f'"{f.name}" {f.sql}' for f in of_kind(kind).values())
        con.execute(
            f"CREATE TABLE {_table(kind)} (run_no INTEGER, line BIGINT, byte_offset BIGINT, t_us BIGINT, "
            f"{fields}, duration_us BIGINT, extra JSON)"
        )
    every = " UNION ALL BY NAME ".join(f"FROM {_table(kind)}" for kind in (*BY_KIND, OTHER))
    con.execute(f"CREATE VIEW store.events AS {every}")


def _table(kind: str) -> str:
    return f"store.events_{kind if kind in BY_KIND else OTHER}"


class Loader:
    """Fills the tables, one file after the other."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        self._log_no = 0
        self._runs: dict[tuple[int, str], int] = {}
        self._piles: dict[str, list[Any]] = {}

    def load(self, path: Path) -> Log:
        """Load one file.

        Raises:
            OSError: it can't be read.
        """
        # Decoded events hold no cycles; looking for some among a million of them takes as long as decoding.
        collecting = gc.isenabled()
        gc.disable()
        # One transaction a file: committing each batch takes longer than filling it in.
        self._con.begin()
        self._piles.clear()
        try:
            log = self._load(path)
        except BaseException:
            self._con.rollback()
            raise
        else:
            self._con.commit()
            return log
        finally:
            if collecting:
                gc.enable()

    def _load(self, path: Path) -> Log:
        log = Log(path)
        self._log_no += 1
        reader = Reader(stem(path))
        checked = InOrder()
        rejects: list[Reject] = []
        with source.opened(path) as opened:
            file, log.running, log.cut = opened.file, opened.running, opened.cut
            for chunk in chunks(file):
                batches, bad = reader.read(chunk)
                log.lines += chunk.count
                rejects += bad
                for batch in batches:
                    self._insert(batch, checked)
                checked.close_chunk()
            for kind in list(self._piles):
                self._flush(kind)
            size = os.lseek(file.fileno(), 0, os.SEEK_CUR)
            rejects += self._out_of_order(file.fileno(), checked, [r.line for r in rejects], log)
        rejects.sort(key=lambda r: r.line)
        log.rejects = len(rejects)
        log.events = log.lines - log.rejects
        log.newest_version, log.first_time = reader.newest_version, reader.first_time
        self._write_rejects(rejects)
        self._con.execute(
            "INSERT INTO store.logs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                self._log_no,
                str(path),
                size,
                log.lines,
                log.running,
                reader.oldest_version,
                log.newest_version,
                log.shuffled,
                log.cut or None,
            ],
        )
        return log

    def finish(self) -> None:
        """Write what is known only after the last file."""
        rows = [[number, log_no, run] for (log_no, run), number in self._runs.items()]
        if rows:
            self._append("store.runs", ["run_no", "log_no", "run"], rows)
        self._con.execute(
            # What a resume found broken was torn, whatever it looks like now that a newline closed it.
            "UPDATE store.rejects r SET reason = 'torn', detail = 'cut off when its runner died' "
            "FROM store.events e JOIN store.runs u USING (run_no) "
            "WHERE u.log_no = r.log_no AND e.kind = 'run_resume' AND e.broken_offset = r.byte_offset"
        )

    def _append(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        made = {name: _array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        self._from_arrays(table, made, {})

    def _from_arrays(self, table: str, made: dict[str, Any], casts: dict[str, str]) -> None:
        names = ", ".join(f'"{name}"' for name in made)
        values = ", ".join(
            f'CAST("{name}" AS {casts[name]})' if name in casts else f'"{name}"' for name in made
        )
        self._con.register("batch", made)
        # Names come from the contract, never from a log.
        self._con.execute(f"INSERT INTO {table} ({names}) SELECT {values} FROM batch")  # noqa: S608 - names of ours alone
        self._con.unregister("batch")

    def _insert(self, batch: Batch, checked: InOrder) -> None:
        made = self._from_table(batch) if batch.table is not None else self._from_columns(batch)
        checked.add(made["run_no"], batch.lines, np.asarray(made["seq"]), made["t_us"])

    def _from_table(self, batch: Batch) -> dict[str, Any]:
        import pyarrow as pa  # noqa: PLC0415 - small logs do without

        table = batch.table
        runs = table.column("run").combine_chunks().dictionary_encode()
        numbers = self._run_numbers(runs.dictionary.to_pylist())
        made = {
            "run_no": numbers[runs.indices.to_numpy()],
            "line": batch.lines,
            "byte_offset": batch.offsets,
            "t_us": _micro(table.column("t").to_numpy()),
        }
        table = table.drop_columns("run")
        if "duration_s" in table.column_names:
            made["duration_us"] = _micro(table.column("duration_s").to_numpy())
        for name, array in made.items():
            table = table.append_column(name, pa.array(array))
        pile = self._piles.setdefault(batch.kind, [])
        pile.append(table)
        if sum(map(len, pile)) >= PILE_ROWS:
            self._flush(batch.kind)
        return made | {"seq": batch.table.column("seq").to_numpy()}

    def _flush(self, kind: str) -> None:
        """Put into the database what was read in bulk; the more rows at once the less each takes."""
        import pyarrow as pa  # noqa: PLC0415 - small logs do without

        table = pa.concat_tables(self._piles.pop(kind))
        names = ", ".join(f'"{name}"' for name in table.column_names)
        self._con.register("batch", table)
        # Names come from the contract, never from a log.
        self._con.execute(f"INSERT INTO {_table(kind)} ({names}) SELECT {names} FROM batch")  # noqa: S608 - names of ours alone
        self._con.unregister("batch")

    def _from_columns(self, batch: Batch) -> dict[str, Any]:
        made: dict[str, Any] = {}
        casts: dict[str, str] = {}
        for shape, column in zip(batch.fields, batch.columns, strict=True):
            if shape.name == "run":
                made["run_no"] = self._run_numbers(column)
            elif (array := _column(shape, column)) is not None:
                made[shape.name] = array
                if shape.base in (dict, list):
                    casts[shape.name] = shape.sql
        if "kind" not in made:
            made["kind"] = np.full(len(batch.lines), batch.kind, dtype=object)
        made["line"] = batch.lines
        made["byte_offset"] = batch.offsets
        made["t_us"] = _micro(made["t"])
        if "duration_s" in made:
            made["duration_us"] = _micro(made["duration_s"])
        if any(extra is not None for extra in batch.extras):
            made["extra"] = np.array(batch.extras, dtype=object)
            casts["extra"] = "JSON"
        self._from_arrays(_table(batch.kind), made, casts)
        return made

    def _run_numbers(self, column: Sequence[str]) -> Int64:
        numbers = {
            run: self._runs.setdefault((self._log_no, run), len(self._runs) + 1)
            for run in dict.fromkeys(column)
        }
        if len(numbers) == 1:
            return np.full(len(column), next(iter(numbers.values())), dtype=np.int64)
        return np.array([numbers[run] for run in column], dtype=np.int64)

    def _out_of_order(self, fd: int, checked: InOrder, bad_lines: list[int], log: Log) -> list[Reject]:
        """Take out the events that don't fit those around them; note the gaps between the others."""
        if checked.in_order:
            gone = np.array(sorted(bad_lines), dtype=np.int64)
            log.missing = self._write_gaps(
                [
                    self._log_no,
                    run,
                    line,
                    skipped - int(np.searchsorted(gone, line) - np.searchsorted(gone, before)),
                ]
                for run, before, line, skipped in checked.skips
            )
            return []
        mine = [number for (log_no, _), number in self._runs.items() if log_no == self._log_no]
        line, seq, t_us, run_no = (
            self._con.execute(
                "SELECT line, seq, t_us, run_no FROM store.events "
                "WHERE run_no IN (SELECT unnest(?)) ORDER BY line",
                [mine],
            )
            .fetchnumpy()
            .values()
        )
        found: dict[int, tuple[str, str]] = {}
        for run in np.unique(run_no):
            at = np.flatnonzero(run_no == run)
            if out_of_place := is_shuffled(seq[at]):
                log.shuffled += out_of_place
                at = at[np.argsort(seq[at], kind="stable")]
            odd = faults(seq[at], t_us[at])
            found |= {int(line[at[i]]): why for i, why in odd.items()}
        rejects = self._take_out(fd, found)
        gone = np.array(sorted({*bad_lines, *found}), dtype=np.int64)
        left = ~np.isin(line, gone)
        for run in np.unique(run_no[left]):
            at = np.flatnonzero(left & (run_no == run))
            if log.shuffled:
                at = at[np.argsort(seq[at], kind="stable")]
            log.missing += self._note_gaps(int(run), line[at], seq[at], gone)
        return rejects

    def _note_gaps(self, run: int, line: Int64, seq: Int64, gone: Int64) -> int:
        """Note the events missing between those there are, as far as no bad line stands in their place."""
        before = np.concatenate(([0], np.searchsorted(gone, line[:-1]))) if len(line) else np.array([0])
        # Where lines were shuffled, a bad line is in no place that says what it was.
        bad_between = np.maximum(np.searchsorted(gone, line) - before, 0)
        missing = np.diff(seq, prepend=-1) - 1 - bad_between
        return self._write_gaps(
            [self._log_no, run, int(line[i]), int(missing[i])] for i in np.flatnonzero(missing > 0)
        )

    def _write_gaps(self, gaps: Iterable[list[int]]) -> int:
        rows = [gap for gap in gaps if gap[3] > 0]
        if rows:
            self._append("store.gaps", ["log_no", "run_no", "before_line", "missing"], rows)
        return sum(row[3] for row in rows)

    def _take_out(self, fd: int, found: dict[int, tuple[str, str]]) -> list[Reject]:
        if not found:
            return []
        mine = [number for (log_no, _), number in self._runs.items() if log_no == self._log_no]
        lines = sorted(found)
        rejects = []
        for kind in (*BY_KIND, OTHER):
            taken = self._con.execute(
                f"DELETE FROM {_table(kind)} WHERE line IN (SELECT unnest(?)) "  # noqa: S608 - our own name
                "AND run_no IN (SELECT unnest(?)) RETURNING line, byte_offset",
                [lines, mine],
            ).fetchall()
            for line, offset in taken:
                text = _line_at(fd, offset)
                rejects.append(Reject(line, offset, len(text), *found[line], text[:HEAD_BYTES]))
        return rejects

    def _write_rejects(self, rejects: Iterable[Reject]) -> None:
        rows = [
            [
                self._log_no,
                r.line,
                r.offset,
                r.length,
                r.reason,
                r.detail,
                r.head.decode(errors="backslashreplace"),
            ]
            for r in rejects
        ]
        if rows:
            names = ["log_no", "line", "byte_offset", "length", "reason", "detail", "head"]
            self._append("store.rejects", names, rows)


def _line_at(fd: int, offset: int) -> bytes:
    return os.pread(fd, 128 * 1024, offset).partition(b"\n")[0]


def _micro(seconds: npt.NDArray[np.float64]) -> Any:
    """Return whole microseconds."""
    return np.rint(np.ma.asarray(seconds) * MICRO).astype(np.int64)


def _array(column: Sequence[Any]) -> npt.NDArray[Any]:
    return np.array(column, dtype=np.int64 if type(column[0]) is int else object)


def _column(shape: Field, column: Sequence[Any]) -> Any:
    """Return the values as an array DuckDB takes over without looking at each; None where all are null."""
    seen = set(map(type, column))
    if seen == {NULL}:
        return None
    if shape.base in (dict, list):
        return np.array([None if v is None else encode(v).decode() for v in column], dtype=object)
    if shape.base is str:
        return np.array(column, dtype=object)
    dtype = {int: np.int64, float: np.float64, bool: np.bool_}[shape.base]
    if NULL not in seen:
        return np.array(column, dtype=dtype)
    mask = [value is None for value in column]
    return np.ma.masked_array(np.array([value or 0 for value in column], dtype=dtype), mask=mask)
