"""Averages that bear liars: against plain NumPy on whole arrays, and against liars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize, stats

from runner import robust
from runner.aggregate import Contribution, Inputs, aggregate
from runner.errors import ArrayError
from runner.recipe import Recipe
from runner.tiles import Plain

STACKS = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 9), st.integers(1, 5)),
    elements=st.floats(-100, 100, allow_subnormal=False),
)


@given(STACKS)
def test_median(stack: np.ndarray):
    np.testing.assert_array_equal(robust.median(stack), np.median(stack, axis=0))


@given(STACKS, st.floats(0, 0.49))
def test_trimmed_mean(stack: np.ndarray, share: float):
    np.testing.assert_allclose(
        robust.trimmed_mean(stack, share), stats.trim_mean(stack, share, axis=0), rtol=1e-12, atol=1e-12
    )


def krum_by_the_book(points: np.ndarray, byzantine: int, keep: int) -> list[int]:
    nearest = max(len(points) - byzantine - 2, 1)
    scores = []
    for i, point in enumerate(points):
        others = sorted(float(((point - other) ** 2).sum()) for j, other in enumerate(points) if i != j)
        scores.append((sum(others[:nearest]), i))
    return sorted(i for _, i in sorted(scores)[:keep])


@given(st.integers(5, 12), st.integers(0, 1), st.integers(1, 5), st.integers(0, 2**32))
def test_krum(count: int, byzantine: int, keep: int, seed: int):
    points = np.random.default_rng(seed).normal(size=(count, 4))
    assert robust.krum(points @ points.T, byzantine, keep) == krum_by_the_book(points, byzantine, keep)


def test_krum_s_ties_go_to_the_lower_rank():
    points = np.ones((5, 3))
    assert robust.krum(points @ points.T, 1, 2) == [0, 1]


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 9), st.integers(0, 2**32))
def test_geometric_median_is_the_nearest_point(count: int, seed: int):
    rng = np.random.default_rng(seed)
    points, shares = rng.normal(size=(count, 3)), rng.uniform(0.5, 1, count)
    shares /= shares.sum()

    def far(point: np.ndarray) -> float:
        return float(shares @ np.linalg.norm(points - point, axis=1))

    found = robust.geometric_median(points @ points.T, shares) @ points
    best = optimize.minimize(
        far, shares @ points, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
    )
    assert far(found) <= best.fun * (1 + 1e-6)


def test_geometric_median_of_one_point_many_times():
    points = np.ones((4, 3))
    np.testing.assert_allclose(robust.geometric_median(points @ points.T, np.full(4, 0.25)), 0.25)


def test_outliers():
    assert robust.outliers([1.0, 1.1, 0.9, 50.0], 6) == [3]
    assert robust.outliers([1.0, 1.0, 1.0, 1.0], 6) == []
    assert robust.outliers([1.0, 50.0], 6) == []
    assert robust.outliers([1.0, 1.1, 0.9, float("inf")], 6) == [3]
    assert robust.outliers([0.001, 1.1, 0.9, 1.0], 6) == [], "short updates are no danger"


WEIGHTS = np.random.default_rng(5).normal(size=(7, 40_000)).astype(np.float32)
OLD = np.random.default_rng(6).normal(size=40_000).astype(np.float32)


def combined(folder: Path, recipe: Recipe, weights: np.ndarray = WEIGHTS, **more: object):
    np.savez(folder / "old.npz", x=OLD, n=np.array(-1))
    given_ = []
    for rank, array in enumerate(weights):
        np.savez(folder / f"{rank}.npz", x=array, n=np.array(rank))
        norm = float(np.linalg.norm(array.astype(float) - OLD))
        given_.append(Contribution(rank, Plain.of(folder / f"{rank}.npz"), rank + 1.0, norm))
    made = aggregate(folder / "old.npz", given_, folder / "new.npz", recipe, **more)
    with np.load(folder / "new.npz") as new:
        return made, new["x"], int(new["n"])


def test_by_coordinate_through_files(tmp_path: Path):
    _, new, n = combined(tmp_path, Recipe(method="median"))
    np.testing.assert_array_equal(new, np.median(WEIGHTS, axis=0))
    assert n == 0
    _, new, _ = combined(tmp_path, Recipe(method="trimmed_mean", trim=0.3))
    np.testing.assert_allclose(new, stats.trim_mean(WEIGHTS.astype(float), 0.3), rtol=1e-6, atol=1e-8)


def test_by_distance_through_files(tmp_path: Path):
    near = (OLD + 0.1 * WEIGHTS).astype(np.float32)
    near[2] = 1e6
    made, new, n = combined(tmp_path, Recipe(method="krum", byzantine=1), near)
    updates = near.astype(float) - OLD
    (chosen,) = krum_by_the_book(updates, 1, 1)
    np.testing.assert_array_equal(new, near[chosen])
    assert made.shares.index(1.0) == n == chosen, "whole numbers come from whom is chosen"
    made, new, _ = combined(tmp_path, Recipe(method="multi_krum", byzantine=1), near)
    chosen = krum_by_the_book(updates, 1, 4)
    np.testing.assert_allclose(new, near[chosen].astype(float).mean(axis=0), rtol=1e-6, atol=1e-9)
    assert 2 not in chosen
    made, new, _ = combined(tmp_path, Recipe(method="geometric_median"), near)
    assert np.linalg.norm(new - OLD) < 100
    assert sum(made.shares) == pytest.approx(1)


def test_krum_with_too_few_survivors(tmp_path: Path):
    with pytest.raises(ArrayError, match="6 survivors are too few for krum with 2 liars"):
        combined(tmp_path, Recipe(method="krum", byzantine=2), WEIGHTS[:6])


def test_clipping(tmp_path: Path):
    weights = np.stack([OLD + 1e-4 * WEIGHTS[0], OLD + 30 * WEIGHTS[1]]).astype(np.float32)
    made, new, _ = combined(tmp_path, Recipe(clip_norm=1.0), weights)
    updates = weights.astype(float) - OLD
    norms = np.linalg.norm(updates, axis=1)
    assert norms[0] < 1 < norms[1]
    scales = np.minimum(1, 1 / norms)
    np.testing.assert_allclose(new, OLD + (np.array([1, 2]) / 3 * scales) @ updates, rtol=1e-6, atol=1e-7)
    assert made.scales == pytest.approx(scales)
    assert made.delta_norm <= 2**0.5, "the whole number's step is 1"


@pytest.mark.parametrize("method", ["krum", "geometric_median", "own"])
def test_clipping_comes_before_anything_else(tmp_path: Path, method: str):
    weights = np.stack([OLD + WEIGHTS[0], OLD + 30 * WEIGHTS[1], OLD + WEIGHTS[2], OLD - 20 * WEIGHTS[3]])
    weights = weights.astype(np.float32)
    updates = weights.astype(float) - OLD
    updates *= np.minimum(1, 1 / np.linalg.norm(updates, axis=1))[:, None]
    own = {"combine": lambda inputs: {"x": inputs.weights[1]["x"]}} if method == "own" else {}
    recipe = Recipe(method="mean" if own else method, clip_norm=1.0)
    _, new, _ = combined(tmp_path, recipe, weights, **own)
    if method == "own":
        expected = updates[1]
    elif method == "krum":
        (chosen,) = krum_by_the_book(updates, 0, 1)
        expected = updates[chosen]
    else:
        expected = robust.geometric_median(updates @ updates.T, np.arange(1, 5) / 10) @ updates
    np.testing.assert_allclose(new - OLD, expected, rtol=1e-4, atol=1e-6)


def test_clipping_what_is_short_changes_no_bit(tmp_path: Path):
    plain = combined(tmp_path, Recipe())[0].sha256
    assert combined(tmp_path, Recipe(clip_norm=1e9))[0].sha256 == plain


def test_what_is_told_of_each_update(tmp_path: Path):
    made, _, _ = combined(tmp_path, Recipe())
    shares = np.arange(1, 8) / 28
    updates = WEIGHTS.astype(float) - OLD
    mean = shares @ updates
    assert made.shares == pytest.approx(shares)
    cosines = updates @ mean / np.linalg.norm(updates, axis=1) / np.linalg.norm(mean)
    assert made.cosines == pytest.approx(cosines, rel=1e-9)
    still = combined(tmp_path, Recipe(), np.stack([OLD, OLD]))[0]
    assert still.cosines == (None, None)
    assert still.delta_norm == 1, "the whole number's step"


def test_some_arrays_stay_as_they_are(tmp_path: Path):
    np.savez(tmp_path / "old.npz", a=np.zeros(2), bn=np.zeros(2), n=np.array(0))
    np.savez(tmp_path / "w.npz", a=np.ones(2), bn=np.ones(2), n=np.array(1))
    given_ = [Contribution(0, Plain.of(tmp_path / "w.npz"), 1.0)]
    for recipe in (Recipe(exclude=("bn*", "n")), Recipe(include=("a",))):
        aggregate(tmp_path / "old.npz", given_, tmp_path / "new.npz", recipe)
        with np.load(tmp_path / "new.npz") as new:
            assert {k: v.tolist() for k, v in new.items()} == {"a": [1, 1], "bn": [0, 0], "n": 0}


def test_a_function_of_one_s_own(tmp_path: Path):
    def largest(inputs: Inputs) -> dict[str, np.ndarray]:
        assert inputs.number == 3
        assert inputs.ranks == tuple(range(7))
        assert inputs.shares.sum() == pytest.approx(1)
        assert list(inputs.params) == list(inputs.weights[0]) == ["x", "n"]
        return {"x": np.max([weights["x"] for weights in inputs.weights], axis=0)}

    _, new, n = combined(tmp_path, Recipe(method="own:largest"), number=3, combine=largest)
    np.testing.assert_array_equal(new, WEIGHTS.max(axis=0))
    assert n == 0


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "own:f returned NoneType, not a dict of arrays"),
        ({}, "own:f returned no array 'x'"),
        ({"x": np.zeros(3)}, r"own:f returned float64 \(3,\) for array 'x', not \(40000,\)"),
        ({"x": np.array([None] * 40_000)}, "own:f returned object"),
        ({"x": np.full(40_000, np.nan)}, "'x' is not finite"),
    ],
)
def test_a_function_that_returns_something_odd(tmp_path: Path, made: object, said: str):
    with pytest.raises(ArrayError, match=said):
        combined(tmp_path, Recipe(method="own:f"), combine=lambda _: made)
    assert not (tmp_path / "new.npz").exists()


def test_a_function_that_fails(tmp_path: Path):
    def broken(inputs: Inputs) -> dict[str, np.ndarray]:
        return {"x": inputs.params["y"]}

    with pytest.raises(ArrayError, match=r"own:f raised KeyError: 'y' \(\w+\.py:\d+\)"):
        combined(tmp_path, Recipe(method="own:f"), combine=broken)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["mean", "median", "trimmed_mean", "multi_krum", "geometric_median"]), st.integers(0, 99)
)
def test_one_liar_of_five_can_t_move_the_robust_ones_far(tmp_path: Path, method: str, seed: int):
    rng = np.random.default_rng(seed)
    weights = (OLD + 0.01 * rng.normal(size=(5, OLD.size))).astype(np.float32)
    weights[rng.integers(5)] = 1e20
    made, _, _ = combined(tmp_path, Recipe(method=method, trim=0.2, byzantine=1), weights)
    assert (made.delta_norm > 1e15) == (method == "mean")


def test_more_workers_than_files_that_may_be_open(tmp_path: Path, monkeypatch):
    one = combined(tmp_path, Recipe())[0]
    monkeypatch.setattr("runner.tiles._most_files", lambda: 3)
    assert combined(tmp_path, Recipe())[0] == one


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_no_bit(tmp_path: Path, monkeypatch, threads: int):
    one = combined(tmp_path, Recipe(method="geometric_median"))[0]
    monkeypatch.setattr("runner.tiles._threads", lambda _: threads)
    assert combined(tmp_path, Recipe(method="geometric_median"))[0] == one
