"""Notices that a machine has fallen silent, also while a slow link is full of what is sent to it.

On such a link the answer to a keepalive is as late as the data before it; what the other side's TCP has
confirmed meanwhile shows that it is there. Only while much is waiting: a frozen server's TCP confirms, too.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any

import asyncssh
import trio_asyncio

SILENT = "roundlog_silent"
"""What a connection is marked with that was given up for its silence."""
JUMP = "roundlog_jump"
"""What a connection through another keeps that one as."""
_LOOKS = 10
"""Without news, one after the other: then it is lost. Counted, so that a busy loop here loses nobody."""
_NEVER = 1_000_000
_TCP_INFO = 11  # socket.TCP_INFO is not there on all systems
_LAYOUT = struct.Struct("=24xI92xQQ8xI")
"""Of Linux's tcp_info: packets unconfirmed, bytes confirmed, bytes received, bytes not sent yet."""


@dataclass(frozen=True, slots=True)
class _Seen:
    confirmed: int
    received: int
    waiting: bool


class Pulse:
    """Watches over a connection until it is closed.

    Args:
        connection: logged in; where the system doesn't tell how TCP gets on, its keepalives alone decide.
        lost_s: after so many seconds of silence the connection is given up.
    """

    def __init__(self, connection: asyncssh.SSHClientConnection, lost_s: float) -> None:
        self._connection = connection
        jump: asyncssh.SSHClientConnection | None = connection.get_extra_info(JUMP)
        self._socket: Any = (jump or connection).get_extra_info("socket")
        self._every_s = lost_s / _LOOKS
        self._without_news = 0
        self._loop: asyncio.AbstractEventLoop = trio_asyncio.current_loop.get()
        seen = self._see()
        if seen is None:
            return
        self._seen = seen
        for one in (connection, jump):
            if one is not None:
                one.set_keepalive(count_max=_NEVER)
        self._loop.call_later(self._every_s, self._look)

    def _see(self) -> _Seen | None:
        try:
            told = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAYOUT.size)
            unconfirmed, confirmed, received, unsent = _LAYOUT.unpack(told)
        except (AttributeError, OSError, struct.error):  # no socket, closed, or no such option
            return None
        return _Seen(confirmed, received, bool(unconfirmed or unsent))

    def _look(self) -> None:
        if self._connection.is_closed():
            return
        before, seen = self._seen, self._see()
        if seen is not None:
            moves = before.waiting and seen.waiting and seen.confirmed > before.confirmed
            self._without_news = 0 if moves or seen.received > before.received else self._without_news + 1
            self._seen = seen
        if self._without_news < _LOOKS:
            self._loop.call_later(self._every_s, self._look)
            return
        self._connection.set_extra_info(**{SILENT: True})
        self._connection.abort()
