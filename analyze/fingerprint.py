"""Says whether a file is still what it was when it was read; knows nothing of what stands in it."""

from __future__ import annotations

import hashlib
import os
import time

import msgspec

_ENDS_BYTES = 4096
_PIECE = 1 << 20
_SETTLED_NS = 2_000_000_000
"""The coarsest clock of a file system: changes closer together may carry the same time."""


class Mark(msgspec.Struct, frozen=True):
    """What of a file changes when it does; its ctime, in nanoseconds, can't be set back."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    ends: str
    """Hash of its head and its tail."""


def mark(fd: int) -> Mark:
    """Return the mark of an open file."""
    status = os.fstat(fd)
    return Mark(
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        ends(fd, status.st_size),
    )


def ends(fd: int, size: int) -> str:
    """Return a hash of the first and the last bytes of a file of this size."""
    head = os.pread(fd, min(size, _ENDS_BYTES), 0)
    tail = os.pread(fd, _ENDS_BYTES, max(size - _ENDS_BYTES, 0)) if size > _ENDS_BYTES else b""
    return hashlib.sha256(head + tail).hexdigest()


def settled(fd: int) -> Mark | None:
    """Return the mark of an open file; None if a change from now on might give it the same one."""
    now = time.time_ns()
    found = mark(fd)
    return found if now - max(found.mtime_ns, found.ctime_ns) > _SETTLED_NS else None


class Hashed:
    """Reads a file and hashes what it reads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Return up to so many bytes; none at the end."""
        data = os.read(self._fd, size)
        self._hash.update(data)
        return data

    def digest(self, size: int) -> str:
        """Read so many bytes, or to the end; return the hash of all that has been read."""
        while size > 0 and (data := self.read(min(size, _PIECE))):
            size -= len(data)
        return self._hash.hexdigest()
