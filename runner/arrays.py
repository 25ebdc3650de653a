"""Reads files of named arrays piece by piece: .npz, .npy, .safetensors; knows nothing of rounds.

Nothing is ever unpickled, a file is never trusted to be as large or as small as it says, and memory
stays at a few blocks whatever the size of the arrays.
"""

from __future__ import annotations

import ast
import hashlib
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from runner import safetensors
from runner.closing import Closing
from runner.errors import ArrayError

BLOCK = 1 << 16
"""Elements handled at a time: what fits the processor's cache."""
SINGLE = "array"
"""Name of the one array of an .npy file."""
FORMS = ("npz", "npy", "safetensors")
"""The formats, by the ending of a file's name."""
_MAX_HEADER_BYTES = 10_000
_MAX_DIRECTORY_BYTES = 4 << 20
"""What a zip says of its entries: it is read at once, and takes twenty times as much memory."""
_KINDS = "fciub"
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
"""What a zip has before an entry's data; at its end the lengths of name and extra, which follow."""
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

    @property
    def averaged(self) -> bool:
        """Whether it has numbers that can be averaged: real or complex, not whole numbers or booleans."""
        return self.dtype.kind in "fcV"  # V: bfloat16 and the like; records are never let in


class _Directory:
    """A zip of which no more is read at once than what it says of its entries may take."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, count: int = -1) -> bytes:
        """Read so many bytes; all that follow, near the end."""
        if count > _MAX_DIRECTORY_BYTES:
            raise ValueError(f"a directory of {count} bytes")
        return self._file.read(count)


class ArrayFile(Closing):
    """An open file of arrays; its data are read only when asked for.

    Args:
        path: an .npz, .npy or .safetensors file; which of them is told from its content.

    Raises:
        ArrayError: there is none, or it is no such file, or has an array that can't be averaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.specs: dict[str, ArraySpec] = {}
        self.metadata: dict[str, str] = {}
        """Of a .safetensors file, for whoever reads it."""
        self.offsets: dict[str, int] = {}
        """Where an array's data begin, if they lie in row order and uncompressed."""
        self._begins: dict[str, int] = {}
        self._stack = ExitStack()
        self._zip: zipfile.ZipFile | None = None
        try:
            self._file = self._stack.enter_context(path.open("rb"))
            self.format = self._read_form()
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
    def nbytes(self) -> int:
        """Size of all data."""
        return sum(spec.nbytes for spec in self.specs.values())

    @property
    def plain(self) -> bool:
        """Whether all arrays lie in row order and uncompressed, so that ``offsets`` has them all."""
        return len(self.offsets) == len(self.specs)

    def blocks(self, name: str, *, passing: bool = False) -> Iterator[NDArray[Any]]:
        """Yield an array's data in row order, as 1-D arrays of at most ``BLOCK`` elements.

        Args:
            name: of the array.
            passing: each may take the place of the one before, which is faster.

        Raises:
            ArrayError: the data are broken or cut off.
        """
        spec = self.specs[name]
        if passing and name in self.offsets:
            yield from self._passing(spec)
            return
        try:
            with self._open(name) as stream:
                if spec.fortran:
                    data = np.frombuffer(_exactly(stream, spec.nbytes), spec.dtype)
                    flat = data.reshape(spec.shape, order="F").ravel(order="C")
                    for start in range(0, spec.count, BLOCK):
                        yield flat[start : start + BLOCK]
                else:
                    for start in range(0, spec.count, BLOCK):
                        count = min(BLOCK, spec.count - start)
                        yield np.frombuffer(_exactly(stream, count * spec.dtype.itemsize), spec.dtype)
                if self._zip is not None and stream.read(1):  # also makes zipfile compare the checksum
                    raise ArrayError("unreadable", f"{self._called(name)} has more data than its shape")
        except OSError as e:
            raise ArrayError("unreadable", f"{self.path.name} can't be read: {e.strerror or e}") from e
        except _BROKEN as e:
            raise ArrayError("unreadable", f"{self._called(name)} is broken: {_first_line(e)}") from e

    def _passing(self, spec: ArraySpec) -> Iterator[NDArray[Any]]:
        buffer = np.empty(min(spec.count, BLOCK), spec.dtype)
        for start in range(0, spec.count, BLOCK):
            block = buffer[: min(BLOCK, spec.count - start)]
            at = self.offsets[spec.name] + start * spec.dtype.itemsize
            read_at(self._file.fileno(), at, block, self._called(spec.name))
            yield block

    def close(self) -> None:
        """Close the file; once more is fine."""
        self._stack.close()

    def _called(self, name: str) -> str:
        return self.path.name if self.format == "npy" else f"array {name!r} in {self.path.name}"

    def _open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Return a stream at the beginning of an array's data."""
        if self._zip is None:
            self._file.seek(self._begins[name])
            return nullcontext(self._file)
        stream = self._zip.open(name + ".npy")
        _header(stream)
        return stream

    def _read_form(self) -> str:
        size = os.fstat(self._file.fileno()).st_size
        magic = self._file.read(safetensors.LENGTH_BYTES + 1)
        self._file.seek(0)
        if magic[:4] == b"PK\x03\x04":
            self._zip = self._stack.enter_context(zipfile.ZipFile(_Directory(self._file)))
            self._zip.fp = self._file
            self._read_entries(self._zip)
            return "npz"
        self.format = "npy"
        if magic[:4] == npy.MAGIC_PREFIX[:4]:
            spec = self._take(SINGLE, self._file, size)
            self._begins[SINGLE] = self._file.tell()
            if not spec.fortran:
                self.offsets[SINGLE] = self._file.tell()
            return "npy"
        self.format = "safetensors"
        if magic[safetensors.LENGTH_BYTES :] == b"{":
            self._read_safetensors(size)
            return "safetensors"
        raise ArrayError("unreadable", f"{self.path.name} is no .npz, .npy or .safetensors file")

    def _read_safetensors(self, size: int) -> None:
        length = int.from_bytes(self._file.read(safetensors.LENGTH_BYTES), "little")
        if length > min(safetensors.MAX_HEADER_BYTES, size):
            raise ValueError(f"a header of {length} bytes")
        begin = safetensors.LENGTH_BYTES + length
        entries, self.metadata = safetensors.parse(_exactly(self._file, length), size - begin)
        for entry in entries:
            self.specs[entry.name] = ArraySpec(entry.name, entry.dtype, entry.shape)
            self._begins[entry.name] = self.offsets[entry.name] = begin + entry.begin

    def _read_entries(self, archive: zipfile.ZipFile) -> None:
        self.format = "npz"
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename or name in self.specs:
                what = "twice" if name in self.specs else "which is no .npy"
                raise ArrayError("unreadable", f"{self.path.name} has the entry {info.filename!r}, {what}")
            with archive.open(info) as entry:
                spec = self._take(name, entry, info.file_size)
                header_bytes = entry.tell()
            stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
            if stored and not spec.fortran:
                local = _LOCAL_HEADER.unpack(
                    os.pread(self._file.fileno(), _LOCAL_HEADER.size, info.header_offset)
                )
                names_bytes = local[-2] + local[-1]
                self.offsets[name] = info.header_offset + _LOCAL_HEADER.size + names_bytes + header_bytes

    def _take(self, name: str, stream: IO[bytes], size: int) -> ArraySpec:
        shape, fortran, dtype = _header(stream)
        spec = ArraySpec(name, dtype, shape, fortran and len(shape) > 1)
        if dtype.kind not in _KINDS or dtype.hasobject or dtype.names is not None:
            raise ArrayError("dtype", f"{self._called(name)} has the dtype {dtype}, which can't be averaged")
        if stream.tell() + spec.nbytes != size:
            raise ArrayError(
                "unreadable", f"{self._called(name)} has {size} bytes; its shape {shape} needs another number"
            )
        self.specs[name] = spec
        return spec


def read_at(fd: int, offset: int, out: NDArray[Any], name: str) -> None:
    """Fill a 1-D array from a file, from an offset in bytes on; several threads may at once.

    Raises:
        ArrayError: the file, called `name`, can't be read or ends before.
    """
    raw = out.view(np.uint8)
    got = 0
    try:
        while got < raw.nbytes:
            more = os.preadv(fd, [raw[got:].data], offset + got)
            if not more:
                raise ArrayError("unreadable", f"{name} was cut off while it was in use")
            got += more
    except OSError as e:
        raise ArrayError("unreadable", f"{name} can't be read: {e.strerror or e}") from e


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
    return _parsed(version, _exactly(stream, size[0]))


@lru_cache(maxsize=256)  # the files of a round begin alike, and many simulated ones are read
def _parsed(version: tuple[int, int], raw: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    text = raw.decode("utf-8" if version == (3, 0) else "latin-1")
    try:
        header = ast.literal_eval(text.strip())
    except _BROKEN:  # what is told of it is for programmers
        header = None
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
