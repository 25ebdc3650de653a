"""A shell on the far side that runs the script: sorts what it says from what it prints; knows no channel."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import trio

from runner.connection import Sink
from runner.errors import ConnectionLostError
from schemas.text import printable

_MAX_LINE_BYTES = 1 << 16
_MAX_TAIL_BYTES = 200
"""What follows a file is shorter."""
_MAX_MESSAGES = 1000
"""Unheard; no answer has so many."""
_MAX_DIGITS = 18
_COMPLAINT_BYTES = 2000
_MAX_EXIT_CODE = 255


class Taker(Protocol):
    """Takes a file that a shell sends."""

    def begin(self, count: int, offset: int) -> None:
        """Get ready for so many bytes, from that one on; raise ConnectionLostError if they are not wanted."""
        ...

    def write(self, data: bytes) -> object:
        """Take some of them."""
        ...


class Shell(ABC):
    """A shell that runs the script; one request at a time.

    Args:
        token: what it begins its lines with.
    """

    def __init__(self, token: str) -> None:
        self._marker = f"{token} ".encode()
        self._held = b""
        self._messages: deque[list[str]] = deque()
        self._raw_left = 0
        self._failure: Exception | None = None
        self._complaint = b""
        self.gone = trio.Event()
        """Set when it has ended."""
        self.cause = ""
        """Why the connection that it was on has ended, if it has."""
        self.sink: Sink | None = None
        """Takes what is printed."""
        self.taker: Taker | None = None
        """Takes the file that it sends."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send some bytes, when there is room.

        Raises:
            ConnectionLostError: the shell is gone.
        """

    @abstractmethod
    async def send_file(self, source: Path, offset: int, count: int) -> None:
        """Send so many bytes of a file; as many zeros where it has become shorter."""

    @abstractmethod
    async def end(self, patience_s: float) -> None:
        """Let it read to the end of its input and leave; after a time, close the channel."""

    @abstractmethod
    def drop(self) -> None:
        """Close the channel at once."""

    @abstractmethod
    async def _more(self) -> None:
        """Wait until there is news."""

    async def hear(self) -> list[str]:
        """Return the words of the next message.

        Raises:
            ConnectionLostError: there will be none.
        """
        while not self._messages:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self.gone.is_set():
                raise ConnectionLostError(self.last_words())
            await self._more()
        return self._messages.popleft()

    async def expect(self, *kinds: str) -> list[str]:
        """Return the words of the next message, which must be one of these.

        Raises:
            ConnectionLostError: it is another, or there will be none.
        """
        said = await self.hear()
        if said[0] not in kinds:
            raise out_of_turn(said)
        return said

    async def ask(self, line: str) -> None:
        """Send a request."""
        await self.send(line.encode("utf-8", "surrogateescape") + b"\n")

    def _complain(self, data: bytes) -> None:
        self._complaint = (self._complaint + data)[-_COMPLAINT_BYTES:]

    def _sort(self, data: bytes) -> None:
        while data:
            if self._raw_left:
                piece = data[: self._raw_left]
                if piece.find(self._marker, max(0, len(piece) - _MAX_TAIL_BYTES)) >= 0:
                    raise ConnectionLostError("the file was cut short: what sent it over there was ended")
                self._raw_left -= len(piece)
                if self.taker is not None:
                    self.taker.write(piece)
                data = data[len(piece) :]
                continue
            data = self._held + data
            self._held = b""
            start = data.find(self._marker)
            if start < 0:
                keep = _overlap(data, self._marker)
                self._print(data[: len(data) - keep])
                self._held = data[len(data) - keep :]
                return
            self._print(data[:start])
            rest = data[start + len(self._marker) :]
            line, newline, after = rest.partition(b"\n")
            if not newline and len(rest) < _MAX_LINE_BYTES:
                self._held = data[start:]
                return
            self._hear(line.decode("utf-8", "surrogateescape"))
            data = after

    def _print(self, data: bytes) -> None:
        if data and self.sink is not None:
            self.sink.write(data)

    def _hear(self, line: str) -> None:
        words = line.split(" ")
        if len(self._messages) >= _MAX_MESSAGES:
            raise out_of_turn(words)
        if words[0] == "raw":
            count, offset = number(words, 1), number(words, 2)
            if self.taker is None:
                raise out_of_turn(words)
            self.taker.begin(count, offset)
            self._raw_left = count
        self._messages.append(words)

    def last_words(self) -> str:
        """Return how it ended, as far as that is known."""
        said = printable(self._complaint.decode("utf-8", "replace").strip().rpartition("\n")[2])[:200]
        cause = f": {self.cause}" if self.cause else ""
        return f"the connection was lost{cause}" + (f" ({said})" if said else "")


async def feed(
    shell: Shell, source: trio.MemoryReceiveChannel[bytes], started: trio.Event, patience_s: float
) -> None:
    """Send a command what it is fed with; its end, too."""
    await started.wait()  # what is sent before is the shell's
    with suppress(ConnectionLostError):
        async with source:
            async for chunk in source:
                await shell.send(chunk)
        await shell.end(patience_s)


def _overlap(data: bytes, marker: bytes) -> int:
    """Return how many bytes at the end of the data may be the beginning of the marker."""
    longest = min(len(data), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if data.endswith(marker[:n])), 0)


def exit_code(status: int) -> int:
    """Return the exit code as processes have it: a shell says 128 (Korn's: 256) and the signal's number."""
    ended = status - (256 if status > _MAX_EXIT_CODE else 128)
    return -ended if ended in set(signal.Signals) else status


def number(words: list[str], index: int) -> int:
    """Return a word of a message that must be a whole number, such as a size in bytes.

    Raises:
        ConnectionLostError: it is none.
    """
    word = words[index] if index < len(words) else ""
    if not _is_number(word):
        raise out_of_turn(words)
    return int(word)


def size_or_none(word: str) -> int | None:
    """Return a size in bytes; None of what isn't one."""
    return int(word) if _is_number(word) else None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS


def out_of_turn(words: list[str]) -> ConnectionLostError:
    """Return what a message is told as that was not to be expected."""
    return ConnectionLostError(f"its shell said {printable(' '.join(words))[:100]!r} out of turn")
