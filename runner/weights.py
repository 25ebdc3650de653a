"""Lets a file of weights in or says why not; takes in the first params. Knows nothing of rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.arrays import BLOCK, ArrayFile, ArraySpec
from runner.arraywriter import ArrayWriter
from runner.errors import ArrayError
from runner.tiles import Plain, Stack, Tile, reals, wide_dtype

_SLACK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Checked:
    """Weights that were let in: where their arrays lie, and the L2 norm of their difference to the params."""

    file: Plain
    norm: float
    stamp: tuple[int, int]
    """When the file was last written to, and its size."""

    @property
    def changed(self) -> bool:
        """Whether somebody has written to the file since it was looked at."""
        return _stamp(self.file.path) != self.stamp


def max_weights_bytes(specs: Mapping[str, ArraySpec]) -> int:
    """Return the size above which a file can't be honest weights for these params."""
    return sum(spec.nbytes + 1024 + 6 * len(spec.name) for spec in specs.values()) + _SLACK_BYTES


def _stamp(path: Path) -> tuple[int, int]:
    """Return when a file was last written to, in ns, and its size; zeros where there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _go_on() -> None:
    """Do nothing: the default of what is called between blocks."""


def check_weights(path: Path, params: Path, between: Callable[[], object] = _go_on) -> Checked:
    """See that a file has exactly the arrays of the params, all of them finite.

    A file whose arrays are compressed or in column order is written anew, plainly, under its own name.

    Args:
        path: the file of weights.
        params: the params they came from.
        between: called between blocks; may raise to stop.

    Raises:
        ArrayError: it hasn't; ``reason`` says in a word what is wrong.
        OSError: it can't be written anew.
    """
    stamp = _stamp(path)
    with ArrayFile(params) as old, ArrayFile(path) as file:
        for name, spec in old.specs.items():
            found = file.specs.get(name)
            if found is None:
                raise ArrayError("missing", f"array {name!r} is missing")
            if found.dtype != spec.dtype:
                raise ArrayError("dtype", f"array {name!r} has dtype {found.dtype}, not {spec.dtype}")
            if found.shape != spec.shape:
                raise ArrayError("shape", f"array {name!r} has shape {found.shape}, not {spec.shape}")
        for name in file.specs:
            if name not in old.specs:
                raise ArrayError("unexpected", f"array {name!r} is not in the params")
        squares: list[float] = []
        with Stack([Plain(params, old.offsets)]) as before:
            for name in old.specs:
                squares += _check_finite(file, name, between, before)
        try:
            norm = math.sqrt(math.fsum(squares))
        except OverflowError:
            norm = math.inf
        if not math.isfinite(norm):  # no average would be finite, no distance could be told
            raise ArrayError("nonfinite", "its change of the params has no finite length")
        if file.plain:
            return Checked(Plain(path, file.offsets), norm, stamp)
        with ArrayWriter(path, file.format, file.specs) as writer:
            _copy(file, writer, between)
            writer.commit(durable=False)
    return Checked(Plain.of(path), norm, _stamp(path))


def _check_finite(
    file: ArrayFile, name: str, between: Callable[[], object], old: Stack | None = None
) -> list[float]:
    """See that an array's numbers are finite; return the squares of their change, block by block."""
    spec = file.specs[name]
    before = np.empty(min(spec.count, BLOCK), spec.dtype)
    squares: list[float] = []
    start = 0
    for block in file.blocks(name, passing=True):
        between()
        if spec.averaged:
            squared = math.nan
            if old is not None:
                there = before[: block.size]
                old.read_raw(0, Tile(spec, start, block.size), there)
                squared = _distance_squared(block, there)
            if not math.isfinite(squared) and not np.isfinite(block).all():
                flat = start + int(np.flatnonzero(~np.isfinite(block))[0])
                index = tuple(int(i) for i in np.unravel_index(flat, spec.shape))
                value = block[flat - start]
                raise ArrayError("nonfinite", f"array {name!r} has {value} at {index}")
            squares.append(squared)
        start += block.size
    return squares


def _distance_squared(after: NDArray[Any], before: NDArray[Any]) -> float:
    """Return the squared distance; not finite if a number isn't, or if it is too large."""
    one, two = reals(after), reals(before)
    if one.itemsize < 4:
        one, two = one.astype(np.float32), two.astype(np.float32)
    with np.errstate(all="ignore"):
        difference = np.subtract(one, two)
        squared = float(difference @ difference)
        if not math.isfinite(squared):
            wide = difference.astype(wide_dtype(one.dtype))
            squared = float(wide @ wide)
        return squared


def _copy(file: ArrayFile, writer: ArrayWriter, between: Callable[[], object] = _go_on) -> None:
    for name, spec in file.specs.items():
        with writer.array(spec) as put:
            for block in file.blocks(name):
                between()
                put(block)


def adopt(source: Path, target: Path) -> tuple[str, dict[str, ArraySpec]]:
    """Write initial params in the runner's own form: same arrays, checked, in row order, uncompressed.

    Returns:
        The SHA-256 of the new file, and its arrays by name.

    Raises:
        ArrayError: the source is no file of finite arrays.
        OSError: the target can't be written.
    """
    with (
        ArrayFile(source) as file,
        ArrayWriter(target, file.format, file.specs, metadata=file.metadata) as writer,
    ):
        if not file.nbytes:
            raise ArrayError("missing", f"{source.name} has no numbers in it")
        for name in file.specs:
            _check_finite(file, name, _go_on)
        _copy(file, writer)
        return writer.commit(), dict(file.specs)
