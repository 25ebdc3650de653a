"""Makes the new params of the survivors' weights, tile by tile; knows nothing of rounds.

Tiles are taken in order and workers in the order of their ranks, so that neither threads nor the order of
arrival change a bit of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner import robust
from runner.arrays import ArrayFile, ArraySpec
from runner.arraywriter import ArrayWriter
from runner.errors import ArrayError
from runner.recipe import BY_DISTANCE, Recipe, state_dtype
from runner.tiles import Plain, Stack, Tile, in_order, reals, tiles, wide_dtype

Floats = NDArray[np.floating[Any]]
Combine = Callable[["Inputs"], Mapping[str, NDArray[Any]]]
"""A user's own way to combine weights: returns the combined arrays that are averaged, by name."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One survivor's weights: its rank, the file, how much it counts (unscaled), L2 norm of its update."""

    rank: int
    file: Plain
    weight: float
    norm: float | None = None


@dataclass(frozen=True, slots=True)
class StateFile:
    """What the optimizer remembers: the name of it, where it lies before, where it goes."""

    slot: str
    old: Path | None
    target: Path


@dataclass(frozen=True, slots=True)
class Aggregated:
    """What the new params are: hash of the file, L2 norm, L2 norm of new minus old, and what entered.

    ``shares``, ``cosines`` and ``scales`` are in the order of the contributions: how much each counted,
    the cosine of its update to the combined one (None where one of them is 0), what clipping shortened it to.
    """

    sha256: str
    weight_norm: float
    delta_norm: float
    shares: tuple[float, ...]
    cosines: tuple[float | None, ...]
    scales: tuple[float, ...]
    state_sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a user's own function gets to combine.

    Args:
        number: the round, from 0.
        ranks: the survivors', ascending.
        shares: how much each should count, summing to 1; float64, (survivors,).
        params: the params they began with, by name.
        weights: what each handed back, in the order of ranks, by name; read when an array is asked for.
    """

    number: int
    ranks: tuple[int, ...]
    shares: Floats
    params: Mapping[str, NDArray[Any]]
    weights: Sequence[Mapping[str, NDArray[Any]]]


def _go_on() -> None:
    """Do nothing: the default of what is called between tiles."""


def aggregate(
    old: Path,
    contributions: Sequence[Contribution],
    target: Path,
    recipe: Recipe | None = None,
    *,
    number: int = 0,
    state: Sequence[StateFile] = (),
    combine: Combine | None = None,
    between: Callable[[], object] = _go_on,
    spare: Path | None = None,
) -> Aggregated:
    """Write new params made of the survivors' weights, whole or not at all.

    Arrays of real and complex numbers are combined in double precision, in the order given, and rounded
    once to their dtype. The mean is that of McMahan et al. 2017 (arXiv:1602.05629, FedAvg). Arrays of whole
    numbers and booleans are not combined: those of the first contribution that counts are carried over.

    Args:
        old: the params the weights came from; a plain file. The new ones will be of its format.
        contributions: the survivors in rank order, checked with :func:`runner.weights.check_weights`.
        target: where the new params go.
        recipe: how; None: their mean.
        number: the round, from 0.
        state: the files of the optimizer's state, one for each of ``recipe.slots``.
        combine: the function for a method of the user's own.
        between: called between tiles; may raise to stop.
        spare: a file to write over; gone afterwards.

    Raises:
        ArrayError: the result is not finite, all weights are zero, or a file can't be read any more.
        OSError: the new params can't be written.
    """
    recipe = recipe or Recipe()
    with ExitStack() as stack:
        params = stack.enter_context(ArrayFile(old))
        work = _Work(
            recipe=recipe,
            specs=params.specs,
            params=stack.enter_context(Stack([Plain(old, params.offsets)])),
            weights=stack.enter_context(Stack([c.file for c in contributions])),
            shares=_shares(contributions),
            number=number,
        )
        if recipe.clip_norm is not None:
            work.scales = _scales(recipe.clip_norm, contributions)
        if combine is not None:
            work.own = _own(combine, work, contributions)
        elif recipe.method in BY_DISTANCE:
            work.shares = _by_distance(recipe, work, between)
        writers = {
            "": stack.enter_context(
                ArrayWriter(target, params.format, params.specs, metadata=params.metadata, spare=spare)
            )
        }
        states = recipe.state_specs(params.specs) if state else {}
        for file in state:
            writers[file.slot] = stack.enter_context(ArrayWriter(file.target, "npz", states))
            if file.old is not None:
                work.state.append(stack.enter_context(Stack([Plain.of(file.old)])))
        total = sum(spec.count for spec in params.specs.values()) * (len(contributions) + 1)
        todo = tiles(params.specs.values(), len(contributions) + 1)
        sums = _Sums(len(contributions))
        done = in_order(work.tile, todo, total)
        stack.callback(done.close)  # no thread reads a file that is closed
        for spec, results in _by_array(done):
            with ExitStack() as arrays:
                slots = ["", *recipe.slots] if spec.name in states else [""]
                puts = [
                    arrays.enter_context(writers[slot].array(states[spec.name] if slot else spec))
                    for slot in slots
                ]
                for result in results:
                    between()
                    sums.add(spec, result)
                    for put, block in zip(puts, result.blocks, strict=True):
                        if block.size:
                            put(block)
        sums.check()
        hashes = {slot: writer.commit() for slot, writer in reversed(writers.items())}
    norms = [c.norm for c in contributions]
    return Aggregated(
        sha256=hashes.pop(""),
        weight_norm=sums.weight_norm,
        delta_norm=sums.delta_norm,
        shares=tuple(float(share) for share in work.shares),
        cosines=sums.cosines([(n or 0.0) * s for n, s in zip(norms, work.scales, strict=True)]),
        scales=tuple(work.scales),
        state_sha256=dict(sorted(hashes.items())),
    )


