"""What a job says about its aggregate, with every default filled in; knows nothing of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner import optimizers
from runner.arrays import ArraySpec
from runner.optimizers import Settings

Floats = NDArray[np.floating[Any]]
METHODS = ("mean", "median", "trimmed_mean", "krum", "multi_krum", "geometric_median")
"""The built-in ways to combine weights, by their published names."""
BY_DISTANCE = ("krum", "multi_krum", "geometric_median")
"""Those that look at how far whole updates are from each other, before they average."""
BY_COORDINATE = ("median", "trimmed_mean")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the new params come about.

    Args:
        method: one of ``METHODS``, or ``module:function``.
        trim: share of the workers that ``trimmed_mean`` cuts off at each end.
        byzantine: how many liars ``krum`` and ``multi_krum`` reckon with.
        keep: how many ``multi_krum`` averages; None: workers - byzantine - 2, the most its proof allows.
        clip_norm: an update that is longer (L2) is shortened to this.
        optimizer: a server optimizer, or None.
        settings: its numbers.
        include: patterns of the names of arrays that are averaged; the others stay as they are.
        exclude: patterns of the names of arrays that are not.
    """

    method: str = "mean"
    trim: float = 0.1
    byzantine: int = 0
    keep: int | None = None
    clip_norm: float | None = None
    optimizer: str | None = None
    settings: Settings = optimizers.DEFAULTS["fedavgm"]
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """What the optimizer remembers from round to round."""
        return optimizers.STATE[self.optimizer] if self.optimizer else ()

    def takes(self, name: str) -> bool:
        """Say whether an array takes part, by its name."""
        return any(fnmatchcase(name, pattern) for pattern in self.include) and not any(
            fnmatchcase(name, pattern) for pattern in self.exclude
        )

    def step(self, old: Floats, gradient: Floats, state: Sequence[Floats], number: int) -> Floats:
        """Return what the optimizer makes of a block; see :func:`runner.optimizers.STEPS`."""
        assert self.optimizer is not None  # noqa: S101 - asked for only where there is one
        return optimizers.STEPS[self.optimizer](self.settings, old, gradient, state, number)

    def kept(self, workers: int) -> int:
        """Return how many updates krum or multi_krum keep of so many."""
        if self.method == "krum":
            return 1
        most = workers - self.byzantine - 2 if self.keep is None else self.keep
        return min(max(most, 1), workers)

    def state_specs(self, specs: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
        """Return the arrays of each of the optimizer's state files: those that are averaged."""
        return {
            name: ArraySpec(name, state_dtype(spec.dtype), spec.shape)
            for name, spec in specs.items()
            if spec.averaged and self.takes(name)
        }


def state_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return what an optimizer remembers of numbers of a dtype: theirs, but float32 at least."""
    if dtype.kind == "V" or dtype.itemsize < 4:
        return np.dtype(np.float32)
    return dtype.newbyteorder("=")
