"""What a transport must be able to do; says nothing about how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import trio

from runner.errors import TransferError
from runner.job import Command

GONE = "its folder is gone, and all that was sent: somebody deleted it there"
"""How a worker is lost whose machine is there: what was sent once has to be sent again."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """What a transfer did: the file's size, and how much of it was there already.

    ``shared`` is where a pulled file lies if not at its target: workers that are simulated hand back the same
    few files, which nobody may change or delete.
    """

    size_bytes: int
    reused: int = 0
    shared: Path | None = None


@dataclass(slots=True)
class Mishap:
    """What a connection knows of what befell a call.

    ``injected`` is the fault that was put in on purpose, ``injected_after_s`` how many seconds after the
    call's start it struck; of a transfer that failed, the file's size and how much of it had got across.
    """

    injected: str | None = None
    injected_after_s: float | None = None
    size_bytes: int | None = None
    arrived_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code (negative: the signal), and the sizes of regular files it left.

    Of a command that stays, the exit code is None, the sizes, too, and ``report`` is what it said of itself.
    """

    exit_code: int | None
    sizes_bytes: Mapping[str, int] | None = field(default_factory=dict)
    report: Any = None


class Sink(Protocol):
    """Takes what a command prints."""

    def write(self, chunk: bytes) -> None:
        """Take some of it."""
        ...


class Connection(Protocol):
    """One worker's folder, wherever it is.

    Names on the worker are relative to its folder and never leave it. All methods can be cancelled:
    a transfer then leaves no file under its final name that isn't whole, a command no process.
    """

    address: str
    """Transport and place, for people."""
    folder: str
    """The worker's folder: an absolute path over there."""
    facts: Mapping[str, str | int | float]

    @property
    def mishap(self) -> Mishap | None:
        """What befell the last call; None where nothing did, or nothing is known of it."""
        ...

    async def push(self, source: Path, target: str) -> Transferred:
        """Copy a file to the worker, whole or not at all; folders on the way are made.

        Raises:
            TransferError: it could not travel.
            ConnectionLostError: the machine is gone.
        """
        ...

    async def exec(
        self,
        command: Command,
        *,
        env: Mapping[str, str],
        output: Sink,
        remove: Sequence[str] = (),
        expect: Sequence[str] = (),
        stdin: trio.MemoryReceiveChannel[bytes] | None = None,
    ) -> Ended:
        """Run a command in the worker's folder to its end; what it started ends with it.

        Args:
            command: a list is run as it is, a string by ``/bin/sh -c``.
            env: added to the worker's own environment.
            output: takes stdout and stderr.
            remove: files to delete before the command starts, where they exist.
            expect: files whose sizes are wanted afterwards, where they exist.
            stdin: what the command reads, until it is closed; None: nothing.

        Raises:
            CommandError: it could not be started.
            ConnectionLostError: the machine is gone.
        """
        ...

    async def pull(self, source: str, target: Path, *, max_bytes: int) -> Transferred:
        """Copy a regular file from the worker, whole or not at all; see ``Transferred.shared``.

        Raises:
            NoFileError: there is no such file, or it is no regular one, or too large.
            TransferError: it could not travel.
            ConnectionLostError: the machine is gone.
        """
        ...

    async def close(self, *, done: bool = False) -> bool:
        """End what is left of the commands and let go of the worker; once more is fine.

        Args:
            done: the run is complete, so that nothing of it need stay on another machine.

        Returns:
            Whether all is known to have ended; if not, the machine was out of reach.
        """
        ...


@lru_cache(1024)
def checked_name(name: str) -> str:
    """Return a name on the worker if it stays inside the worker's folder.

    Raises:
        TransferError: it doesn't.
    """
    parts = name.split("/")
    if not name or name.startswith("/") or "\0" in name or any(part in {"", ".", ".."} for part in parts):
        raise TransferError(f"{name!r} is no name inside the worker's folder")
    return name
