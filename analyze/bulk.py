"""Reads the lines that a runner writes by the hundred thousand, column by column; judges nothing else.

It may only ever be too strict. A line is taken if it is plain ASCII without a backslash, of a kind without
lists and objects in it, and has the keys of another such line in the same order, with no blank around them;
all else is left to `analyze.fast` and `analyze.reader`. With commas for its colons such a line is CSV, which
Arrow reads several times as fast as JSON. That it means the same rests on two things: every quotation mark is
accounted for, so a string ends where its field does; and the first and last letters of what is no string are
looked at, since CSV allows more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from analyze.fast import Int64
from analyze.shapes import INT64_MAX, Field, of_kind
from schemas.events import BY_KIND, MAX_LINE_BYTES, VERSION

Mask = npt.NDArray[np.bool_]

_ARROW: dict[type, Any] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_FEWEST = 256
"""Lines that are not worth another try when one among them spoils the reading of all."""
_LAYOUTS = 4
"""So many orders of keys are tried for a kind: a log has one, logs of two versions after one another two."""
_WORD_BYTES = 8
_TEXT_BYTES = 2048
"""What is looked for at once is no longer: keys, and values that do not change."""
_SAME_BYTES = 64
"""A value that is longer is read from each line."""
_SAMPLES = 8
"""Lines of a layout that show which values do not change."""
_NULL = int.from_bytes(b"null", "little")

_ODD = np.ones(256, dtype=np.bool_)
_ODD[0x20:0x7F] = False
_ODD[[0x0A, 0x5C]] = False, True
_ZERO = np.uint8(ord("0"))


@cache
def fields_of(kind: str) -> dict[str, Field]:
    """Return the fields that a line of a kind may show; `overflow_path` is rare and left out."""
    return {name: field for name, field in of_kind(kind).items() if name != "overflow_path"}


@cache
def _kinds() -> dict[str, int]:
    """Return the kinds of single values alone, and the eight bytes that each begins with in a line."""
    flat = [kind for kind in BY_KIND if all(f.base in _ARROW for f in fields_of(kind).values())]
    return {kind: int.from_bytes(f'{kind}","round'.encode()[:_WORD_BYTES], "little") for kind in flat}


@dataclass(slots=True)
class _Page:
    """Some lines, and where their keys are."""

    data: Any
    """The bytes, uint8, with a newline and some words more than there are."""
    starts: Int64
    ends: Int64
    """Where in the data each line begins and where its newline is."""
    colons: Int64
    """Where the quotation marks are that a colon follows; they end a key, or begin a string with a colon."""
    first: Int64
    """Which of them is each line's first."""
    keys: Int64
    """How many of them each line has."""

    def pieces(self, words: int) -> Any:
        """Return what is in so many words from each byte on."""
        size = words * _WORD_BYTES
        return np.ndarray(len(self.data) - size + 1, dtype=f"V{size}", buffer=self.data, strides=(1,))


@dataclass(slots=True)
class _Layout:
    """Lines of a kind with the same keys."""

    kind: str
    names: list[str]
    places: Int64
    marks: Int64
    """How many quotation marks each line has, if none is inside a string."""
    same: dict[str, Any]
    """The values that all of the lines have."""

    @property
    def differing(self) -> list[str]:
        """Return the names of the others."""
        return [name for name in self.names if name not in self.same]


def read(text: bytes, starts: Int64, ends: Int64) -> list[tuple[str, Any, Int64]]:
    """Return the lines taken by kind, as an Arrow table and their places; a newline is at each of `ends`."""
    if len(text) < 64:
        return []
    data = np.zeros(len(text) + 1 + _TEXT_BYTES, dtype=np.uint8)
    data[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    data[len(text)] = ord("\n")
    marks = data == ord('"')
    colons = np.flatnonzero(marks[:-1] & (data[1:] == ord(":")))
    bounds = np.append(starts, len(text) + 1)
    first = np.searchsorted(colons, bounds)
    page = _Page(
        data=data,
        starts=starts,
        ends=ends,
        colons=colons,
        first=first[:-1],
        keys=np.diff(first),
    )
    layouts = [
        layout
        for kind, places in _by_kind(page, _plain(text, page))
        for layout in _layouts(page, kind, places)
    ]
    _leave_out_quoted(text, page, layouts, marks)
    data[colons + 1] = ord(",")
    data[ends - 1] = ord("\n")  # in place of the brace; the empty row after it is none
    rows = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(starts), [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    made: list[tuple[str, Any, Int64]] = []
    for layout in layouts:
        parsed = _parsed(layout, rows.take(pa.array(layout.places)), layout.places)
        made += [(layout.kind, table, at) for table, at in parsed]
    return made


def _plain(text: bytes, page: _Page) -> Mask:
    """Return which lines are between braces, of plain letters alone, and not too long."""
    data, starts, ends = page.data, page.starts, page.ends
    length = ends - starts
    plain: Mask = (length > 2) & (length < MAX_LINE_BYTES)
    plain &= (data[starts] == ord("{")) & (data[ends - 1] == ord("}"))
    clean = text.isascii() and b"\\" not in text and b"\x7f" not in text
    if not clean or np.count_nonzero(data[: len(text)] < 0x20) != len(starts) - 1:
        plain[_line_of(np.flatnonzero(_ODD[data[: len(text)]]), starts)] = False
    # "1.e5" is a number to CSV alone; a file name such as x.exe costs no more than a closer look.
    points = np.flatnonzero(data == ord("."))
    exponents = points[data[points + 1] | 0x20 == ord("e")]
    plain[_line_of(exponents, starts)] = False
    return plain


def _line_of(positions: Int64, starts: Int64) -> Int64:
    return np.searchsorted(starts, positions, side="right") - 1


def _by_kind(page: _Page, plain: Mask) -> Iterator[tuple[str, Int64]]:
    """Yield the places of plain lines by what they say their kind is, where they say it at the same key.

    That is a guess: what a line is, is seen when all its keys have been looked at.
    """
    left = np.flatnonzero(plain & (page.keys > 0))
    for _ in range(_LAYOUTS):
        if not len(left):
            return
        guess = len(left) // 2  # bad lines come in heaps, often at the beginning
        keys = list(_decoded(page, int(left[guess])))
        where = keys.index("kind") if "kind" in keys else len(keys)
        at = page.colons[np.minimum(page.first[left] + where, len(page.colons) - 1)]
        said = (page.keys[left] > where) & _says(page, b'"kind":"', at - 5)
        # Eight letters tell all kinds apart; whether the ninth fits is seen when the line has been read.
        words = page.pieces(1)[at + 3].view("<u8")
        for kind, word in _kinds().items():
            found = left[said & (words == word)]
            if len(found):
                yield kind, found
        said[guess] = True
        left = left[~said]


def _layouts(page: _Page, kind: str, places: Int64) -> Iterator[_Layout]:
    """Yield the lines of a kind that look like the first of them, then like the first of those left."""
    fields = fields_of(kind)
    for _ in range(_LAYOUTS):
        if not len(places):
            return
        taken = np.zeros(len(places), dtype=np.bool_)
        if names := _names(page, kind, int(places[0])):
            taken = page.keys[places] == len(names)
            alike = places[taken]
            same = _same(page, names, alike[:: max(len(alike) // _SAMPLES, 1)].tolist())
            values = {name: orjson.loads(raw) for name, raw in same.items()}
            if not any(fields[name].fault(value) for name, value in values.items()):
                good, marks = _looking_like(page, names, same, fields, alike)
                if good.any():
                    yield _Layout(kind, names, alike[good], marks[good], values)
                taken[taken] = good
        taken[0] = True
        places = places[~taken]


def _names(page: _Page, kind: str, place: int) -> list[str]:
    """Return the keys of a line, or none if they are not what its kind may have."""
    event = _decoded(page, place)
    fields = fields_of(kind)
    missing = any(field.required and name not in event for name, field in fields.items())
    return [] if missing or not event.keys() <= fields.keys() else list(event)


def _decoded(page: _Page, place: int) -> dict[str, Any]:
    """Return what a line between braces says; nothing if it is no JSON."""
    try:
        event: dict[str, Any] = orjson.loads(page.data[page.starts[place] : page.ends[place]].tobytes())
    except orjson.JSONDecodeError:
        return {}
    return event


def _same(page: _Page, names: Sequence[str], samples: Sequence[int]) -> dict[str, bytes]:
    """Return what stands for the values that some lines share, by name; a number of the event is its own."""
    same: dict[str, bytes] = {}
    for place in samples:
        raw = _raw(page, names, place)
        if place == samples[0]:
            same = {name: value for name, value in raw.items() if name != "seq" and len(value) <= _SAME_BYTES}
        elif raw:
            same = {name: value for name, value in same.items() if raw[name] == value}
    length = sum(len(name) + len('"":,') for name in names) + sum(map(len, same.values()))
    return same if length < _TEXT_BYTES - _WORD_BYTES else {}


def _raw(page: _Page, names: Sequence[str], place: int) -> dict[str, bytes]:
    """Return what stands for each value of a line, or nothing if its keys are others."""
    colons = page.colons[page.first[place] :][: len(names)].tolist()
    stops = [colon - len(name) - 2 for colon, name in zip(colons[1:], names[1:], strict=True)]
    stops.append(int(page.ends[place]) - 1)
    raw = {
        name: page.data[colon + 2 : stop].tobytes()
        for name, colon, stop in zip(names, colons, stops, strict=True)
    }
    made = b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in raw.items()) + b"}"
    whole = made == page.data[page.starts[place] : page.ends[place]].tobytes()
    return raw if whole and list(_decoded(page, place)) == list(names) else {}


def _looking_like(
    page: _Page, names: Sequence[str], same: Mapping[str, bytes], fields: Mapping[str, Field], places: Int64
) -> tuple[Mask, Int64]:
    """Return which lines have just these keys in this order and values of the right sorts.

    Where all have the `same` value they must say it with the same letters. Returned as well is how many
    quotation marks each line has at least: those of keys and of strings.
    """
    good = np.ones(len(places), dtype=np.bool_)
    marks = np.full(len(places), 2 * len(names) + sum(value.count(b'"') for value in same.values()))
    first, begin, text = page.first[places], page.starts[places], b"{"
    field: Field | None = None  # whose value begins there; none of the line itself
    for index, name in enumerate(names):
        text += b'%b"%b":' % (b"," if index else b"", name.encode())
        if name in same:
            text += same[name]
            continue
        colon = page.colons[first + index]
        stop = colon + 2 - len(text)
        good &= _says(page, text, stop)
        good &= begin == stop if field is None else _fits(page, field, begin, stop, marks)
        field, begin, text = fields[name], colon + 2, b""
    stop = page.ends[places] - len(text) - 1
    good &= _says(page, text + b"}", stop)
    good &= begin == stop if field is None else _fits(page, field, begin, stop, marks)
    return good, marks


def _leave_out_quoted(text: bytes, page: _Page, layouts: Sequence[_Layout], marks: Mask) -> None:
    """Leave out the lines that have a quotation mark inside a string.

    Each line of a layout has as many as it says, or more. So where those of all lines together are as many
    as there are, none has more, and they need not be counted line by line.
    """
    others = np.ones(len(page.starts), dtype=np.bool_)
    for layout in layouts:
        others[layout.places] = False
    least = sum(int(layout.marks.sum()) for layout in layouts)
    for start, end in zip(page.starts[others].tolist(), page.ends[others].tolist(), strict=True):
        least += text.count(b'"', start, end)
    if least == np.count_nonzero(marks):
        return
    there = np.diff(np.searchsorted(np.flatnonzero(marks), np.append(page.starts, len(text) + 1)))
    for layout in layouts:
        exact = there[layout.places] == layout.marks
        layout.places, layout.marks = layout.places[exact], layout.marks[exact]


def _says(page: _Page, said: bytes, places: Int64) -> Mask:
    """Return whether the data say something at each place; none below 0 is a place where they do."""
    words = -(-len(said) // _WORD_BYTES)
    # To gather bytes of no type is several times as fast as numbers that lie at odd places.
    found = page.pieces(words)[np.maximum(places, 0)].view("<u8").reshape(len(places), words)
    good = places >= 0
    for word in range(words):
        piece = said[word * _WORD_BYTES :][:_WORD_BYTES]
        mask = np.uint64((1 << 8 * len(piece)) - 1)
        good &= found[:, word] & mask == int.from_bytes(piece, "little")
    return good


def _fits(page: _Page, field: Field, begin: Int64, stop: Int64, marks: Int64) -> Mask:
    """Return which values look like the field's, as far as CSV won't see; add to `marks` those of strings."""
    lead, last = page.data[begin], page.data[stop - 1]
    length = stop - begin
    if field.base is str:
        fit = (lead == ord('"')) & (last == ord('"')) & (length >= 2)
        marks += 2 * fit
    elif field.base is bool:
        fit = (lead != ord('"')) & (last == ord("e"))
    else:
        # Not what begins with -, as zeros below zero do; nor 007 or 0x7.
        fit = (lead - _ZERO < 10) & (last - _ZERO < 10)
        zero = np.flatnonzero((lead == _ZERO) & (length != 1))
        fit[zero] &= page.data[begin[zero] + 1] == ord(".")
    if field.nullable and not fit.all():
        fit |= (length == 4) & (page.pieces(1)[begin].view("<u8") & np.uint64(0xFFFFFFFF) == _NULL)
    good: Mask = fit
    return good


def _parsed(layout: _Layout, rows: Any, places: Int64) -> list[tuple[Any, Int64]]:
    """Return what Arrow makes of the rows; one that it can't read costs those around it another way."""
    if not len(places):
        return []
    table = _table(layout, rows)
    if table is None:
        if len(places) <= _FEWEST:
            return []
        half = len(places) // 2
        first = _parsed(layout, rows[:half], places[:half])
        return first + _parsed(layout, rows[half:], places[half:])
    good = _good(layout, table)
    if not good.all():
        table, places = table.filter(pa.array(good)), places[good]
    return [(_with_same(layout, table), places)] if len(places) else []


def _table(layout: _Layout, rows: Any) -> Any:
    offsets = np.frombuffer(rows.buffers()[1], dtype=np.int64)[rows.offset : rows.offset + len(rows) + 1]
    text = rows.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(
                use_threads=False,
                column_names=[name for own in layout.names for name in (f"{own}:", own)],
                block_size=text.size + 1,
            ),
            parse_options=csv.ParseOptions(double_quote=False),
            convert_options=_convert(layout.kind, tuple(layout.differing)),
        )
    except pa.ArrowInvalid:
        return None
    return table.combine_chunks() if len(table) == len(rows) else None


def _with_same(layout: _Layout, table: Any) -> Any:
    """Add the values that all lines have; a null is what a column is without them."""
    for name, value in layout.same.items():
        if value is not None:
            base = fields_of(layout.kind)[name].base
            table = table.append_column(name, pa.repeat(pa.scalar(base(value), _ARROW[base]), len(table)))
    return table


@cache
def _convert(kind: str, names: tuple[str, ...]) -> Any:
    return csv.ConvertOptions(
        column_types={name: _ARROW[fields_of(kind)[name].base] for name in names},
        include_columns=list(names),
        check_utf8=False,  # they are plain letters
        null_values=["null"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["true"],
        false_values=["false"],
    )


def _numpy(values: Any) -> Any:
    return values.to_numpy(zero_copy_only=False)


def _good(layout: _Layout, table: Any) -> Mask:
    """Return which rows hold what the contract allows, as `Field.fault` says it; which is null was seen."""
    good = np.ones(len(table), dtype=np.bool_)
    for name in layout.differing:
        fit = _fit(fields_of(layout.kind)[name], table.column(name).combine_chunks(), layout.kind)
        if fit is not None:
            good &= _numpy(fit.fill_null(fill_value=True))
    return good


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
        return pc.and_(pc.greater_equal(values, least), pc.less_equal(values, most))
    if field.choices is not None:
        return pc.is_in(values, value_set=pa.array(sorted(field.choices)))
    if field.pattern:
        return pc.match_substring_regex(values, field.pattern.pattern)
    return pc.greater_equal(pc.binary_length(values), field.min_length) if field.min_length else None
