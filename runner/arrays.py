"""Reads and writes files of named arrays block by block, .npz and .npy; knows nothing of rounds.

Nothing is ever unpickled, a file is never trusted to be as large or as small as it says, and memory
stays at a few blocks whatever the size of the arrays.
"""

from __future__ import annotations

import ast
import hashlib
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from runner.closing import Closing
from runner.errors import ArrayError
from runner.recycle import open_part

BLOCK = 1 << 16
"""Elements handled at a time: what fits the processor's cache."""
SINGLE = "array"
"""Name of the one array of an .npy file."""
_PENDING = 64
"""Blocks that may wait to be written."""
_SYNC_BYTES = 16 << 20
_MAX_HEADER_BYTES = 10_000
_KINDS = "fciub"
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,  # also RecursionError
    LookupError,
    SyntaxError,
    TypeError,
    MemoryError,
    OverflowError,
)
"""What reading a broken file may raise."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Name, dtype and shape of an array; ``fortran`` when its data lie in column order."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False

    @property
    def count(self) -> int:
        """Number of elements."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    @property
    def nbytes(self) -> int:
        """Size of the data."""
        return self.count * self.dtype.itemsize


class ArrayFile(Closing):
    """An open file of arrays; its data are read only when asked for.

    Args:
        path: an .npz or .npy file; which of them is told from its content.

    Raises:
        ArrayError: there is none, or it is no such file, or has an array that can't be averaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.specs: dict[str, ArraySpec] = {}
        self._stack = ExitStack()
        try:
            self._file = self._stack.enter_context(path.open("rb"))
            self._zip: zipfile.ZipFile | None = None
            magic = self._file.read(4)
            self._file.seek(0)
            if magic == b"PK\x03\x04":
                self._zip = self._stack.enter_context(zipfile.ZipFile(self._file))
                self._read_entries(self._zip)
            elif magic == npy.MAGIC_PREFIX[:4]:
                self._take(SINGLE, self._file, os.fstat(self._file.fileno()).st_size)
            else:
                raise ArrayError("unreadable", f"{path.name} is neither an .npz nor an .npy file")
        except OSError as e:
            self.close()
            raise ArrayError("unreadable", f"{path.name} can't be read: {e.strerror or e}") from e
        except _BROKEN as e:
            self.close()
            raise ArrayError("unreadable", f"{path.name} is broken: {_first_line(e)}") from e
        except ArrayError:
            self.close()
            raise

    @property
    def format(self) -> str:
        """``npz`` or ``npy``."""
        return "npy" if self._zip is None else "npz"

    @property
    def nbytes(self) -> int:
        """Size of all data."""
        return sum(spec.nbytes for spec in self.specs.values())

    def blocks(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield an array's data in row order, as 1-D arrays of at most ``BLOCK`` elements.

        Raises:
            ArrayError: the data are broken or cut off.
        """
        spec = self.specs[name]
        try:
            with self._open(name) as stream:
                _header(stream)
                if spec.fortran:
                    data = np.frombuffer(_exactly(stream, spec.nbytes), spec.dtype)
                    flat = data.reshape(spec.shape, order="F").ravel(order="C")
                    for start in range(0, spec.count, BLOCK):
                        yield flat[start : start + BLOCK]
                else:
                    for start in range(0, spec.count, BLOCK):
                        count = min(BLOCK, spec.count - start)
                        yield np.frombuffer(_exactly(stream, count * spec.dtype.itemsize), spec.dtype)
                if stream.read(1):  # also makes zipfile compare the checksum
                    raise ArrayError("unreadable", f"{self._called(name)} has more data than its shape")
        except OSError as e:
            raise ArrayError("unreadable", f"{self.path.name} can't be read: {e.strerror or e}") from e
        except _BROKEN as e:
            raise ArrayError("unreadable", f"{self._called(name)} is broken: {_first_line(e)}") from e

    def close(self) -> None:
        """Close the file; once more is fine."""
        self._stack.close()

    def _called(self, name: str) -> str:
        return self.path.name if self._zip is None else f"array {name!r} in {self.path.name}"

    def _open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        if self._zip is None:
            self._file.seek(0)
            return nullcontext(self._file)
        return self._zip.open(name + ".npy")

    def _read_entries(self, archive: zipfile.ZipFile) -> None:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename or name in self.specs:
                what = "twice" if name in self.specs else "which is no .npy"
                raise ArrayError("unreadable", f"{self.path.name} has the entry {info.filename!r}, {what}")
            with archive.open(info) as entry:
                self._take(name, entry, info.file_size)

    def _take(self, name: str, stream: IO[bytes], size: int) -> None:
        shape, fortran, dtype = _header(stream)
        spec = ArraySpec(name, dtype, shape, fortran and len(shape) > 1)
        if dtype.kind not in _KINDS or dtype.hasobject or dtype.names is not None:
            raise ArrayError("dtype", f"{self._called(name)} has the dtype {dtype}, which can't be averaged")
        if stream.tell() + spec.nbytes != size:
            raise ArrayError(
                "unreadable", f"{self._called(name)} has {size} bytes; its shape {shape} needs another number"
            )
        self.specs[name] = spec


