"""Loads logs into the tables of `analyze.tables`, batch by batch; knows no question that is asked of them."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import numpy as np

from analyze import source
from analyze.arrays import column_of, micro
from analyze.fast import Int64
from analyze.fingerprint import Hashed, ends
from analyze.lines import HEAD_BYTES, Readable, chunks
from analyze.log import ChangedError, Log
from analyze.order import InOrder, faults, is_shuffled
from analyze.reader import Batch, Reader, Reject
from analyze.source import shown, stem
from analyze.tables import EVENT_TABLES, OTHER, table_of
from schemas.events import BY_KIND

PILE_ROWS = 100_000
"""Events of one kind put into the database at once."""
MEMORY_LIMIT = "800MB"
"""How much memory DuckDB may take for tables in a file."""
PILE_TABLES = 32
"""Tables they may come from: each takes a megabyte, however few its rows."""
_PIECE = 1 << 20
_LOG_COLUMNS = (
    "log_no",
    "file",
    "size_bytes",
    "lines",
    "running",
    "oldest_version",
    "newest_version",
    "shuffled",
    "cut",
)


class Loader:
    """Fills the tables, one file after the other."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, loaded: Sequence[Log] = (), *, hashing: bool = False
    ) -> None:
        """`loaded`: what the tables hold already. `hashing`: note what is needed to know a log again."""
        self._con = con
        self._log_no = max((log.log_no for log in loaded), default=0)
        self._contents: dict[tuple[int, str], list[Path]] = {}
        """Logs by how long they are, how they begin and how they end."""
        for log in loaded:
            self._contents.setdefault((log.size_bytes, log.ends), []).append(log.path)
        self._runs = {(log.log_no, run): number for log in loaded for run, number in log.runs.items()}
        self._newest_run = max(self._runs.values(), default=0)
        self._hashing = hashing
        self._logs = {log.log_no: log for log in loaded}
        self._piles: dict[str, list[Any]] = {}
        """Events that are not in the database yet."""
        self._begun: dict[str, int] = {}
        """How many of them are of logs before this one."""

    def load(self, path: Path) -> Log:
        """Load one file.

        Raises:
            OSError: it can't be read.
        """
        self._log_no += 1
        log = self._whole(Log(path, log_no=self._log_no))
        if log.twin is not None:
            self._log_no -= 1
        return log

    def go_on(self, log: Log) -> Log:
        """Load what a log that is loaded has gained.

        Raises:
            OSError: it can't be read.
            ChangedError: it is not what it was, or what it gained needs a look at all of it.
        """
        if log.last is None:
            raise ChangedError
        return self._whole(replace(log))

    def forget(self, log: Log) -> None:
        """Take out a log that is loaded, before anything is loaded or where it could not be gone on with."""
        for table in EVENT_TABLES:
            self._con.execute(
                f"DELETE FROM {table} WHERE run_no IN (SELECT unnest(?))",  # noqa: S608 - our own name
                [list(log.runs.values())],
            )
        for table in ("store.rejects", "store.gaps"):
            self._con.execute(f"DELETE FROM {table} WHERE log_no = ?", [log.log_no])  # noqa: S608 - our own name
        for run in log.runs:
            del self._runs[log.log_no, run]
        del self._logs[log.log_no]
        alike = self._contents[log.size_bytes, log.ends]
        if log.path in alike:
            alike.remove(log.path)

    def _whole(self, log: Log) -> Log:
        # Decoded events hold no cycles; looking for some among a million of them takes as long as decoding.
        collecting = gc.isenabled()
        gc.disable()
        self._begun = {kind: len(pile) for kind, pile in self._piles.items()}
        begun = log.lines
        self._con.begin()
        try:
            self._load(log)
        except BaseException:
            self._con.rollback()
            self._undo(log, begun)
            raise
        else:
            self._con.commit()
        finally:
            if collecting:
                gc.enable()
        self._begun = {}
        if sum(len(table) for pile in self._piles.values() for table in pile) >= PILE_ROWS:
            self._flush()
        if log.twin is None:
            self._logs[log.log_no] = log
        return log

    def _undo(self, log: Log, begun: int) -> None:
        """Take out the events of a file that could not be read to its end, but for lines it had before."""
        for kind, pile in self._piles.items():
            del pile[self._begun.get(kind, 0) :]
        for run in () if begun else log.runs:
            del self._runs[log.log_no, run]
        for table in EVENT_TABLES if log.runs else ():
            self._con.execute(
                f"DELETE FROM {table} WHERE run_no IN (SELECT unnest(?)) AND line > ?",  # noqa: S608 - our own name
                [list(log.runs.values()), begun],
            )

    def _load(self, log: Log) -> None:
        begun = log.lines
        reader = Reader(stem(log.path))
        reader.oldest_version, reader.newest_version = log.oldest_version, log.newest_version
        reader.first_time = log.first_time
        checked = InOrder(log.last)
        rejects: list[Reject] = []
        with source.opened(log.path) as opened:
            file, log.running, log.cut = opened.file, opened.running, opened.cut
            text: Readable = file
            if hashed := Hashed(file.fileno()) if self._hashing and opened.plain else None:
                text = hashed
            if begun and (hashed is None or hashed.digest(log.size_bytes) != log.digest):
                raise ChangedError
            if begun:
                self._contents[log.size_bytes, log.ends].remove(log.path)
            else:
                log.mark, log.twin = opened.mark, self._twin(file)
                if log.twin is not None:
                    return
            terminated = True
            found = chunks(text, number=log.lines + 1, offset=log.size_bytes)
            for chunk, batches, bad in reader.read_all(found):
                log.lines += chunk.count
                terminated = not chunk.unterminated
                rejects += bad
                for batch in batches:
                    self._insert(batch, checked, log)
                checked.close_chunk()
            if log.last is not None and not (checked.in_order and checked.last.keys() == log.last.keys()):
                raise ChangedError
            log.size_bytes = os.lseek(file.fileno(), 0, os.SEEK_CUR)
            log.ends = ends(file.fileno(), log.size_bytes)
            alike = self._contents.setdefault((log.size_bytes, log.ends), [])
            if begun and alike:
                raise ChangedError
            alike.append(log.path)
            rejects += self._strays(file.fileno(), checked, log)
            bad_lines = [r.line for r in rejects]
            if begun:
                bad_lines += self._bad_lines(log)
            rejects += self._out_of_order(file.fileno(), checked, bad_lines, log)
            if hashed is not None:
                log.digest = hashed.digest(0)
                log.last = checked.last if terminated and checked.in_order and checked.last else None
            log.mark = opened.mark
        rejects.sort(key=lambda r: r.line)
        log.rejects += len(rejects)
        log.events = log.lines - log.rejects
        log.oldest_version, log.newest_version = reader.oldest_version, reader.newest_version
        log.first_time = reader.first_time
        self._write_rejects(rejects, log)
        log.problem = _why_nothing(log, rejects)

    def _twin(self, file: BinaryIO) -> Path | None:
        """Return a log before this one that is the same to the last byte, whatever its name and packing."""
        size = os.fstat(file.fileno()).st_size
        for path in self._contents.get((size, ends(file.fileno(), size)), ()) if size else ():
            with source.opened(path) as other:
                while (piece := file.read(_PIECE)) == other.file.read(_PIECE) and piece:
                    pass
                file.seek(0)
                if not piece:
                    return path
        return None

    def _bad_lines(self, log: Log) -> list[int]:
        found = self._con.execute("SELECT line FROM store.rejects WHERE log_no = ?", [log.log_no])
        return [line for (line,) in found.fetchall()]

    def finish(self, paths: Sequence[Path] = ()) -> None:
        """Write what is known only after the last file.

        `paths`: the order of the files, where it is not that in which they were loaded.
        """
        self._flush()
        self._renumber({path: place for place, path in enumerate(paths)})
        self._con.execute("DELETE FROM store.runs; DELETE FROM store.logs")
        rows = [[number, log_no, run] for (log_no, run), number in self._runs.items()]
        if rows:
            self._append("store.runs", ["run_no", "log_no", "run"], rows)
        logs = [
            [
                log.log_no,
                shown(log.path),
                log.size_bytes,
                log.lines,
                log.running,
                log.oldest_version,
                log.newest_version,
                log.shuffled,
                log.cut or None,
            ]
            for log in self._logs.values()
        ]
        if logs:
            self._append("store.logs", _LOG_COLUMNS, logs)
        self._con.execute(
            # What a resume found broken was torn, whatever it looks like now that a newline closed it.
            "UPDATE store.rejects r SET reason = 'torn', detail = 'cut off when its runner died' "
            "FROM store.events e JOIN store.runs u USING (run_no) "
            "WHERE u.log_no = r.log_no AND e.kind = 'run_resume' AND e.broken_offset = r.byte_offset"
        )

    def _renumber(self, places: Mapping[Path, int]) -> None:
        """Number logs and runs from 1 in the order of the files, whatever was loaded when."""
        logs = sorted(self._logs.values(), key=lambda log: (places.get(log.path, 0), log.log_no))
        log_nos = {log.log_no: i for i, log in enumerate(logs, start=1)}
        runs = [number for log in logs for number in log.runs.values()]
        run_nos = {number: i for i, number in enumerate(runs, start=1)}
        for name, numbers, tables in (
            ("run_no", run_nos, (*EVENT_TABLES, "store.gaps")),
            ("log_no", log_nos, ("store.rejects", "store.gaps")),
        ):
            moved = [(old, new) for old, new in numbers.items() if old != new]
            for table in tables if moved else ():
                self._con.execute(
                    f"UPDATE {table} SET {name} = m.new "  # noqa: S608 - our own names
                    f"FROM (SELECT unnest(?) AS old, unnest(?) AS new) m WHERE {name} = m.old",
                    [[old for old, _ in moved], [new for _, new in moved]],
                )
        for log in logs:
            log.log_no = log_nos[log.log_no]
            log.runs = {run: run_nos[number] for run, number in log.runs.items()}
            if log.last is not None:
                log.last = {run_nos[number]: last for number, last in log.last.items()}
        self._logs = {log.log_no: log for log in logs}
        self._runs = {(log.log_no, run): number for log in logs for run, number in log.runs.items()}

    def _append(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        import pyarrow as pa  # noqa: PLC0415 - nothing that loads nothing needs it

        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        self._put(table, pa.table(dict(zip(names, columns, strict=True))))

    def _put(self, table: str, rows: Any) -> None:
        names = ", ".join(f'"{name}"' for name in rows.column_names)
        self._con.register("batch", rows)
        # Names come from the contract, never from a log.
        self._con.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM batch")  # noqa: S608 - names of ours alone
        self._con.unregister("batch")

    def _pile(self, kind: str, table: Any) -> None:
        pile = self._piles.setdefault(kind, [])
        pile.append(table)
        mine = pile[self._begun.get(kind, 0) :]
        if len(mine) >= PILE_TABLES or sum(map(len, mine)) >= PILE_ROWS:
            self._flush(kind)
            # An open transaction holds on to every batch that was put in: memory would grow with the file.
            self._con.commit()
            self._con.begin()

    def _flush(self, *kinds: str) -> None:
        """Put events of this log, or of all, into the database; the more at once the less each takes."""
        import pyarrow as pa  # noqa: PLC0415 - nothing that loads nothing needs it

        for kind in kinds or list(self._piles):
            before = self._begun.get(kind, 0)
            if tables := self._piles[kind][before:]:
                self._put(table_of(kind), pa.concat_tables(tables, promote_options="default"))
                del self._piles[kind][before:]

    def _insert(self, batch: Batch, checked: InOrder, log: Log) -> None:
        made = self._from_table(batch, log) if batch.table is not None else self._from_columns(batch, log)
        checked.add(made["run_no"], batch.lines, np.asarray(made["seq"]), made["t_us"])

    def _from_table(self, batch: Batch, log: Log) -> dict[str, Any]:
        import pyarrow as pa  # noqa: PLC0415 - small logs do without

        table = batch.table
        runs = table.column("run").combine_chunks().dictionary_encode()
        numbers = self._run_numbers(runs.dictionary.to_pylist(), log)
        made = {
            "run_no": numbers[runs.indices.to_numpy()],
            "line": batch.lines,
            "byte_offset": batch.offsets,
            "t_us": micro(table.column("t").to_numpy()),
        }
        table = table.drop_columns("run")
        if "duration_s" in table.column_names:
            made["duration_us"] = micro(table.column("duration_s").to_numpy())
        for name, array in made.items():
            table = table.append_column(name, pa.array(array))
        self._pile(batch.kind, table)
        return made | {"seq": batch.table.column("seq").to_numpy()}

    def _from_columns(self, batch: Batch, log: Log) -> dict[str, Any]:
        import pyarrow as pa  # noqa: PLC0415 - nothing that loads nothing needs it

        made: dict[str, Any] = {}
        for shape, column in zip(batch.fields, batch.columns, strict=True):
            if shape.name == "run":
                made["run_no"] = self._run_numbers(column, log)
            elif (array := column_of(shape, column)) is not None:
                made[shape.name] = array
        if "kind" not in made:
            made["kind"] = pa.array([batch.kind] * len(batch.lines))
        made["line"] = batch.lines
        made["byte_offset"] = batch.offsets
        made["t_us"] = micro(made["t"])
        if "duration_s" in made:
            made["duration_us"] = micro(made["duration_s"])
        if any(extra is not None for extra in batch.extras):
            made["extra"] = pa.array(batch.extras, pa.string())
        self._pile(batch.kind, pa.table({name: pa.array(array) for name, array in made.items()}))
        return made

    def _run_numbers(self, column: Sequence[str], log: Log) -> Int64:
        numbers = {}
        for run in dict.fromkeys(column):
            if (log.log_no, run) not in self._runs:
                self._newest_run += 1
                self._runs[log.log_no, run] = self._newest_run
            numbers[run] = self._runs[log.log_no, run]
        log.runs |= numbers
        if len(numbers) == 1:
            return np.full(len(column), next(iter(numbers.values())), dtype=np.int64)
        return np.array([numbers[run] for run in column], dtype=np.int64)

    def _strays(self, fd: int, checked: InOrder, log: Log) -> list[Reject]:
        """Take out events that alone name their run, as a damaged id does; they are no run."""
        if len(log.runs) < 2:
            return []
        self._flush()
        counted = self._con.execute(
            "SELECT run_no, count(*), any_value(line), any_value(kind) FROM store.events "
            "WHERE run_no IN (SELECT unnest(?)) GROUP BY run_no",
            [list(log.runs.values())],
        ).fetchall()
        stray = {run: line for run, count, line, kind in counted if count == 1 and kind != "run_start"}
        if not stray or all(count == 1 for _, count, _, _ in counted):
            return []
        why = ("unknown run", "no other event of the log is of this run, and it does not begin one")
        rejects = self._take_out(fd, dict.fromkeys(stray.values(), why), log)
        for run in [run for run, number in log.runs.items() if number in stray]:
            checked.last.pop(log.runs.pop(run), None)
            del self._runs[log.log_no, run]
        checked.skips = [skip for skip in checked.skips if skip[0] not in stray]
        return rejects

    def _out_of_order(self, fd: int, checked: InOrder, bad_lines: list[int], log: Log) -> list[Reject]:
        """Take out the events that don't fit those around them; note the gaps between the others."""
        if checked.in_order:
            gone = np.array(sorted(bad_lines), dtype=np.int64)
            log.missing += self._write_gaps(
                [
                    log.log_no,
                    run,
                    line,
                    skipped - int(np.searchsorted(gone, line) - np.searchsorted(gone, before)),
                ]
                for run, before, line, skipped in checked.skips
            )
            return []
        self._flush()
        line, seq, t_us, run_no = (
            self._con.execute(
                "SELECT line, seq, t_us, run_no FROM store.events "
                "WHERE run_no IN (SELECT unnest(?)) ORDER BY line",
                [list(log.runs.values())],
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
        rejects = self._take_out(fd, found, log)
        gone = np.array(sorted({*bad_lines, *found}), dtype=np.int64)
        left = ~np.isin(line, gone)
        for run in np.unique(run_no[left]):
            at = np.flatnonzero(left & (run_no == run))
            if log.shuffled:
                at = at[np.argsort(seq[at], kind="stable")]
            log.missing += self._note_gaps(log, int(run), line[at], seq[at], gone)
        return rejects

    def _note_gaps(self, log: Log, run: int, line: Int64, seq: Int64, gone: Int64) -> int:
        """Note the events missing between those there are, as far as no bad line stands in their place."""
        before = np.concatenate(([0], np.searchsorted(gone, line[:-1]))) if len(line) else np.array([0])
        # Where lines were shuffled, a bad line is in no place that says what it was.
        bad_between = np.maximum(np.searchsorted(gone, line) - before, 0)
        missing = np.diff(seq, prepend=-1) - 1 - bad_between
        return self._write_gaps(
            [log.log_no, run, int(line[i]), int(missing[i])] for i in np.flatnonzero(missing > 0)
        )

    def _write_gaps(self, gaps: Iterable[list[int]]) -> int:
        rows = [gap for gap in gaps if gap[3] > 0]
        if rows:
            self._append("store.gaps", ["log_no", "run_no", "before_line", "missing"], rows)
        return sum(row[3] for row in rows)

    def _take_out(self, fd: int, found: dict[int, tuple[str, str]], log: Log) -> list[Reject]:
        if not found:
            return []
        lines = sorted(found)
        rejects = []
        for kind in (*BY_KIND, OTHER):
            taken = self._con.execute(
                f"DELETE FROM {table_of(kind)} WHERE line IN (SELECT unnest(?)) "  # noqa: S608 - our own name
                "AND run_no IN (SELECT unnest(?)) RETURNING line, byte_offset",
                [lines, list(log.runs.values())],
            ).fetchall()
            for line, offset in taken:
                text = _line_at(fd, offset)
                rejects.append(Reject(line, offset, len(text), *found[line], text[:HEAD_BYTES]))
        return rejects

    def _write_rejects(self, rejects: Iterable[Reject], log: Log) -> None:
        rows = [
            [
                log.log_no,
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


def _why_nothing(log: Log, rejects: Sequence[Reject]) -> str:
    """Say why a log holds no event; nothing if it does."""
    if log.events:
        return ""
    if not log.lines:
        return f"{log.path} is empty"
    reasons = Counter(reject.reason for reject in rejects)
    most = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:3]
    told = ", ".join(f"{reason} ({count})" for reason, count in most)
    lines = "its one line is no event" if log.lines == 1 else f"none of its {log.lines} lines is an event"
    return f"{log.path} is no log of a run: {lines}: {told}"
