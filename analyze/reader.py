"""Decides line by line what is an event, by our own strict rules; knows no file system and no database.

The rules, decided once:

- A line is one JSON object in UTF-8, at most 64 KiB with its newline. LF and CRLF both end a line. A byte
  order mark is ignored at the head of the file and nowhere else. An empty line is no event.
- A key that stands twice in one object makes the line ambiguous: it is no event.
- NaN, Infinity, numbers too large for a double, and lone surrogates are no JSON to us.
- Nothing is coerced: 2.7 and true are no whole numbers, "12" is no number. A whole number may stand where
  a number is expected. A whole number beyond 64 bits fits no field; in fields we do not know, its digits
  are kept.
- Fields and kinds that we do not know are kept as JSON in ``extra``.
- A version newer than ours: what fits our fields is read as such, what does not fit is kept in ``extra``.
- An older version is brought up by `schemas.upcast`; what it did not say is null.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from analyze.fast import Int64, PlainReader
from analyze.lines import HEAD_BYTES, Chunk
from analyze.shapes import Field, envelope, of_kind
from schemas.events import VERSION
from schemas.upcast import Place, upcast, version_of

BULK_LINES = 5_000
"""Lines at a time from which on it pays to read in bulk."""
_AHEAD = 2
"""Chunks that are read in bulk while one before them is put into the database."""
_BOM = b"\xef\xbb\xbf"
_NEVER_NULL = {"v", "run", "seq", "t", "kind"}
_MAYBE_TORN = {"not JSON", "not UTF-8", "empty line"}


class NoEventError(ValueError):
    """A line is no event; the first word of `args` is the reason, the second the detail."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A line that is no event."""

    line: int
    offset: int
    length: int
    reason: str
    detail: str
    head: bytes


@dataclass(slots=True)
class Batch:
    """Events that have the same fields in the same order, column by column."""

    kind: str
    fields: list[Field]
    columns: list[Any]
    """A sequence of values for each of `fields`."""
    lines: Int64
    offsets: Int64
    extras: list[str | None]
    table: Any = None
    """An Arrow table of the events in place of `columns`, where they were read in bulk."""


@dataclass(slots=True)
class _Layout:
    """Events that needed a closer look and have the same fields in the same order."""

    kind: str
    fields: list[Field]
    lines: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    extras: list[str | None] = field(default_factory=list)

    def batch(self) -> Batch:
        columns = list(zip(*self.values, strict=True))
        lines, offsets = np.array(self.lines, dtype=np.int64), np.array(self.offsets, dtype=np.int64)
        return Batch(self.kind, self.fields, columns, lines, offsets, self.extras)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NoEventError("duplicate key", f"{twice[:40]!r} stands twice in one object")
    return made


def _slow(line: bytes) -> dict[str, Any]:
    """Decode with the standard library, which keeps every digit and sees keys that stand twice."""
    try:
        made: dict[str, Any] = json.loads(line, object_pairs_hook=_no_duplicates)
    except RecursionError as e:
        raise NoEventError("not JSON", "nested too deeply") from e
    return made


def _why_not(line: bytes, error: orjson.JSONDecodeError) -> NoEventError:
    """Say why a line could not be decoded."""
    if not line.strip():
        return NoEventError("empty line", "")
    if b"\0" in line:
        return NoEventError("NUL bytes", f"{line.count(0)} of {len(line)} bytes")
    try:
        line.decode()
    except UnicodeDecodeError as e:
        return NoEventError("not UTF-8", f"at byte {e.start} of the line")
    said = str(error)
    if line.startswith(_BOM):
        return NoEventError("not JSON", "a byte order mark not at the head of the file")
    if "infinity" in said:
        return NoEventError("non-finite number", f"too large for a double, at byte {error.pos}")
    if "surrogate" in said:
        return NoEventError("lone surrogate", f"at byte {error.pos}")
    if "end of data" in said:
        return NoEventError("torn", "the line ends in the middle of an event")
    found: list[str] = []
    with suppress(ValueError, RecursionError):
        json.loads(line, parse_constant=found.append)
    if found:
        return NoEventError("non-finite number", found[0])
    return NoEventError("not JSON", said.partition(":")[0])


def _decode(line: bytes) -> dict[str, Any]:
    try:
        made = orjson.loads(line)
    except orjson.JSONDecodeError as e:
        raise _why_not(line, e) from None
    if type(made) is not dict:
        raise NoEventError("not an object", f"the line is {type(made).__name__}")
    return _slow(line)


_InBulk = tuple[list[Batch], list[int]]


def _in_bulk(chunk: Chunk) -> _InBulk:
    """Return the events that can be read in bulk, and the places of the other lines."""
    from analyze import bulk  # noqa: PLC0415 - Arrow takes longer to import than a small log to read

    offsets = chunk.offsets()
    batches = []
    left = np.ones(chunk.count, dtype=np.bool_)
    for kind, table, places in bulk.read(chunk.text, chunk.starts, chunk.ends):
        fields = [bulk.fields_of(kind)[name] for name in table.column_names]
        batches.append(Batch(kind, fields, [], places + chunk.first_line, offsets[places], [], table))
        left[places] = False
    return batches, np.flatnonzero(left).tolist()


