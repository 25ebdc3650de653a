"""One shell on the far side of an SSH connection: sends it lines, sorts what it says from what it prints.

Its callbacks are called by asyncssh in trio-asyncio's loop, which is a task of trio's: they may set events.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
import trio
from trio_asyncio import aio_as_trio

from runner.connection import Sink
from runner.errors import ConnectionLostError
from runner.transports import sshscript
from schemas.text import printable

_CHUNK_BYTES = 1 << 16
_WINDOW_BYTES = 16 << 20
_PACKET_BYTES = 1 << 18
_HIGH_WATER_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 16
_COMPLAINT_BYTES = 2000


class Shell(asyncssh.SSHClientSession[bytes]):
    """A shell that runs the script; one request at a time.

    Args:
        token: what it begins its lines with.
    """

    def __init__(self, token: str) -> None:
        self._marker = f"{token} ".encode()
        self._held = b""
        self._messages: deque[list[str]] = deque()
        self._news = trio.Event()
        self._writable = trio.Event()
        self._writable.set()
        self._raw_left = 0
        self._raw_to: Callable[[bytes], object] | None = None
        self._failure: Exception | None = None
        self._complaint = b""
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None
        self.gone = trio.Event()
        """Set when it has ended."""
        self.sink: Sink | None = None
        """Takes what is printed."""
        self.taken: Callable[[bytes], object] | None = None
        """Takes the data that it sends."""

    @classmethod
    async def open(cls, connection: asyncssh.SSHClientConnection, mark: str, folder: str) -> Shell:
        """Start a shell and feed it the script.

        Raises:
            ConnectionLostError: no shell could be had.
        """
        token = secrets.token_hex(12)
        try:
            _, shell = await aio_as_trio(connection.create_session)(
                lambda: cls(token),
                "exec /bin/sh",
                encoding=None,
                window=_WINDOW_BYTES,
                max_pktsize=_PACKET_BYTES,
            )
        except (asyncssh.Error, OSError) as e:
            raise ConnectionLostError(f"no shell could be started: {_first_line(e)}") from e
        await shell.send(sshscript.script(token, mark, folder))
        return shell  # type: ignore[no-any-return] # asyncssh gives back what the factory made

    # -- what asyncssh calls

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Keep the channel."""
        self._chan = chan
        chan.set_write_buffer_limits(_HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncssh's signature
        """Wake whoever waits."""
        self.gone.set()
        self._news.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """Hold back who sends."""
        self._writable = trio.Event()

    def resume_writing(self) -> None:
        """Let them go on."""
        self._writable.set()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Sort what came."""
        if datatype is not None:
            self._complaint = (self._complaint + data)[-_COMPLAINT_BYTES:]
            return
        try:
            self._sort(data)
        except Exception as e:  # noqa: BLE001 - of the disk; for whoever asked, not for asyncssh
            self._failure = e
            self._news.set()

    def eof_received(self) -> bool:
        """Let the channel close."""
        return False

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
        self._news.set()

    # -- what the connection calls

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
                raise ConnectionLostError(self._last_words())
            await self._news.wait()
            self._news = trio.Event()
        return self._messages.popleft()

    async def send(self, data: bytes) -> None:
        """Send some bytes, when there is room.

        Raises:
            ConnectionLostError: the shell is gone.
        """
        await self._writable.wait()
        await trio.lowlevel.checkpoint()
        if self._chan is None or self.gone.is_set():
            raise ConnectionLostError(self._last_words())
        try:
            self._chan.write(data)
        except OSError as e:
            raise ConnectionLostError(self._last_words()) from e

    async def ask(self, line: str) -> None:
        """Send a request."""
        await self.send(line.encode("utf-8", "surrogateescape") + b"\n")

    async def send_file(self, source: Path, offset: int, count: int) -> None:
        """Send so many bytes of a file; as many zeros where it has become shorter."""
        with source.open("rb", buffering=0) as file:
            file.seek(offset)
            while count:
                chunk = file.read(min(_CHUNK_BYTES, count)) or bytes(min(_CHUNK_BYTES, count))
                await self.send(chunk)
                count -= len(chunk)

    async def end(self, patience_s: float) -> None:
        """Let it read to the end of its input and leave; after a time, close the channel."""
        if self._chan is None or self.gone.is_set():
            return
        with trio.CancelScope(shield=True):
            try:
                self._chan.write_eof()
            except OSError:
                return
            with trio.move_on_after(patience_s):
                await self.gone.wait()
                return
            self._chan.abort()

    def drop(self) -> None:
        """Close the channel at once."""
        if self._chan is not None:
            self._chan.abort()

    def _last_words(self) -> str:
        said = printable(self._complaint.decode("utf-8", "replace").strip().rpartition("\n")[2])[:200]
        return "the connection was lost" + (f" ({said})" if said else "")


def _overlap(data: bytes, marker: bytes) -> int:
    """Return how many bytes at the end of the data may be the beginning of the marker."""
    longest = min(len(data), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if data.endswith(marker[:n])), 0)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def lost(error: Any) -> ConnectionLostError:
    """Return what a worker's loss is told as."""
    return ConnectionLostError(f"the connection was lost: {_first_line(error)}")
