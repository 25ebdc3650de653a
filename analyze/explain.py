"""Tells of one line of a log what it says, how it was brought up, and what it became; loads nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analyze import source
from schemas.events import MAX_LINE_BYTES
from schemas.upcast import Place, steps, version_of

_SHOWN = 4_000
"""Characters of a line that are shown."""


def escaped(text: str) -> str:
    """Return a text in which nothing is hidden: what can't be printed is written as its code."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def raw_line(path: Path, offset: int, length: int) -> bytes:
    """Return the bytes of a line; of one that is too long its head.

    Raises:
        OSError: the log can't be read any more.
    """
    with source.opened(path) as opened:
        opened.file.seek(offset)
        return opened.file.read(length if length <= MAX_LINE_BYTES else _SHOWN)


def lines(
    raw: bytes,
    *,
    number: int,
    offset: int,
    length: int,
    reject: Mapping[str, Any] | None,
    event: Mapping[str, Any] | None,
    place: Place,
) -> Iterator[str]:
    """Yield what a person should see; `reject` or `event` is the row that the line became."""
    yield f"line {number}, byte {offset}, {length} bytes"
    shown = escaped(raw.rstrip(b"\r\n").decode(errors="backslashreplace"))
    yield f"  raw      {shown[:_SHOWN]}{'' if len(shown) <= _SHOWN else f' ... ({length} bytes in all)'}"
    yield from _brought_up(raw, place)
    if reject is not None:
        yield "  rejected " + escaped(": ".join(filter(None, (reject["reason"], reject["detail"]))))
    if event is not None:
        yield "  became   an event of the view 'events':"
        for name, value in event.items():
            if value is not None:
                yield f"    {name} = {escaped(str(value))[:_SHOWN]}"


def _brought_up(raw: bytes, place: Place) -> Iterator[str]:
    try:
        made = json.loads(raw)
    except (ValueError, RecursionError):
        # What is wrong with it the reader has said better.
        return
    try:
        if not isinstance(made, dict) or version_of(made) is None:
            return
        for version, event in steps(made, place):
            yield f"  as v{version:<6} {escaped(json.dumps(event, ensure_ascii=False))[:_SHOWN]}"
    except ValueError as e:
        yield f"  not brought up: {escaped(str(e))[:200]}"
