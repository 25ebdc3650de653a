"""Cuts a file into numbered lines without holding it; knows nothing of what a line says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from schemas.events import MAX_LINE_BYTES


class Readable(Protocol):
    """What lines are read from."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""


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
    text: bytes
    """Without the last newline; the text of a line that is too long may be its head alone."""
    starts: npt.NDArray[np.int64]
    """Where in the text each line begins."""
    ends: npt.NDArray[np.int64]
    """Where in the text each line's newline is, or would be."""
    too_long: dict[int, int] = field(default_factory=dict)
    """Length of each line that is too long, by its place in `lines`."""
    unterminated: bool = False
    """The last line has no newline."""

    @property
    def count(self) -> int:
        """Return how many lines these are."""
        return len(self.starts)

    @property
    def lines(self) -> list[bytes]:
        """Return the lines without their newlines; made anew at each call."""
        return self.text.split(b"\n")

    def line(self, place: int) -> bytes:
        """Return one line without its newline."""
        return self.text[int(self.starts[place]) : int(self.ends[place])]

    @property
    def odd(self) -> bool:
        """Say whether some line is too long, or has a blank after a quotation mark."""
        return bool(self.too_long) or any(blank in self.text for blank in (b'" ', b'"\t', b'"\r'))

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the byte of the file at which each line begins."""
        return self.starts + self.offset


def chunks(file: Readable, size: int = CHUNK_BYTES, *, number: int = 1, offset: int = 0) -> Iterator[Chunk]:
    """Yield the lines of a file; holds no more than one chunk and one line.

    `number` and `offset` are those of the line at which the file stands.
    """
    rest = b""
    while data := file.read(size):
        end = data.rfind(b"\n")
        if end < 0:
            rest += data
        else:
            head = b"".join((rest, memoryview(data)[:end]))
            rest = data[end + 1 :]
            made = _chunk(number, offset, head)
            yield made
            number += made.count
            offset += len(head) + 1
        if len(rest) > MAX_LINE_BYTES:
            head_of_long, length, after, ended = _skip(file, rest, size)
            long = _chunk(number, offset, head_of_long)
            long.too_long, long.unterminated = {0: length}, not ended
            yield long
            number, offset, rest = number + 1, offset + length + ended, after
            if b"\n" in rest:
                head, _, rest = rest.rpartition(b"\n")
                made = _chunk(number, offset, head)
                yield made
                number += made.count
                offset += len(head) + 1
    if rest:
        last = _chunk(number, offset, rest)
        last.unterminated = True
        yield last


def chunk_of(text: bytes) -> Chunk:
    """Return lines, the last without its newline, as if they were all there is."""
    return _chunk(1, 0, text)


def _chunk(number: int, offset: int, text: bytes) -> Chunk:
    newlines = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
    made = Chunk(number, offset, text, np.append(0, newlines + 1), np.append(newlines, len(text)))
    lengths = made.ends - made.starts
    made.too_long = {int(i): int(lengths[i]) for i in np.flatnonzero(lengths >= MAX_LINE_BYTES)}
    return made


def _skip(file: Readable, begun: bytes, size: int) -> tuple[bytes, int, bytes, bool]:
    """Read on to the end of a line that is too long; return head, length, what follows, and if it ended."""
    length = len(begun)
    while data := file.read(size):
        line, newline, after = data.partition(b"\n")
        length += len(line)
        if newline:
            return begun[:HEAD_BYTES], length, after, True
    return begun[:HEAD_BYTES], length, b"", False
