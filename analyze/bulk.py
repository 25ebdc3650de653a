"""Reads the lines that a runner writes by the hundred thousand, column by column; judges nothing else.

It may only ever be too strict. A line is taken if it is plain ASCII without a backslash, of a kind without
objects in it, and shows the fields of its kind once and no others; all else is left to `analyze.fast` and
`analyze.reader`. Since no quotation mark can stand inside a string of such a line, a mark followed by a colon
ends a key and nothing else; so keys can be counted, and a null can be told from a field that isn't there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from analyze.fast import Int64
from analyze.shapes import INT64_MAX, Field, of_kind
from schemas.events import BY_KIND, MAX_LINE_BYTES, VERSION

Mask = npt.NDArray[np.bool_]

_ARROW: dict[type, Any] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    list: pa.list_(pa.int64()),
}
_FEWEST = 256
"""Lines that are not worth another try when one among them spoils the reading of all."""

_ODD = np.ones(256, dtype=np.bool_)
_ODD[0x20:0x7F] = False
_ODD[[0x0A, 0x5C]] = False, True


@cache
def fields_of(kind: str) -> tuple[Field, ...]:
    """Return the fields that a line of a kind may show; `overflow_path` is rare and left out."""
    return tuple(f for f in of_kind(kind).values() if f.name != "overflow_path")


@cache
def _kinds() -> dict[str, int]:
    """Return the kinds without objects in them, and the eight bytes that each begins with in a line."""
    flat = [kind for kind in BY_KIND if all(f.base is not dict for f in fields_of(kind))]
    return {kind: int.from_bytes(f'{kind}","round'.encode()[:8], "little") for kind in flat}


def _arrow(field: Field) -> Any:
    return pa.list_(pa.float64()) if field.sql == "DOUBLE[]" else _ARROW[field.base]


@cache
def _options(kind: str) -> Any:
    schema = pa.schema([(f.name, _arrow(f)) for f in fields_of(kind)])
    return arrow_json.ParseOptions(
        explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="ignore"
    )


def read(text: bytes, starts: Int64, ends: Int64) -> list[tuple[str, Any, Int64]]:
    """Return the lines taken by kind, as an Arrow table and their places; a newline is at each of `ends`."""
    made: list[tuple[str, Any, Int64]] = []
    if len(text) < 64:
        return made
    data = np.frombuffer(text, dtype=np.uint8)
    plain = (ends - starts > 2) & (ends - starts < MAX_LINE_BYTES)
    plain &= (data[starts % len(data)] == ord("{")) & (data[ends - 1] == ord("}"))
    plain[_line_of(np.flatnonzero(_ODD[data]), starts)] = False
    colons = np.flatnonzero((data[:-1] == ord('"')) & (data[1:] == ord(":")))
    keys = np.diff(np.searchsorted(colons, np.append(starts, len(text))))
    lines = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(starts),
        [None, pa.py_buffer(np.append(starts, ends[-1] + 1)), pa.py_buffer(text + b"\n")],
    )
    for kind, places in _by_kind(data, colons, starts, plain):
        parsed = _parsed(kind, lines.take(pa.array(places)), places, keys[places])
        made += [(kind, table, at) for table, at in parsed]
    return made


def _line_of(positions: Int64, starts: Int64) -> Int64:
    return np.searchsorted(starts, positions, side="right") - 1


def _by_kind(data: Any, colons: Int64, starts: Int64, plain: Mask) -> list[tuple[str, Int64]]:
    """Return the places of plain lines by what they say their kind is; one that says it twice is left out."""
    at = colons
    for back, letter in enumerate(b"dnik", start=1):
        at = at[data[at - back] == letter]
    line = _line_of(at, starts)
    keep = plain[line] & (np.bincount(line, minlength=len(starts)) == 1)[line] & (at + 11 < len(data))
    at, line = at[keep], line[keep]
    # Eight letters tell all kinds apart; whether the ninth fits is seen when the line has been read.
    words = np.ndarray(len(data) - 7, dtype="<u8", buffer=data, strides=(1,))[at + 3]
    return [(kind, line[words == word]) for kind, word in _kinds().items() if (words == word).any()]


def _parsed(kind: str, lines: Any, places: Int64, keys: Int64) -> list[tuple[Any, Int64]]:
    """Return what Arrow makes of the lines; one that it can't read costs those around it another way."""
    if not len(places):
        return []
    table = _table(kind, lines)
    if table is None:
        if len(places) <= _FEWEST:
            return []
        half = len(places) // 2
        first = _parsed(kind, lines[:half], places[:half], keys[:half])
        return first + _parsed(kind, lines[half:], places[half:], keys[half:])
    good = _good(kind, table, lines, keys)
    if not good.all():
        table, places = table.filter(pa.array(good)), places[good]
    return [(table, places)] if len(places) else []


