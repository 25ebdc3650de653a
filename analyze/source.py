"""Opens what a user names as a log: a file, a pipe, stdin, also compressed; knows no line and no event.

What can't be read at any place, since it is a pipe or compressed, is copied to a temporary file first.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from analyze.fingerprint import Mark, settled

STDIN = Path("-")
UNPACKED_BYTES = 1 << 30
UNPACKED_TIMES = 200
"""A file that unpacks to more bytes than this, and more times its size, is no log; one shrinks 30 times."""
ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 20
_HEAD_BYTES = 1 << 16


@dataclass(slots=True)
class Source:
    """A log that can be read at any place."""

    file: BinaryIO
    running: bool
    """A runner holds the log."""
    cut: str = ""
    """What of it could not be decompressed, in words."""
    mark: Mark | None = None
    """What the file was before it was read; None of a pipe, or if it may change and keep the same mark."""
    plain: bool = False
    """It is read where it lies, not from a copy."""


def shown(path: Path) -> str:
    """Return the name of a file as text, also where it is no UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


def stem(path: Path) -> str:
    """Return the name of a log without its endings, as text."""
    if path == STDIN:
        return "stdin"
    name = shown(Path(path.name))
    for ending in (".gz", ".zst", ".jsonl"):
        name = name.removesuffix(ending)
    return name or shown(Path(path.name))


def found(names: Iterable[str]) -> list[Path]:
    """Return the logs that are meant: files, those in a folder, those a pattern fits; each in its place.

    A folder without logs, and a name that nothing has, are returned as they are.
    """
    paths: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            # Nobody may be at the other end of a pipe in a folder.
            inside = sorted(
                p for p in path.iterdir() if p.name.endswith(ENDINGS) and not (p.is_dir() or p.is_fifo())
            )
            paths += inside or [path]
        elif not path.exists() and glob.has_magic(name):
            paths += [Path(p) for p in sorted(glob.glob(name, recursive=True))] or [path]  # noqa: PTH207 - a pattern may be absolute
        else:
            paths.append(path)
    return paths


def is_locked(fd: int) -> bool:
    """Say whether a runner holds the log: it does as long as it lives."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


class UnpackedError(OSError):
    """A compressed file holds far more than a log can."""

    def __init__(self) -> None:
        super().__init__(
            errno.EFBIG, f"it unpacks to more than {UNPACKED_TIMES} times its size, as no log does"
        )


def head(path: Path) -> bytes:
    """Return the first bytes of what a file holds, unpacked; none of what is no file.

    Raises:
        OSError: it can't be read.
    """
    if path == STDIN or not path.is_file():
        return b""
    with path.open("rb") as file:
        begun = file.read(len(_ZSTD))
        file.seek(0)
        if begun.startswith(_GZIP):
            return zlib.decompressobj(wbits=31).decompress(file.read(_HEAD_BYTES), _HEAD_BYTES)
        return next(_unzstd(file), b"") if begun.startswith(_ZSTD) else file.read(_HEAD_BYTES)


_streams: dict[object, BinaryIO] = {}


def _stream(key: object, file: Any) -> BinaryIO:
    """Return what comes from a pipe, which can be read but once, at its beginning."""
    if key not in _streams:
        _streams[key] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the program lives
        shutil.copyfileobj(file, _streams[key], _PIECE)
    _streams[key].seek(0)
    return _streams[key]


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Open a log; ``-`` is stdin.

    Raises:
        OSError: it can't be read.
    """
    if path == STDIN:
        with _copied(_stream(sys.stdin.buffer, sys.stdin.buffer)) as source:
            yield source
        return
    if path in _streams:
        with _copied(_stream(path, None)) as source:
            yield source
        return
    with path.open("rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            with _copied(_stream(path, file)) as source:
                yield source
            return
        # In this order: a run that ends in between is no crashed one.
        running = is_locked(file.fileno())
        marked = settled(file.fileno())
        if os.pread(file.fileno(), 4, 0).startswith((_GZIP, _ZSTD)):
            with _copied(file) as source:
                source.mark = marked
                yield source
            return
        yield Source(file, running, mark=marked, plain=True)


@contextmanager
def _copied(file: Any) -> Iterator[Source]:
    """Copy a stream to a temporary file, decompressed if it is compressed."""
    with tempfile.TemporaryFile() as raw:
        shutil.copyfileobj(file, raw, _PIECE)
        raw.seek(0)
        head = raw.read(4)
        raw.seek(0)
        if not head.startswith((_GZIP, _ZSTD)):
            with os.fdopen(os.dup(raw.fileno()), "rb", buffering=0) as plain:
                plain.seek(0)
                yield Source(plain, running=False)
            return
        with tempfile.TemporaryFile(buffering=0) as plain:
            cut = _decompress(raw, plain, gzipped=head.startswith(_GZIP))
            plain.seek(0)
            yield Source(plain, running=False, cut=cut)


def _decompress(raw: BinaryIO, plain: BinaryIO, *, gzipped: bool) -> str:
    """Write what can be decompressed; returns what is wrong with the rest."""
    written = 0
    most = max(UNPACKED_BYTES, UNPACKED_TIMES * os.fstat(raw.fileno()).st_size)
    try:
        for piece in _gunzipped(raw) if gzipped else _unzstd(raw):
            written += plain.write(piece)
            if written > most:
                raise UnpackedError
    except UnpackedError:
        raise
    except (OSError, EOFError, zlib.error) as e:
        what = "cut off" if isinstance(e, EOFError) or "truncated" in str(e).lower() else "damaged"
        return f"the compressed file is {what}: {written} bytes could be read"
    return ""


def _gunzipped(raw: BinaryIO) -> Iterator[bytes]:
    """Yield all that can be had, also of a file that is cut off; `gzip` would keep the last piece back."""
    rest = b""
    while data := rest or raw.read(_PIECE):
        member = zlib.decompressobj(wbits=31)
        while data:
            yield member.decompress(data, _PIECE)
            data = member.unconsumed_tail or (b"" if member.eof else raw.read(_PIECE))
        if not member.eof:
            raise EOFError
        rest = member.unused_data.lstrip(b"\0")


def _unzstd(raw: BinaryIO) -> Iterator[bytes]:
    import pyarrow as pa  # noqa: PLC0415 - few logs need it

    stream = pa.CompressedInputStream(raw, "zstd")
    while piece := stream.read(64 * 1024):
        yield piece
