"""A shell in a channel of an SSH connection of asyncssh's.

Its callbacks are called by asyncssh in trio-asyncio's loop, which is a task of trio's: they may set events.
"""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import Any

import asyncssh
import trio
from trio_asyncio import aio_as_trio

from runner.errors import ConnectionLostError
from runner.transports import sshscript
from runner.transports.sshpulse import SILENT
from runner.transports.sshtalk import Shell

_CHUNK_BYTES = 1 << 16
_WINDOW_BYTES = 16 << 20
_PACKET_BYTES = 1 << 18
_HIGH_WATER_BYTES = 1 << 20
_TRIES = 6
"""At a shell, where a server allows no more at a time (MaxSessions); together about 3 s."""
_SILENCE = "it no longer answers"


class ChannelShell(Shell, asyncssh.SSHClientSession[bytes]):
    """A shell in a channel of an asyncssh connection."""

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self._news = trio.Event()
        self._writable = trio.Event()
        self._writable.set()
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None
        self.companion: Shell | None = None
        """Another way to the same machine, which is lost with this one."""

    @classmethod
    async def open(
        cls, connection: asyncssh.SSHClientConnection, mark: str, folder: str, *, sweep: bool
    ) -> ChannelShell:
        """Start a shell and feed it the script; `sweep`: let it end what is left running.

        Raises:
            ConnectionLostError: no shell could be had.
        """
        token = secrets.token_hex(12)
        for number in range(_TRIES):
            try:
                _, shell = await aio_as_trio(connection.create_session)(
                    lambda: cls(token),
                    "exec /bin/sh",
                    encoding=None,
                    window=_WINDOW_BYTES,
                    max_pktsize=_PACKET_BYTES,
                )
                break
            except asyncssh.ChannelOpenError as e:
                if connection.is_closed() or number == _TRIES - 1:
                    raise ConnectionLostError(f"no shell could be started: {_refused(e)}") from e
            except (asyncssh.Error, OSError) as e:
                raise ConnectionLostError(f"no shell could be started: {_first_line(e)}") from e
            await trio.sleep((0.5 + random.random()) * 0.1 * 2**number)
        await shell.send(sshscript.script(token, mark, folder, sweep=sweep))
        return shell  # type: ignore[no-any-return] # asyncssh gives back what the factory made

    # -- what asyncssh calls

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Keep the channel."""
        self._chan = chan
        chan.set_write_buffer_limits(_HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Keep why, and wake whoever waits."""
        silent = self._chan is not None and self._chan.get_extra_info(SILENT)
        self.cause = _SILENCE if silent else _cause(exc)
        if self.companion is not None:
            self.companion.cause = self.cause
            self.companion.drop()
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
            self._complain(data)
            return
        try:
            self._sort(data)
        except Exception as e:  # noqa: BLE001 - of the disk; for whoever asked, not for asyncssh
            self._failure = e
        if self._messages or self._failure is not None:
            self._news.set()

    def eof_received(self) -> bool:
        """Let the channel close."""
        return False

    # -- what the connection calls

    async def _more(self) -> None:
        await self._news.wait()
        self._news = trio.Event()

    async def send(self, data: bytes) -> None:
        """Send some bytes, when there is room.

        Raises:
            ConnectionLostError: the shell is gone.
        """
        await self._writable.wait()
        await trio.lowlevel.checkpoint()
        if self._chan is None or self.gone.is_set():
            raise ConnectionLostError(self.last_words())
        try:
            self._chan.write(data)
        except OSError as e:
            raise ConnectionLostError(self.last_words()) from e

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


def _cause(error: Exception | None) -> str:
    """Return why a connection ended, in words; nothing where only its channel did."""
    if error is None:
        return ""
    if isinstance(error, asyncssh.ConnectionLost):
        silent = "keepalive" in str(error)  # asyncssh has no other sign of it
        return _SILENCE if silent else "the other side closed it"
    return (error.strerror if isinstance(error, OSError) else None) or _first_line(error)


def _refused(error: asyncssh.ChannelOpenError) -> str:
    """Return what a server says that opens no channel; most say no more than that."""
    return f"{_first_line(error)}; does its sshd allow enough of them (MaxSessions)?"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def lost(error: Any) -> ConnectionLostError:
    """Return what a worker's loss is told as."""
    return ConnectionLostError(f"the connection was lost: {_first_line(error)}")
