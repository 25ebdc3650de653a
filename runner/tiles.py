"""Reads the same stretch of one array from many files and works on it with a few threads, in order."""

from __future__ import annotations

import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from runner.arrays import ArrayFile, ArraySpec, read_at
from runner.closing import Closing
from runner.errors import ArrayError

_ELEMENTS = 1 << 20
"""Elements of all files together in one tile, at most: bounds the memory whatever the number of files."""
_LONGEST = 1 << 17
"""Among threads, shorter ones cost more in waiting for Python's lock than they gain from the cache."""
_LONGEST_ALONE = 1 << 14
"""Where one thread does all, a tile stays in the processor's cache."""
_SHORTEST = 1 << 10
_FEW = 1 << 21
"""Elements of all files together that are done sooner than threads are started."""
_SPARE_FILES = 200
"""Open files left to the rest of the program."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tile:
    """Elements ``start`` to ``start + count`` of an array."""

    spec: ArraySpec
    start: int
    count: int


def tiles(specs: Collection[ArraySpec], files: int) -> Iterator[Tile]:
    """Cut arrays into tiles for so many files, in order; an array without elements has one."""
    few = sum(spec.count for spec in specs) * files <= _FEW
    longest = max(min(_LONGEST_ALONE if few else _LONGEST, _ELEMENTS // max(files, 1)), _SHORTEST)
    for spec in specs:
        for start in range(0, max(spec.count, 1), longest):
            yield Tile(spec, start, min(longest, spec.count - start))


def in_order(work: Callable[[Tile], T], todo: Iterable[Tile], total: int) -> Generator[tuple[Tile, T]]:
    """Do work on tiles with a few threads; yield each with its result in the order given.

    Args:
        work: called in the threads; what it raises is raised here.
        todo: the tiles.
        total: how many elements of all files there are; few are not worth a thread.
    """
    threads = _threads(total)
    if threads == 1:
        for tile in todo:
            yield tile, work(tile)
        return
    pool = ThreadPoolExecutor(threads)
    pending: deque[tuple[Tile, Future[T]]] = deque()
    try:
        for tile in todo:
            pending.append((tile, pool.submit(work, tile)))
            if len(pending) > 2 * threads:
                first, result = pending.popleft()
                yield first, result.result()
        while pending:
            first, result = pending.popleft()
            yield first, result.result()
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Plain:
    """A file whose arrays lie in row order and uncompressed, and where each of them begins."""

    path: Path
    offsets: Mapping[str, int]

    @classmethod
    def of(cls, path: Path) -> Plain:
        """Look into a file.

        Raises:
            ArrayError: it can't be read, or an array in it doesn't lie plainly.
        """
        with ArrayFile(path) as file:
            if not file.plain:
                raise ArrayError("unreadable", f"{path.name} is compressed or in column order")
            return cls(path, file.offsets)

    def open(self) -> int:
        """Return a file descriptor.

        Raises:
            ArrayError: it can't be opened.
        """
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise ArrayError("unreadable", f"{self.path.name} can't be read: {e.strerror}") from e


class Stack(Closing):
    """Files of the same arrays, open all the time if they are not too many.

    Args:
        files: where their arrays lie.
    """

    def __init__(self, files: Sequence[Plain]) -> None:
        self._files = files
        self._buffers = threading.local()
        self._fds: dict[Path, int] = {}
        once = {file.path: file for file in files}  # simulated workers hand back the same ones
        if len(once) <= _most_files():
            try:
                for path, file in once.items():
                    self._fds[path] = file.open()
            except BaseException:
                self.close()
                raise

    def __len__(self) -> int:
        return len(self._files)

    def read(self, tile: Tile) -> NDArray[np.floating[Any]]:
        """Return a tile of every file, (files, reals), in double precision or better.

        Complex numbers come as twice as many real ones. The array is the thread's own until its next call.

        Raises:
            ArrayError: a file can't be read any more.
        """
        dtype = tile.spec.dtype
        raw = self._buffer("raw", dtype, tile.count)
        count = tile.count * (2 if dtype.kind == "c" else 1)
        wide = self._buffer("wide", wide_dtype(dtype), len(self) * count).reshape(len(self), count)
        for index in range(len(self)):
            self.read_raw(index, tile, raw)
            wide[index] = reals(raw)
        return wide

    def read_raw(self, index: int, tile: Tile, out: NDArray[Any]) -> None:
        """Fill an array with one file's tile as it is."""
        file = self._files[index]
        at = file.offsets[tile.spec.name] + tile.start * tile.spec.dtype.itemsize
        fd = self._fds[file.path] if self._fds else file.open()
        try:
            read_at(fd, at, out, file.path.name)
        finally:
            if not self._fds:
                os.close(fd)

    def close(self) -> None:
        """Close all files."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _buffer(self, what: str, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        kept: NDArray[np.uint8] | None = getattr(self._buffers, what, None)
        if kept is None or kept.nbytes < count * dtype.itemsize:
            kept = np.empty(count * dtype.itemsize, np.uint8)
            setattr(self._buffers, what, kept)
        return kept[: count * dtype.itemsize].view(dtype)


def reals(block: NDArray[Any]) -> NDArray[Any]:
    """Return complex numbers as twice as many real ones, others as they are."""
    if block.dtype.kind != "c":
        return block
    return block.view(np.dtype(f"f{block.itemsize // 2}").newbyteorder(block.dtype.byteorder))


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return what numbers of a dtype are worked on as: double precision, or theirs if it is better."""
    part = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return np.dtype(np.longdouble) if part > 8 else np.dtype(np.float64)


def _threads(total: int) -> int:
    """Return how many threads so many elements are worth."""
    return min(len(os.sched_getaffinity(0)), 4) if total > _FEW else 1


def _most_files() -> int:
    """Return how many files may be open here."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES
