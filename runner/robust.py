"""Averages that bear liars: of each coordinate, or by the distances between whole updates; no I/O."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

_WEISZFELD_STEPS = 1000
_SMOOTHING = 1e-6
"""Relative to the middle distance; keeps a step from dividing by 0 at one of the points."""


def median(stacked: Floats) -> Floats:
    """Return the median of each coordinate, all alike (Yin et al. 2018, arXiv:1803.01498).

    Args:
        stacked: (workers, elements).
    """
    return np.median(stacked, axis=0)


def trimmed_mean(stacked: Floats, share: float) -> Floats:
    """Return each coordinate's mean without its largest and smallest values (Yin et al. 2018).

    Args:
        stacked: (workers, elements).
        share: of the workers, cut off at each end; rounded down to whole workers.
    """
    count = len(stacked)
    cut = trimmed(count, share)
    kept = np.sort(stacked, axis=0)[cut : count - cut]
    return np.add.reduce(kept, axis=0) / len(kept)  # type: ignore[no-any-return] # NumPy's stub says Any


def trimmed(count: int, share: float) -> int:
    """Return how many of so many values a share is: whole ones, rounded down."""
    return int(share * count + 1e-9)


def squared_distances(gram: Floats) -> Floats:
    """Return the squared distances between updates from their inner products, (workers, workers)."""
    squares = np.diag(gram)
    return np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0.0)


def krum(gram: Floats, byzantine: int, keep: int) -> list[int]:
    """Choose the updates that are closest to their nearest others (Blanchard et al. 2017, NeurIPS).

    An update's score is the sum of its squared distances to the ``workers - byzantine - 2`` nearest others;
    the lowest scores win, at equal scores the lower rank.

    Args:
        gram: inner products of the updates, (workers, workers).
        byzantine: how many may lie (f).
        keep: how many to choose (m): 1 is Krum.

    Returns:
        Indices in ascending order.
    """
    distances = squared_distances(gram)
    np.fill_diagonal(distances, np.inf)
    nearest = max(len(gram) - byzantine - 2, 1)
    scores = np.sort(distances, axis=1)[:, :nearest].sum(axis=1)
    return sorted(int(i) for i in np.argsort(scores, kind="stable")[:keep])


def geometric_median(gram: Floats, shares: Floats) -> Floats:
    """Return what share of each update makes their geometric median.

    Weiszfeld's algorithm, smoothed (Pillutla et al. 2022, RFA, arXiv:1912.13445), in the space of the
    shares: a point between the updates is told by its shares, its distances follow from the inner products.

    Args:
        gram: inner products of the updates, (workers, workers).
        shares: how much each counts, summing to 1.
    """
    squares = np.diag(gram)
    now = shares
    for _ in range(_WEISZFELD_STEPS):
        toward = gram @ now
        distances = np.sqrt(np.maximum(squares - 2 * toward + now @ toward, 0.0))
        floor = _SMOOTHING * np.median(distances)
        if floor == 0:  # half of them are the point itself
            break
        weights = shares / np.maximum(distances, floor)
        before, now = now, weights / weights.sum()
        if np.abs(now - before).max() < 1e-12:
            break
    return now


def outliers(norms: list[float], k: float) -> list[int]:
    """Return who has an update whose norm is far above the others'.

    Args:
        norms: of the updates.
        k: how many median absolute deviations above the median is too far.

    Returns:
        Indices in ascending order; none when fewer than 3 updates are there to compare.
    """
    if len(norms) < 3:
        return []
    middle = float(np.median(norms))
    spread = float(np.median(np.abs(np.array(norms) - middle)))
    limit = middle + k * max(spread, 1e-3 * middle)
    return [i for i, norm in enumerate(norms) if norm > limit]
