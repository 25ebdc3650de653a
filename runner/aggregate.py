"""Checks workers' weights and makes the new params of them, block by block; knows nothing of rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.arrays import ArrayFile, ArraySpec, ArrayWriter
from runner.errors import ArrayError

_SLACK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Contribution:
    """One survivor's weights: its rank, the file, and how much it counts (unscaled)."""

    rank: int
    path: Path
    weight: float


@dataclass(frozen=True, slots=True)
class Aggregated:
    """What the new params are: hash of the file, L2 norm, L2 norm of new minus old."""

    sha256: str
    weight_norm: float
    delta_norm: float


def max_weights_bytes(specs: Mapping[str, ArraySpec]) -> int:
    """Return the size above which a file can't be honest weights for these params."""
    return sum(spec.nbytes + 1024 for spec in specs.values()) + _SLACK_BYTES


def _go_on() -> None:
    """Do nothing: the default of what is called between blocks."""


def check_weights(path: Path, specs: Mapping[str, ArraySpec], between: Callable[[], object] = _go_on) -> None:
    """See that a file has exactly the arrays of the params, all of them finite.

    Args:
        path: the file of weights.
        specs: the arrays of the params, by name.
        between: called between blocks; may raise to stop.

    Raises:
        ArrayError: it hasn't; ``reason`` says in a word what is wrong.
    """
    with ArrayFile(path) as file:
        for name, spec in specs.items():
            found = file.specs.get(name)
            if found is None:
                raise ArrayError("missing", f"array {name!r} is missing")
            if found.dtype != spec.dtype:
                raise ArrayError("dtype", f"array {name!r} has dtype {found.dtype}, not {spec.dtype}")
            if found.shape != spec.shape:
                raise ArrayError("shape", f"array {name!r} has shape {found.shape}, not {spec.shape}")
        for name in file.specs:
            if name not in specs:
                raise ArrayError("unexpected", f"array {name!r} is not in the params")
        for name in specs:
            _check_finite(file, name, between)


def _check_finite(file: ArrayFile, name: str, between: Callable[[], object]) -> None:
    start = 0
    for block in file.blocks(name):
        between()
        if block.dtype.kind in "fc" and not np.isfinite(block).all():
            flat = start + int(np.flatnonzero(~np.isfinite(block))[0])
            index = tuple(int(i) for i in np.unravel_index(flat, file.specs[name].shape))
            value = block[flat - start]
            raise ArrayError("nonfinite", f"array {name!r} has {value} at {index}")
        start += block.size


def mean(
    old: Path,
    contributions: Sequence[Contribution],
    target: Path,
    between: Callable[[], object] = _go_on,
    spare: Path | None = None,
) -> Aggregated:
    """Write the weighted mean of the survivors' weights as the new params, whole or not at all.

    Floating and complex arrays are averaged in double precision, in the order given, and rounded once
    to their dtype (McMahan et al. 2017, arXiv:1602.05629, FedAvg). Arrays of integers and booleans are
    not averaged: those of the first contribution are carried over.

    Args:
        old: the params the weights came from; .npz or .npy, which the new ones will be, too.
        contributions: the survivors in rank order, checked with :func:`check_weights`.
        target: where the new params go.
        between: called between blocks; may raise to stop.
        spare: a file to write over; gone afterwards.

    Raises:
        ArrayError: the mean is not finite, all weights are zero, or a file can't be read any more.
        OSError: the new params can't be written.
    """
    try:
        total = math.fsum(c.weight for c in contributions)
    except OverflowError:
        total = math.inf
    if not contributions or not (math.isfinite(total) and total > 0):
        raise ArrayError("num_samples", f"the survivors' weights sum to {total}, so there is no mean")
    shares = [c.weight / total for c in contributions]
    norms = _Norms()
    with ExitStack() as stack:
        params = stack.enter_context(ArrayFile(old))
        files = [stack.enter_context(ArrayFile(c.path)) for c in contributions]
        writer = stack.enter_context(ArrayWriter(target, params.format, spare))
        for name, spec in params.specs.items():
            blocks = _mean_blocks(name, params, files, shares, norms)
            writer.write(spec, _each(blocks, between))
        weight_norm, delta_norm = norms.result()
        return Aggregated(writer.commit(), weight_norm, delta_norm)


def _mean_blocks(
    name: str, params: ArrayFile, files: Sequence[ArrayFile], shares: Sequence[float], norms: _Norms
) -> Iterator[NDArray[Any]]:
    dtype = params.specs[name].dtype
    if dtype.kind not in "fc":
        for before, after in zip(params.blocks(name), files[0].blocks(name), strict=True):
            norms.add(before, after)
            yield after
        return
    wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    wide = np.promote_types(wide, dtype)
    sources = [file.blocks(name) for file in files]
    for before in params.blocks(name):
        summed = np.zeros(before.size, wide)
        scaled = np.empty(before.size, wide)
        for share, source in zip(shares, sources, strict=True):
            np.multiply(next(source), share, out=scaled, dtype=wide)
            np.add(summed, scaled, out=summed)
        after = summed.astype(dtype)
        if not np.isfinite(after).all():
            raise ArrayError("nonfinite", f"the mean of array {name!r} is not finite")
        norms.add(before, after)
        yield after
    for source in sources:  # let each file be read to its end, where its checksum is compared
        next(source, None)


def _each(blocks: Iterator[NDArray[Any]], between: Callable[[], object]) -> Iterator[NDArray[Any]]:
    for block in blocks:
        between()
        yield block


def adopt(source: Path, target: Path) -> tuple[str, dict[str, ArraySpec]]:
    """Write initial params in the runner's own form: same arrays, checked, in row order, uncompressed.

    Returns:
        The SHA-256 of the new file, and its arrays by name.

    Raises:
        ArrayError: the source is no file of finite arrays.
        OSError: the target can't be written.
    """
    with ArrayFile(source) as file, ArrayWriter(target, file.format) as writer:
        if not file.nbytes:
            raise ArrayError("missing", f"{source.name} has no numbers in it")
        for name, spec in file.specs.items():
            _check_finite(file, name, _go_on)
            writer.write(spec, file.blocks(name))
        return writer.commit(), dict(file.specs)


class _Norms:
    """Sums the squares of the new params and of their change."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._delta = 0.0

    def add(self, before: NDArray[Any], after: NDArray[Any]) -> None:
        wide = after.astype(np.complex128 if after.dtype.kind == "c" else np.float64)
        self._weight += _squares(wide)
        np.subtract(wide, before, out=wide)
        self._delta += _squares(wide)

    def result(self) -> tuple[float, float]:
        """Return both L2 norms.

        Raises:
            ArrayError: one is too large for a number.
        """
        both = math.sqrt(self._weight), math.sqrt(self._delta)
        if not all(map(math.isfinite, both)):
            raise ArrayError("nonfinite", "the norm of the mean is not finite")
        return both


def _squares(values: NDArray[Any]) -> float:
    """Sum the squares; einsum, since BLAS would start threads for so little and slow the workers."""
    reals = values.view(np.float64)
    return float(np.einsum("i,i->", reals, reals))
