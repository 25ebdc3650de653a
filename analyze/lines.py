"""Cuts a file into numbered lines without holding it; knows nothing of what a line says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from schemas.events import MAX_LINE_BYTES

CHUNK_BYTES = 8 * 1024 * 1024
HEAD_BYTES = 200
"""How much is kept of a line that is no event."""


@dataclass(slots=True)
class Chunk:
    """Some whole lines in a row."""

    first_line: int
    """Number of the first, from 1."""
    offset: int
    """Byte at which it begins."""
    lines: list[bytes]
    """Without their newlines; the text of a line that is too long is its head alone."""
    too_long: dict[int, int] = field(default_factory=dict)
    """Length of each line that is too long, by its place in `lines`."""
    odd: bool = False
    """Some line is too long, or has a blank after a quotation mark."""
    unterminated: bool = False
    """The last line has no newline."""


def chunks(file: BinaryIO, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yield the lines of a file; holds no more than one chunk and one line."""
    number, offset = 1, 0
    rest = b""
    while data := file.read(size):
        head, newline, rest = (rest + data).rpartition(b"\n") if b"\n" in data else (b"", b"", rest + data)
        if newline:
            yield _chunk(number, offset, head)
            number += head.count(b"\n") + 1
            offset += len(head) + 1
        if len(rest) > MAX_LINE_BYTES:
            head_of_long, length, after, ended = _skip(file, rest, size)
            yield Chunk(number, offset, [head_of_long], {0: length}, odd=True, unterminated=not ended)
            number, offset, rest = number + 1, offset + length + ended, after
            if b"\n" in rest:
                head, _, rest = rest.rpartition(b"\n")
                yield _chunk(number, offset, head)
                number += head.count(b"\n") + 1
                offset += len(head) + 1
    if rest:
        last = _chunk(number, offset, rest)
        last.unterminated = True
        yield last


def _chunk(number: int, offset: int, text: bytes) -> Chunk:
    made = Chunk(number, offset, text.split(b"\n"))
    if max(map(len, made.lines)) >= MAX_LINE_BYTES:
        made.too_long = {i: len(line) for i, line in enumerate(made.lines) if len(line) >= MAX_LINE_BYTES}
    made.odd = bool(made.too_long) or b'" ' in text or b'"\t' in text or b'"\r' in text
    return made


def _skip(file: BinaryIO, begun: bytes, size: int) -> tuple[bytes, int, bytes, bool]:
    """Read on to the end of a line that is too long; return head, length, what follows, and if it ended."""
    length = len(begun)
    while data := file.read(size):
        line, newline, after = data.partition(b"\n")
        length += len(line)
        if newline:
            return begun[:HEAD_BYTES], length, after, True
    return begun[:HEAD_BYTES], length, b"", False