class Reader:
    """Reads one log, chunk by chunk."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.first_time: float | None = None
        self._plain = PlainReader()
        self._layouts: dict[Any, _Layout] = {}
        self.newest_version: int | None = None
        self.oldest_version: int | None = None

    def read_all(self, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, list[Batch], list[Reject]]]:
        """Yield each chunk with what its lines are; those that come next are read in bulk meanwhile."""
        ahead: deque[tuple[Chunk, Future[_InBulk] | None]] = deque()
        # Threads begin with the first large chunk; two are enough, since a third of the work is done here.
        with ThreadPoolExecutor(_AHEAD) as pool:
            for chunk in chunks:
                large = chunk.count >= BULK_LINES and not chunk.too_long
                ahead.append((chunk, pool.submit(_in_bulk, chunk) if large else None))
                if len(ahead) > _AHEAD:
                    yield self._next(ahead)
            while ahead:
                yield self._next(ahead)

    def _next(
        self, ahead: deque[tuple[Chunk, Future[_InBulk] | None]]
    ) -> tuple[Chunk, list[Batch], list[Reject]]:
        chunk, reading = ahead.popleft()
        return chunk, *self.read(chunk, reading.result() if reading is not None else None)

    def read(self, chunk: Chunk, made: _InBulk | None = None) -> tuple[list[Batch], list[Reject]]:
        """Return what the lines of the chunk are; every line is in exactly one place.

        `made`: what could be read of it in bulk.
        """
        offsets = chunk.offsets()
        if made is None and chunk.count >= BULK_LINES and not chunk.too_long:
            made = _in_bulk(chunk)
        batches, left = made or ([], None)
        if batches:
            self._saw(VERSION)
        plain, others = self._plain.read(chunk, left)
        for kind, fields, columns, places in plain:
            batches.append(Batch(kind, fields, columns, places + chunk.first_line, offsets[places], []))
            self._saw(VERSION)
        rejects: list[Reject] = []
        for i in others:
            line, number = chunk.line(i), chunk.first_line + i
            length = chunk.too_long.get(i, len(line))
            try:
                if i in chunk.too_long:
                    raise NoEventError("line too long", f"{length} bytes")
                self._add(line.removeprefix(_BOM) if number == 1 else line, number, int(offsets[i]))
            except NoEventError as e:
                reason, detail = e.args
                if chunk.unterminated and i == chunk.count - 1 and reason in _MAYBE_TORN:
                    reason, detail = "torn", "the last line has no newline"
                rejects.append(Reject(number, int(offsets[i]), length, reason, detail, line[:HEAD_BYTES]))
        batches += [layout.batch() for layout in self._layouts.values()]
        self._layouts.clear()
        return batches, rejects

    def _saw(self, version: int) -> None:
        self.newest_version = max(version, version if self.newest_version is None else self.newest_version)
        self.oldest_version = min(version, version if self.oldest_version is None else self.oldest_version)

    def _add(self, line: bytes, number: int, offset: int) -> None:
        """Put an event that needs a closer look where it belongs."""
        event = _decode(line)
        version = version_of(event)
        if version is None or version < 0:
            raise NoEventError("wrong envelope", "it shows no version and no fields of version 0")
        kind = event.get("kind")
        if type(kind) is not str:
            raise NoEventError("wrong envelope", "kind is not text")
        old, newer = version < VERSION, version > VERSION
        if old:
            event = self._bring_up(event, number)
        fields = of_kind(kind)
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, value in event.items():
            shape = fields.get(name)
            ours = shape is not None and not (newer and name not in envelope() and shape.fault(value))
            (known if ours else extra)[name] = value
        if not old:
            _check_complete(known, fields, newer=newer)
        for name, value in known.items():
            if value is None and old and name not in _NEVER_NULL:
                continue
            if fault := fields[name].fault(value):
                raise NoEventError("wrong envelope" if name in envelope() else "wrong type", fault)
        self._saw(version)
        key = (kind, tuple(known), bool(extra))
        layout = self._layouts.get(key)
        if layout is None:
            self._layouts[key] = layout = _Layout(kind, [fields[name] for name in known])
        layout.lines.append(number)
        layout.offsets.append(offset)
        layout.values.append(known.values())
        layout.extras.append(json.dumps(extra, ensure_ascii=False) if extra else None)

    def _bring_up(self, event: dict[str, Any], number: int) -> dict[str, Any]:
        time = event.get("time")
        if not isinstance(time, int | float) or isinstance(time, bool):
            raise NoEventError("wrong envelope", "time is not a number")
        if self.first_time is None:
            self.first_time = float(time)
        try:
            return upcast(event, Place(run=self._run, seq=number - 1, first_time=self.first_time))
        except ValueError as e:
            raise NoEventError("wrong envelope", str(e)) from None


def _check_complete(known: dict[str, Any], fields: dict[str, Field], *, newer: bool) -> None:
    """See that no field is missing; a newer version may have dropped any but the envelope's."""
    needed = [f.name for f in fields.values() if f.required and f.name not in known]
    missing = [name for name in needed if not newer or name in envelope()]
    if missing:
        where = "wrong envelope" if set(missing) & set(envelope()) else "missing field"
        raise NoEventError(where, f"no {', '.join(missing)}")
