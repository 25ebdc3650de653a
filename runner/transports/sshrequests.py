"""What a worker's shell is asked over SSH, and what its answers mean: greeting, push, pull.

Nothing that it says is trusted: what is no answer to the question is the loss of the connection.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import trio

from runner.arrays import sha256_of
from runner.connection import Transferred
from runner.errors import ConnectionLostError, NoFileError, TransferError
from runner.transports import sshscript
from runner.transports.sshtalk import Shell, number, out_of_turn, size_or_none
from schemas.text import printable

_INLINE_BYTES = 1 << 20
_FACT_CHARS = 100
_COMPLAINT_CHARS = 200
_KNOWN = {
    "No space left on device": "the disk there is full; make room or name another folder with folder = ...",
    "Disk quota exceeded": "no more may be written there; make room or name another folder with folder = ...",
    "Read-only file system": "nothing can be written there; name another folder with folder = ...",
}
"""Complaints of the tools there that can be told better."""
_TEXTS = {"hash", "setsid", "python", "system"}
_FIGURES = {"cpus", "memory_kib", "disk_free_kib", "gpus", "clock_s"}


@dataclass(slots=True)
class Greeting:
    """What a new shell says: the worker's folder, how many leftovers it ended, what the machine is like.

    ``old``: the folder was there already, and perhaps files in it.
    """

    folder: str = ""
    old: bool = False
    ended: int = 0
    facts: dict[str, str | int | float] = field(default_factory=dict)


async def greeted(shell: Shell, asked_folder: str) -> Greeting:
    """Listen to a new shell until it is ready.

    Raises:
        TransferError: the worker's folder can't be made.
        ConnectionLostError: it has left, or says something else.
    """
    greeting = Greeting()
    while True:
        said = await shell.hear()
        match said:
            case ["nofolder", *why]:
                raise TransferError(
                    f"can't make the worker's folder {asked_folder}: {told(why)}; "
                    "name another with folder = ..."
                )
            case ["folder", *words]:
                greeting.folder = " ".join(words)
            case ["was", age]:
                greeting.old = age == "old"
            case ["ended", _]:
                greeting.ended = number(said, 1)
            case ["fact", name, *words] if name in _TEXTS | _FIGURES:
                _take_fact(greeting.facts, name, printable(" ".join(words)).strip()[:_FACT_CHARS])
            case ["ready"]:
                return greeting
            case _:
                raise out_of_turn(said)


@dataclass(frozen=True, slots=True)
class File:
    """A file to send: where it is, its name over there, its size in bytes, its hash, its mode in octal."""

    source: Path
    name: str
    size: int
    sha256: str
    mode: str


async def there(shell: Shell, file: File) -> int | None:
    """Return how many bytes of a file are there of a transfer that was cut; None if it is there whole.

    Raises:
        ConnectionLostError: the shell is gone, or talks nonsense.
    """
    await shell.ask(f"there {sshscript.path(file.name)} {file.size} {file.sha256} {file.mode}")
    said = await shell.expect("there")
    if said[1:] == ["whole"]:
        return None
    found = number(said, 1)
    return found if found < file.size else 0


async def put(shell: Shell, file: File, there: int, *, hashed: bool) -> str | None:
    """Send a file, or what is missing of it.

    Args:
        shell: that takes it; it has left where that failed.
        file: what is sent.
        there: how many bytes of it are there already.
        hashed: whether the other side can compute hashes; else the size must do.

    Returns:
        Why it was not taken, in words, or None when it was.

    Raises:
        OSError: the source can't be read.
        ConnectionLostError: the shell is gone, or talks nonsense.
    """
    missing = file.size - there
    wanted = file.sha256 if hashed else "size"
    await shell.ask(f"put {sshscript.path(file.name)} {missing} {wanted} {file.mode} {there}")
    with suppress(ConnectionLostError):  # what it said before it left is still to be heard
        await shell.send_file(file.source, there, missing)
    said = await shell.expect("ok", "bad")
    return None if said[0] == "ok" else told(said[1:])


async def get(shell: Shell, name: str, target: Path, part: Path, max_bytes: int) -> Transferred:
    """Fetch a file; what is in `part` of it already is gone on with.

    Args:
        shell: that sends it.
        name: what it is called, inside the folder.
        target: where it goes when it is whole.
        part: where it grows.
        max_bytes: more are not taken.

    Raises:
        OSError: it can't be written.
        TransferError: it is no such file as may be fetched, or did not arrive whole.
        ConnectionLostError: the shell is gone, or talks nonsense.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(part.lstat().st_mode) or part.stat().st_size < sshscript.RESUMED_BYTES:
            part.unlink()
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "ab", buffering=0) as file:
        taker = shell.taker = _Part(file, max_bytes)
        try:
            await shell.ask(f"get {sshscript.path(name)} {max_bytes} {taker.offset}")
            said = await shell.expect("raw", "no")
            if said[0] == "no":
                raise refusal(name, said[1:], max_bytes)
            said = await shell.expect("sum")
        finally:
            shell.taker = None
        length = file.tell()
    if length > _INLINE_BYTES:
        ours = await trio.to_thread.run_sync(sha256_of, part)
    else:
        ours = sha256_of(part)
    if length != number(said, 1) or said[2:] not in ([ours], ["none"]):
        part.unlink()
        raise TransferError(f"can't pull {name}: it changed on its way or while it was read")
    part.replace(target)
    return Transferred(length, taker.offset)


class _Part:
    """A file that grows by what a shell sends."""

    def __init__(self, file: FileIO, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self.offset = file.tell()
        """How many bytes of it were there already."""

    def begin(self, count: int, offset: int) -> None:
        if offset not in {0, self.offset} or offset + count > self._max_bytes:
            raise ConnectionLostError(
                f"its shell would send {count} bytes, from byte {offset} on, out of turn"
            )
        if offset != self.offset:  # what is here is of another file
            self._file.truncate(0)
            self.offset = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)


def _take_fact(facts: dict[str, str | int | float], name: str, value: str) -> None:
    """Add a fact, sizes in bytes; a figure that is none was told by a tool we don't know."""
    if name in _TEXTS and value:
        facts[name] = value
    figure = size_or_none(value)
    if name in _FIGURES and figure is not None:
        facts[name.replace("_kib", "_bytes")] = figure * (1024 if name.endswith("_kib") else 1)


def refusal(name: str, words: list[str], max_bytes: int) -> NoFileError:
    """Return why a file is not sent."""
    match words:
        case ["such", *_]:
            why = "No such file or directory: nothing is there"
        case ["large", size, *_] if size_or_none(size) is not None:
            why = f"it has {size} bytes, more than {max_bytes}"
        case ["regular", *_]:
            why = "it is no regular file"
        case _:
            why = "it can't be read"
    return NoFileError(f"can't pull {name}: {why}", too_large=words[:1] == ["large"])


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
    said = printable(" ".join(words).strip())[:_COMPLAINT_CHARS] or "it failed"
    plain = next((told for sign, told in _KNOWN.items() if sign in said), None)
    return said if plain is None else f"{plain} ({said})"
