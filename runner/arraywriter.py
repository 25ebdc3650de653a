"""Writes a file of named arrays block by block, hashing as it goes; knows nothing of rounds."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from runner import safetensors
from runner.arrays import ArraySpec
from runner.durable import sync_folder
from runner.recycle import open_part

_PENDING = 64
"""Blocks that may wait to be written."""
_SYNC_BYTES = 16 << 20
_SMALL_BYTES = 4 << 20
"""What is written before a thread is worth it."""


class ArrayWriter:
    """Writes a file of arrays under a temporary name, hashing as it goes; :meth:`commit` gives it its own.

    The same arrays give the same bytes. Leaving the ``with`` block without commit leaves no file.

    Args:
        path: where the file goes.
        form: ``npz``, ``npy`` or ``safetensors``.
        specs: the arrays that will be written, in this order.
        metadata: for the header of a .safetensors file.
        spare: a file to write over instead of making a new one; gone afterwards.
    """

    def __init__(
        self,
        path: Path,
        form: str,
        specs: Mapping[str, ArraySpec],
        *,
        metadata: Mapping[str, str] | None = None,
        spare: Path | None = None,
    ) -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.part")
        self._form = form
        self._stream = _Hashing(self._part, spare)
        self._zip = zipfile.ZipFile(self._stream, "w", zipfile.ZIP_STORED) if form == "npz" else None
        if form == "safetensors":
            arrays = [(spec.name, spec.dtype, spec.shape) for spec in specs.values()]
            self._stream.write(safetensors.make(arrays, metadata or {}))

    @contextmanager
    def array(self, spec: ArraySpec) -> Iterator[Callable[[NDArray[Any]], object]]:
        """Begin the next array; what it yields takes its blocks, 1-D and in row order."""
        if self._zip is None:
            if self._form == "npy":
                npy.write_array_header_1_0(self._stream, _npy_header(spec))
            yield lambda block: self._stream.write(block.view(np.uint8).data)
            return
        info = zipfile.ZipInfo(spec.name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
        with self._zip.open(info, "w", force_zip64=True) as entry:
            npy.write_array_header_1_0(entry, _npy_header(spec))
            yield lambda block: entry.write(block.data)

    def commit(self, *, durable: bool = True) -> str:
        """Give the file its own name, on the disk when it must be durable; return its SHA-256, in hex."""
        if self._zip is not None:
            self._zip.close()
        self._stream.finish()
        self._part.replace(self.path)
        if durable:  # after it has its name: one turn of the disk for both
            try:
                self._stream.sync()
                sync_folder(self.path.parent)
            except OSError:
                self.path.unlink(missing_ok=True)
                raise
        self._stream.close()
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
    """A file that can only be appended to; if it is large, threads of its own hash and write, and sync.

    What is written must not be changed afterwards. The disk works while the next blocks are made, so
    that there is little left to wait for at the end.
    """

    def __init__(self, path: Path, spare: Path | None) -> None:
        super().__init__()
        self.sha256 = hashlib.sha256()
        self._file = io.FileIO(open_part(path, spare), "w")
        self._unsynced = 0
        self._taken = 0
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()
        self._syncing: Future[None] | None = None
        self._syncer: ThreadPoolExecutor | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._thread is None:
            self._take(data)
            if self._taken > _SMALL_BYTES:
                self._thread = ThreadPoolExecutor(1)
            return memoryview(data).nbytes
        self._pending.append(self._thread.submit(self._take, data))
        if len(self._pending) > _PENDING:
            self._pending.popleft().result()
        return memoryview(data).nbytes

    def finish(self) -> None:
        while self._pending:
            self._pending.popleft().result()
        if self._syncing is not None:
            self._syncing.result()
        self._file.truncate()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if not self.closed:
            for thread in (self._thread, self._syncer):
                if thread is not None:
                    thread.shutdown(cancel_futures=True)
            self._file.close()
        super().close()

    def _take(self, data: Any) -> None:
        self.sha256.update(data)
        rest = memoryview(data).cast("B")
        self._unsynced += rest.nbytes
        self._taken += rest.nbytes
        while rest:
            rest = rest[self._file.write(rest) :]
        if self._unsynced >= _SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            self._sync()

    def _sync(self) -> None:
        """Let the disk begin with what is written, in a thread that only waits."""
        if self._syncing is not None:
            self._syncing.result()
        if self._syncer is None:
            self._syncer = ThreadPoolExecutor(1)
        self._syncing = self._syncer.submit(os.fdatasync, self._file.fileno())
        self._unsynced = 0


def _npy_header(spec: ArraySpec) -> dict[str, Any]:
    return {"descr": npy.dtype_to_descr(spec.dtype), "fortran_order": False, "shape": spec.shape}