def _table(kind: str, lines: Any) -> Any:
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int64)[lines.offset : lines.offset + len(lines) + 1]
    text = lines.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    try:
        table = arrow_json.read_json(
            pa.BufferReader(text),
            read_options=arrow_json.ReadOptions(use_threads=True, block_size=1 << 20),
            parse_options=_options(kind),
        )
    except pa.ArrowInvalid:
        return None
    return table.combine_chunks() if len(table) == len(lines) else None


def _numpy(values: Any) -> Any:
    return values.to_numpy(zero_copy_only=False)


def _good(kind: str, table: Any, lines: Any, keys: Int64) -> Mask:
    """Return which rows hold what the contract allows, as `Field.fault` says it; `keys` are those written."""
    good = np.ones(len(table), dtype=np.bool_)
    due = np.zeros(len(table), dtype=np.int64)
    for field in fields_of(kind):
        values = table.column(field.name).combine_chunks()
        there = np.ones(len(table), dtype=np.bool_)
        if values.null_count:
            null = _numpy(values.is_null())
            there = ~null | _numpy(pc.match_substring(lines, f'"{field.name}":null'))
            if not field.nullable:
                good &= ~(null & there)
            if field.required:
                good &= there
        due += there
        fit = _fit(field, values, kind)
        if fit is not None:
            good &= _numpy(fit.fill_null(fill_value=True))
    fit_all: Mask = good & (due == keys)
    return fit_all


def _fit(field: Field, values: Any, kind: str) -> Any:
    if field.name == "v":
        return pc.equal(values, VERSION)
    if field.name == "kind":
        return pc.equal(values, kind)
    if field.base is int:
        return pc.greater_equal(values, -INT64_MAX if field.minimum is None else int(field.minimum))
    if field.base is float:
        least = -1e300 if field.minimum is None else field.minimum
        most = 1e300 if field.maximum is None else field.maximum
        # A zero below zero: was it written as -0, which is 0, or as -0.0? The strict reader sees.
        clear = ~np.signbit(_numpy(values.fill_null(0.0))) | _numpy(
            pc.not_equal(values, 0.0).fill_null(fill_value=True)
        )
        inside = pc.and_(pc.greater_equal(values, least), pc.less_equal(values, most))
        return pc.and_(inside, pa.array(clear))
    if field.base is list:
        return _fit_list(values)
    if field.choices is not None:
        return pc.is_in(values, value_set=pa.array(sorted(field.choices)))
    if field.pattern:
        return pc.match_substring_regex(values, field.pattern.pattern)
    return pc.greater_equal(pc.binary_length(values), field.min_length) if field.min_length else None


def _fit_list(values: Any) -> Any:
    bad = pc.list_parent_indices(values).filter(
        pc.less(values.flatten(), -INT64_MAX).fill_null(fill_value=True)
    )
    fit = np.ones(len(values), dtype=np.bool_)
    fit[_numpy(bad)] = False
    return pa.array(fit)