@dataclass(slots=True)
class _Result:
    """What became of one tile: blocks of new params and states, and its part of the sums."""

    blocks: list[NDArray[Any]]
    weight_squared: float = 0.0
    delta_squared: float = 0.0
    combined_squared: float = 0.0
    products: Floats | None = None


class _Work:
    """What is done to a tile; called by several threads at once, changes nothing of its own."""

    def __init__(
        self,
        *,
        recipe: Recipe,
        specs: Mapping[str, ArraySpec],
        params: Stack,
        weights: Stack,
        shares: list[float],
        number: int,
    ) -> None:
        self.recipe = recipe
        self.specs = specs
        self.params = params
        self.weights = weights
        self.number = number
        self.shares = shares
        self.scales = [1.0] * len(shares)
        self.state: list[Stack] = []
        self.own: Mapping[str, NDArray[Any]] | None = None

    def combined(self, spec: ArraySpec) -> bool:
        """Say whether an array is combined at all."""
        return spec.averaged and self.recipe.takes(spec.name)

    def updates(self, tile: Tile) -> tuple[Floats, Floats]:
        """Return a tile of the old params, (reals,), and of all updates, (workers, reals)."""
        old = self.params.read(tile)[0]
        weights = self.weights.read(tile)
        np.subtract(weights, old, out=weights)
        return old, weights

    def tile(self, tile: Tile) -> _Result:
        """Return what becomes of a tile."""
        spec = tile.spec
        with np.errstate(all="ignore"):  # what is not finite is looked for at the end
            if not self.combined(spec):
                return self._carried(tile)
            old = self.params.read(tile)[0]
            weights = self.weights.read(tile)
            for row, scale in zip(weights, self.scales, strict=True):
                if scale < 1.0:
                    np.subtract(row, old, out=row)
                    np.multiply(row, scale, out=row)
                    np.add(row, old, out=row)
            average = self._average(tile, weights)
            update = average - old
            products = weights @ update - old @ update
            new = average
            states: list[NDArray[Any]] = []
            if self.recipe.slots:
                states = self._states(tile, old)
                new = self.recipe.step(old, -update, states, self.number + 1)
            block = new.astype(_part(spec.dtype)).view(spec.dtype)
            kept_dtype = state_dtype(spec.dtype)
            kept = [state.astype(_part(kept_dtype)).view(kept_dtype) for state in states]
            rounded = reals(block).astype(old.dtype)
            change = rounded - old
            return _Result(
                [block, *kept],
                float(rounded @ rounded),
                float(change @ change),
                float(update @ update),
                products,
            )

    def _average(self, tile: Tile, weights: Floats) -> Floats:
        if self.own is not None:
            block = self.own[tile.spec.name].reshape(-1)[tile.start : tile.start + tile.count]
            own: Floats = reals(np.ascontiguousarray(block)).astype(weights.dtype)
            return own
        if self.recipe.method == "median":
            return robust.median(weights)
        if self.recipe.method == "trimmed_mean":
            return robust.trimmed_mean(weights, self.recipe.trim)
        total: Floats = np.multiply(weights[0], self.shares[0])
        scaled = np.empty_like(total)
        for row, share in zip(weights[1:], self.shares[1:], strict=True):
            np.multiply(row, share, out=scaled)
            np.add(total, scaled, out=total)
        return total

    def _states(self, tile: Tile, old: Floats) -> list[NDArray[Any]]:
        if not self.state:
            return [np.zeros_like(old) for _ in self.recipe.slots]
        spec = ArraySpec(tile.spec.name, state_dtype(tile.spec.dtype), tile.spec.shape)
        there = Tile(spec, tile.start, tile.count)
        return [stack.read(there)[0].astype(old.dtype) for stack in self.state]

    def _carried(self, tile: Tile) -> _Result:
        spec = tile.spec
        before = np.empty(tile.count, spec.dtype)
        self.params.read_raw(0, tile, before)
        after = before
        if not spec.averaged and self.recipe.takes(spec.name):
            first = next(i for i, share in enumerate(self.shares) if share > 0)
            after = np.empty(tile.count, spec.dtype)
            self.weights.read_raw(first, tile, after)
        wide = wide_dtype(spec.dtype)
        new = reals(after).astype(wide)
        change = new - reals(before).astype(wide)
        return _Result([after], float(new @ new), float(change @ change))


