"""A shell on the far side that runs the script: sorts what it says from what it prints; knows no channel."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from runner.connection import Sink
from runner.errors import ConnectionLostError, NoFileError
from schemas.text import printable

_MAX_LINE_BYTES = 1 << 16
_COMPLAINT_BYTES = 2000


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
        self.taken: Callable[[bytes], object] | None = None
        """Takes the data that it sends."""

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

    async def ask(self, line: str) -> None:
        """Send a request."""
        await self.send(line.encode("utf-8", "surrogateescape") + b"\n")

    def _complain(self, data: bytes) -> None:
        self._complaint = (self._complaint + data)[-_COMPLAINT_BYTES:]

    def _sort(self, data: bytes) -> None:
        while data:
            if self._raw_left:
                piece = data[: self._raw_left]
                self._raw_left -= len(piece)
                if self.taken is not None:
                    self.taken(piece)
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
        if words[0] == "raw" and len(words) > 1 and words[1].isdigit():
            self._raw_left = int(words[1])
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


def exit_code(code: int) -> int:
    """Return the exit code as processes have it: a shell says 128 and the signal's number."""
    ended = code - 128
    return -ended if ended in set(signal.Signals) else code


def take_fact(facts: dict[str, str | int | float], name: str, value: str) -> None:
    """Add what a shell says of its machine; sizes in bytes, numbers as numbers."""
    if name.endswith("_kib"):
        name, value = name.replace("_kib", "_bytes"), str(int(value) * 1024) if value.isdigit() else ""
    if value:
        facts[name] = int(value) if value.isdigit() else value


def refusal(name: str, words: list[str], max_bytes: int) -> NoFileError:
    """Return why a file is not sent."""
    match words[0]:
        case "such":
            why = "No such file or directory: nothing is there"
        case "large":
            why = f"it has {words[1]} bytes, more than {max_bytes}"
        case "regular":
            why = "it is no regular file"
        case _:
            why = "it can't be read"
    return NoFileError(f"can't pull {name}: {why}", too_large=words[0] == "large")


def unstartable(words: list[str]) -> str:
    """Return why a program can't be started."""
    if words == ["there"]:
        return (
            "it is there but can't be executed, for want of permission or in a folder mounted noexec; "
            "name what is to read it first, as in sh script.sh"
        )
    return "no such program over there"


def told(words: list[str]) -> str:
    """Return what a tool over there complained about."""
    return printable(" ".join(words).strip())[:200] or "it failed"