class ArrayWriter:
    """Writes a file of arrays under a temporary name, hashing as it goes; :meth:`commit` gives it its own.

    The same arrays give the same bytes. Leaving the ``with`` block without commit leaves no file.

    Args:
        path: where the file goes.
        form: ``npz`` or ``npy``.
        spare: a file to write over instead of making a new one; gone afterwards.
    """

    def __init__(self, path: Path, form: str, spare: Path | None = None) -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.part")
        self._form = form
        self._stream = _Hashing(self._part, spare)
        self._zip = zipfile.ZipFile(self._stream, "w", zipfile.ZIP_STORED) if form == "npz" else None

    def write(self, spec: ArraySpec, blocks: Iterator[NDArray[Any]]) -> None:
        """Write one array from its blocks, in row order."""
        header: dict[str, Any] = {
            "descr": npy.dtype_to_descr(spec.dtype),
            "fortran_order": False,
            "shape": spec.shape,
        }
        if self._zip is None:
            npy.write_array_header_1_0(self._stream, header)
            for block in blocks:
                self._stream.write(block.data)
            return
        info = zipfile.ZipInfo(spec.name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
        with self._zip.open(info, "w", force_zip64=True) as entry:
            npy.write_array_header_1_0(entry, header)
            for block in blocks:
                entry.write(block.data)

    def commit(self) -> str:
        """Put the file on the disk under its own name and return its SHA-256, in hex."""
        if self._zip is not None:
            self._zip.close()
        self._stream.sync()
        self._stream.close()
        self._part.replace(self.path)
        fd = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        return self._stream.sha256.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._zip is not None:
            with suppress(OSError, ValueError):  # it ends what may be half written
                self._zip.close()
        self._stream.close()
        self._part.unlink(missing_ok=True)


class _Hashing(io.RawIOBase):
    """A file that can only be appended to; a thread of its own hashes, writes and syncs.

    What is written must not be changed afterwards. The disk works while the next blocks are made, so
    that there is little left to wait for at the end.
    """

    def __init__(self, path: Path, spare: Path | None) -> None:
        super().__init__()
        self.sha256 = hashlib.sha256()
        self._file = io.FileIO(open_part(path, spare), "w")
        self._unsynced = 0
        self._thread = ThreadPoolExecutor(1)
        self._pending: deque[Future[None]] = deque()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pending.append(self._thread.submit(self._take, data))
        if len(self._pending) > _PENDING:
            self._pending.popleft().result()
        return memoryview(data).nbytes

    def sync(self) -> None:
        while self._pending:
            self._pending.popleft().result()
        self._file.truncate()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if not self.closed:
            self._thread.shutdown(cancel_futures=True)
            self._file.close()
        super().close()

    def _take(self, data: Any) -> None:
        self.sha256.update(data)
        rest = memoryview(data).cast("B")
        self._unsynced += rest.nbytes
        while rest:
            rest = rest[self._file.write(rest) :]
        if self._unsynced >= _SYNC_BYTES:
            os.fdatasync(self._file.fileno())
            self._unsynced = 0


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read an .npy header as NumPy writes it, and nothing that it only forgives."""
    version = npy.read_magic(stream)
    size = struct.unpack("<H" if version == (1, 0) else "<I", _exactly(stream, 2 if version == (1, 0) else 4))
    if size[0] > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {size[0]} bytes")
    text = _exactly(stream, size[0]).decode("utf-8" if version == (3, 0) else "latin-1")
    header = ast.literal_eval(text.strip())
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise ValueError("not the header of an array")
    shape = header["shape"]
    sound = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not sound or not isinstance(header["fortran_order"], bool):
        raise ValueError(f"shape {shape!r}"[:100])
    return shape, header["fortran_order"], npy.descr_to_dtype(header["descr"])


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) == count:
        return data
    parts = [data]
    got = len(data)
    while got < count:
        more = stream.read(count - got)
        if not more:
            raise EOFError(f"cut off: {count - got} bytes are missing")
        parts.append(more)
        got += len(more)
    return b"".join(parts)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