def _part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the real numbers that a dtype is made of."""
    return reals(np.empty(0, dtype)).dtype


class _Sums:
    """Sums up, in the order of the tiles, what the events tell of an aggregate."""

    def __init__(self, workers: int) -> None:
        self._weight: list[float] = []
        self._delta: list[float] = []
        self._combined: list[float] = []
        self._products = np.zeros(workers)

    def add(self, spec: ArraySpec, result: _Result) -> None:
        """Take a tile's part.

        Raises:
            ArrayError: it is not finite.
        """
        if not math.isfinite(result.weight_squared) and not np.isfinite(result.blocks[0]).all():
            raise ArrayError("nonfinite", f"the mean of array {spec.name!r} is not finite")
        for block in result.blocks[1:]:
            if not np.isfinite(block).all():
                raise ArrayError("nonfinite", f"the optimizer's state for array {spec.name!r} is not finite")
        self._weight.append(result.weight_squared)
        self._delta.append(result.delta_squared)
        self._combined.append(result.combined_squared)
        if result.products is not None:
            self._products += result.products

    def check(self) -> None:
        """See that the norms are numbers.

        Raises:
            ArrayError: one is too large for that.
        """
        if not (math.isfinite(self.weight_norm) and math.isfinite(self.delta_norm)):
            raise ArrayError("nonfinite", "the norm of the mean is not finite")

    @property
    def weight_norm(self) -> float:
        """L2 norm of the new params."""
        return _root(self._weight)

    @property
    def delta_norm(self) -> float:
        """L2 norm of new minus old params."""
        return _root(self._delta)

    def cosines(self, norms: Sequence[float]) -> tuple[float | None, ...]:
        """Return the cosine of each update, of a given norm, to the combined one."""
        combined = _root(self._combined)
        return tuple(
            max(-1.0, min(1.0, float(product) / (norm * combined)))
            if norm * combined > 0 and math.isfinite(float(product)) and math.isfinite(norm * combined)
            else None
            for product, norm in zip(self._products, norms, strict=True)
        )


def _root(squares: list[float]) -> float:
    try:
        return math.sqrt(math.fsum(squares))
    except (OverflowError, ValueError):
        return math.inf


def _by_array(done: Iterator[tuple[Tile, _Result]]) -> Iterator[tuple[ArraySpec, Iterator[_Result]]]:
    """Group the results of tiles by their arrays, which come one after the other."""
    ahead = next(done, None)

    def of(spec: ArraySpec) -> Iterator[_Result]:
        nonlocal ahead
        while ahead is not None and ahead[0].spec is spec:
            yield ahead[1]
            ahead = next(done, None)

    while ahead is not None:
        spec = ahead[0].spec
        yield spec, of(spec)


def _shares(contributions: Sequence[Contribution]) -> list[float]:
    try:
        total = math.fsum(c.weight for c in contributions)
    except OverflowError:
        total = math.inf
    if not contributions or not (math.isfinite(total) and total > 0):
        raise ArrayError("num_samples", f"the survivors' num_samples sum to {total:g}, so there is no mean")
    return [c.weight / total for c in contributions]


def _scales(longest: float, contributions: Sequence[Contribution]) -> list[float]:
    """Return what each update is shortened by so that none is longer (Sun et al. 2019, arXiv:1911.07963)."""
    norms = [c.norm if c.norm is not None else math.inf for c in contributions]
    return [1.0 if norm <= longest else longest / norm for norm in norms]


def _by_distance(recipe: Recipe, work: _Work, between: Callable[[], object]) -> list[float]:
    """Return the shares that a method gives from the distances between the updates."""
    specs = [spec for spec in work.specs.values() if work.combined(spec)]

    def products(tile: Tile) -> Floats:
        _, updates = work.updates(tile)
        return updates @ updates.T

    count = len(work.shares)
    gram = np.zeros((count, count))
    total = sum(spec.count for spec in specs) * count
    with closing(in_order(products, tiles(specs, count), total)) as done:
        for _, part in done:
            between()
            gram += part
    gram *= np.outer(work.scales, work.scales)  # as they are when they have been shortened
    if not np.isfinite(gram).all():
        raise ArrayError("nonfinite", "the distances between the updates are not finite")
    if recipe.method == "geometric_median":
        return [float(share) for share in robust.geometric_median(gram, np.array(work.shares))]
    if count < 2 * recipe.byzantine + 3 and recipe.byzantine:
        raise ArrayError(
            "method", f"{count} survivors are too few for {recipe.method} with {recipe.byzantine} liars"
        )
    chosen = robust.krum(gram, recipe.byzantine, recipe.kept(count))
    return [1 / len(chosen) if index in chosen else 0.0 for index in range(count)]


class _Arrays(Mapping[str, NDArray[Any]]):
    """A file's arrays by name, each read when it is asked for; the params, or weights of one worker."""

    def __init__(self, work: _Work, index: int | None = None) -> None:
        self._work, self._index = work, index

    def __getitem__(self, name: str) -> NDArray[Any]:
        work, spec = self._work, self._work.specs[name]
        data, old = np.empty(spec.count, spec.dtype), np.empty(spec.count, spec.dtype)
        whole = Tile(spec, 0, spec.count)
        if self._index is None:
            work.params.read_raw(0, whole, data)
            return data.reshape(spec.shape)
        work.weights.read_raw(self._index, whole, data)
        scale = work.scales[self._index]
        if scale < 1.0 and work.combined(spec):
            work.params.read_raw(0, whole, old)
            before = reals(old).astype(wide_dtype(spec.dtype))
            shortened = (reals(data) - before) * scale + before
            data = shortened.astype(_part(spec.dtype)).view(spec.dtype)
        return data.reshape(spec.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._work.specs)

    def __len__(self) -> int:
        return len(self._work.specs)


def _own(combine: Combine, work: _Work, contributions: Sequence[Contribution]) -> Mapping[str, NDArray[Any]]:
    """Call a user's function and see that it returns what can be new params."""
    name = work.recipe.method
    inputs = Inputs(
        number=work.number,
        ranks=tuple(c.rank for c in contributions),
        shares=np.array(work.shares),
        params=_Arrays(work),
        weights=[_Arrays(work, index) for index in range(len(contributions))],
    )
    try:
        made = combine(inputs)
    except ArrayError:
        raise
    except Exception as e:
        trace = e.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
        raise ArrayError("method", f"{name} raised {type(e).__name__}: {e}{where}") from e
    if not isinstance(made, Mapping):
        raise ArrayError("method", f"{name} returned {type(made).__name__}, not a dict of arrays")
    for spec in filter(work.combined, work.specs.values()):
        array = made.get(spec.name)
        if array is None:
            raise ArrayError("method", f"{name} returned no array {spec.name!r}")
        if not isinstance(array, np.ndarray) or array.shape != spec.shape or array.dtype.kind not in "fciubV":
            shown = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ArrayError("method", f"{name} returned {shown} for array {spec.name!r}, not {spec.shape}")
    return made
