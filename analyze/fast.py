"""Decodes the plain case quickly: an event of today's version with our fields alone; judges nothing else.

It may only ever be too strict: what it does not take is looked at again, slowly, by `analyze.reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, Struct, UnsetType

from analyze.lines import Chunk
from analyze.shapes import INT64_MAX, Field, of_kind
from schemas.events import BY_KIND, VERSION

_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Int64 = npt.NDArray[np.int64]


def _whole(minimum: float | None) -> Any:
    return Annotated[int, Meta(ge=-INT64_MAX if minimum is None else int(minimum), le=INT64_MAX)]


def _type(field: Field) -> Any:
    """Return the type by which msgspec checks what `Field.fault` checks."""
    made: Any = field.base
    if field.name == "v":
        made = Literal[VERSION]
    elif field.choices is not None:
        made = Literal[tuple(sorted(field.choices))]
    elif field.base is int:
        made = _whole(field.minimum)
    elif field.base is float and field.minimum is not None:
        made = Annotated[float, Meta(ge=field.minimum, le=field.maximum)]
    elif field.base is str and field.pattern:
        made = Annotated[str, Meta(pattern=field.pattern.pattern)]
    elif field.min_length:
        made = Annotated[str, Meta(min_length=field.min_length)]
    elif field.base is list:
        item: Any = _whole(None)
        if not field.whole_items:
            item = item | float | None if type(None) in (field.inner or ()) else item | float
        made = list[item]
    elif field.base is dict and field.inner is not None:
        inner: Any = None
        for kind in sorted(field.inner, key=lambda t: t.__name__):
            one = _whole(None) if kind is int else kind
            inner = one if inner is None else inner | one
        made = dict[str, inner]
    return made | None if field.nullable else made


def _hides_keys(line: bytes) -> bool:
    """Say whether keys can't be counted by their colon, since a blank may stand before it."""
    return b'" ' in line or b'"\t' in line or b'"\r' in line


@cache
def _struct(kind: str) -> type[Struct]:
    """Return the type that events of a kind are decoded to; made once, since that takes milliseconds."""
    return msgspec.defstruct(
        kind,
        [
            # msgspec keeps the tag out of the fields: it is the type.
            (f.name, _type(f)) if f.required else (f.name, _type(f) | UnsetType, UNSET)
            for f in of_kind(kind).values()
            if f.name != "kind"
        ],
        tag_field="kind",
        tag=kind,
        forbid_unknown_fields=True,
        kw_only=True,
        gc=False,
    )


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    union: Any = None
    for kind in BY_KIND:
        union = _struct(kind) if union is None else union | _struct(kind)
    return msgspec.json.Decoder(union)


class Pile:
    """Events of one kind, in the order of their lines."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fields = [f for f in of_kind(kind).values() if f.name != "kind"]
        self.least = 1 + sum(f.required for f in self.fields)
        """Keys an event is written with at the least."""
        self.events: list[Struct] = []
        self.places: list[int] = []
        self.counts: list[int] = []
        """How many keys each was written with, repeated ones included."""

    def take(self) -> tuple[list[Field], list[Sequence[Any]], Int64, list[int]]:
        """Return fields, columns, places in the chunk and places of events with a key that stood twice."""
        columns = list(zip(*map(msgspec.structs.astuple, self.events), strict=True))
        places = np.array(self.places, dtype=np.int64)
        once = self._keys(columns) == np.array(self.counts, dtype=np.int64)
        twice: list[int] = []
        if not once.all():
            twice = places[~once].tolist()
            places = places[once]
            columns = list(
                zip(
                    *(row for row, ok in zip(zip(*columns, strict=True), once, strict=True) if ok),
                    strict=True,
                )
            )
        self.events, self.places, self.counts = [], [], []
        kept: list[Sequence[Any]] = []
        fields: list[Field] = []
        for field, column in zip(self.fields, columns, strict=False):
            if UNSET not in column:
                kept.append(column)
            elif any(value is not UNSET for value in column):
                kept.append([None if value is UNSET else value for value in column])
            else:
                continue
            fields.append(field)
        return fields, kept, places, twice

    def _keys(self, columns: list[Any]) -> Int64:
        """Return how many different keys each event was written with."""
        keys = np.full(len(self.events), self.least, dtype=np.int64)
        for field, column in zip(self.fields, columns, strict=True):
            if not field.required:
                keys += np.array([value is not UNSET for value in column])
            if field.base is dict:
                keys += np.array([len(value) if type(value) is dict else 0 for value in column])
        return keys


class PlainReader:
    """Takes the plain lines of a chunk and leaves the others."""

    def __init__(self) -> None:
        self._piles: dict[type[Struct], Pile] = {_struct(kind): Pile(kind) for kind in BY_KIND}
        self._decode = _decoder().decode

    def read(
        self, chunk: Chunk, places: Iterable[int] | None = None
    ) -> tuple[list[tuple[str, list[Field], list[Sequence[Any]], Int64]], list[int]]:
        """Return the plain lines by kind, as fields, columns and places; and the places of the others.

        `places` are those to look at; all if None.
        """
        decode, piles = self._decode, self._piles
        others: list[int] = []
        lines = enumerate(chunk.lines) if places is None else ((i, chunk.line(i)) for i in places)
        odd = places is not None or chunk.odd
        for i, line in lines:
            if odd and (i in chunk.too_long or _hides_keys(line)):
                others.append(i)
                continue
            try:
                event = decode(line)
            except _UNDECODABLE:
                others.append(i)
                continue
            pile = piles[type(event)]
            pile.events.append(event)
            pile.places.append(i)
            # Keys are counted by what follows them; the check is made for all events at once.
            pile.counts.append(line.count(b'":'))
        made = []
        for pile in piles.values():
            if pile.events:
                fields, columns, places, twice = pile.take()
                others += twice
                if len(places):
                    made.append((pile.kind, fields, columns, places))
        return made, sorted(others)
