"""Checking weights and averaging them: against NumPy in double precision, bit for bit where it must be."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runner import aggregate as aggregating
from runner.aggregate import Aggregated, Contribution, aggregate
from runner.arrays import BLOCK, ArrayFile
from runner.errors import ArrayError
from runner.tiles import Plain
from runner.weights import adopt, check_weights, max_weights_bytes

PARAMS = {
    "w": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.zeros(3, np.float64),
    "n": np.array(7, np.int64),
}
FLOATS = st.floats(-(2.0**126), 2.0**126, width=32, allow_subnormal=False)
HOUSE = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def params(folder: Path, **arrays: np.ndarray) -> Path:
    return save(folder / "params.npz", **arrays)


def contribution(rank: int, path: Path, weight: float) -> Contribution:
    return Contribution(rank, Plain.of(path), weight)


def averaged(folder: Path, weights: list[dict[str, np.ndarray]], shares: list[float], old=None) -> Aggregated:
    """Average into ``new.npz``."""
    before = save(folder / "old.npz", **(old or {k: np.zeros_like(v) for k, v in weights[0].items()}))
    given_ = [
        contribution(rank, save(folder / f"{rank}.npz", **arrays), share)
        for rank, (arrays, share) in enumerate(zip(weights, shares, strict=True))
    ]
    return aggregate(before, given_, folder / "new.npz")


def new(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "new.npz") as file:
        return {name: file[name] for name in file}


def changed(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    return {k: v for k, v in {**PARAMS, **changes}.items() if v is not None}


@pytest.mark.parametrize(
    ("weights", "reason", "said"),
    [
        (changed(b=None), "missing", "'b' is missing"),
        (changed(extra=np.zeros(1)), "unexpected", "'extra' is not in the params"),
        (changed(w=PARAMS["w"].T), "shape", r"shape \(4, 3\), not \(3, 4\)"),
        (changed(w=PARAMS["w"].ravel()), "shape", r"shape \(12,\)"),
        (changed(w=PARAMS["w"].astype(np.float64)), "dtype", "dtype float64, not float32"),
        (changed(w=PARAMS["w"].astype(">f4")), "dtype", "dtype >f4, not float32"),
        (changed(w=np.where(PARAMS["w"] == 6, np.nan, PARAMS["w"])), "nonfinite", r"'w' has nan at \(1, 2\)"),
        (changed(b=np.array([0, -np.inf, np.nan])), "nonfinite", r"'b' has -inf at \(1,\)"),
        (changed(b=np.array([0, 1e200, 1])), "nonfinite", "its change of the params has no finite length"),
        (
            changed(w=np.asfortranarray(np.where(PARAMS["w"] == 6, np.inf, PARAMS["w"]))),
            "nonfinite",
            r"inf at \(1, 2\)",
        ),
    ],
)
def test_wrong_weights(tmp_path: Path, weights, reason: str, said: str):
    path = save(
        tmp_path / "x.npz",
        **{k: v.astype(PARAMS[k].dtype) if reason == "nonfinite" else v for k, v in weights.items()},
    )
    with pytest.raises(ArrayError, match=said) as caught:
        check_weights(path, params(tmp_path, **PARAMS))
    assert caught.value.reason == reason


def test_right_weights(tmp_path: Path):
    known = params(tmp_path, **PARAMS)
    check_weights(save(tmp_path / "x.npz", **PARAMS), known)
    check_weights(save(tmp_path / "x.npz", **dict(reversed(PARAMS.items()))), known)
    check_weights(save(tmp_path / "x.npz", **changed(w=np.asfortranarray(PARAMS["w"]))), known)
    np.savez_compressed(tmp_path / "x.npz", **PARAMS)
    check_weights(tmp_path / "x.npz", known)
    with ArrayFile(known) as file:
        assert (tmp_path / "x.npz").stat().st_size <= max_weights_bytes(file.specs)


def test_not_finite_in_a_later_block(tmp_path: Path):
    array = np.zeros((3, BLOCK), np.float32)
    known = params(tmp_path, x=array)
    array[2, 5] = np.nan
    with pytest.raises(ArrayError, match=r"nan at \(2, 5\)"):
        check_weights(save(tmp_path / "x.npz", x=array), known)


def test_a_complex_number_that_is_not_finite(tmp_path: Path):
    array = np.array([1, complex(0, math.inf)], np.complex64)
    with pytest.raises(ArrayError, match=r"at \(1,\)"):
        check_weights(save(tmp_path / "x.npz", x=array), params(tmp_path, x=np.zeros(2, np.complex64)))


def test_between_can_stop_it(tmp_path: Path):
    def stop() -> None:
        raise KeyError

    known = params(tmp_path, **PARAMS)
    with pytest.raises(KeyError):
        check_weights(save(tmp_path / "x.npz", **PARAMS), known, stop)
    contributions = [contribution(0, tmp_path / "x.npz", 1.0)]
    with pytest.raises(KeyError):
        aggregate(known, contributions, tmp_path / "new.npz", between=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"x.npz", "params.npz"}


@HOUSE
@given(
    st.lists(hnp.arrays(np.float32, (2, 3), elements=FLOATS), min_size=1, max_size=5),
    st.data(),
)
def test_the_mean_is_numpy_s_in_double_precision(
    tmp_path: Path, arrays: list[np.ndarray], data: st.DataObject
):
    shares = [data.draw(st.floats(1e-3, 1e6)) for _ in arrays]
    made = averaged(tmp_path, [{"x": a} for a in arrays], shares)
    wide = [a.astype(np.float64) for a in arrays]
    expected = np.average(wide, axis=0, weights=shares)
    scale = float(np.max(np.abs(wide)))
    np.testing.assert_allclose(new(tmp_path)["x"], expected, rtol=1.3e-7, atol=scale * 1e-12 + 1e-45)
    assert made.sha256 == hashlib.sha256((tmp_path / "new.npz").read_bytes()).hexdigest()
    result = new(tmp_path)["x"].astype(np.float64)
    assert made.weight_norm == pytest.approx(np.linalg.norm(result), rel=1e-9)
    assert made.delta_norm == pytest.approx(made.weight_norm, rel=1e-9)


@HOUSE
@given(
    hnp.arrays(st.sampled_from([np.float16, np.float32]), (2, 5), elements=st.floats(-6e4, 6e4, width=16)),
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9),
)
def test_the_same_weights_from_all_are_the_new_params(tmp_path: Path, array: np.ndarray, shares: list[float]):
    averaged(tmp_path, [{"x": array}] * len(shares), shares)
    np.testing.assert_array_equal(new(tmp_path)["x"], array)


@HOUSE
@given(
    hnp.arrays(np.float64, (3,), elements=st.floats(-1e100, 1e100)),
    st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=9),
)
def test_double_precision_is_right_to_a_few_units(tmp_path: Path, array: np.ndarray, shares: list[float]):
    averaged(tmp_path, [{"x": array}] * len(shares), shares)
    np.testing.assert_allclose(new(tmp_path)["x"], array, rtol=len(shares) * 4e-16, atol=1e-300)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g", "c8", "c16", ">f4", "i4", "?", "u8"])
def test_one_survivor_gives_its_weights(tmp_path: Path, dtype: str):
    array = np.random.default_rng(1).normal(size=(3, 4)).astype(dtype)
    averaged(tmp_path, [{"x": array}], [0.3])
    found = new(tmp_path)["x"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_norms_count_all_arrays_and_the_change_alone(tmp_path: Path):
    weights = {"x": np.array([3.0, 0.0]), "n": np.array([4]), "c": np.array([12j])}
    made = averaged(
        tmp_path, [weights] * 2, [1.0, 1.0], old={**weights, "x": np.zeros(2), "c": np.array([8j], complex)}
    )
    assert (made.weight_norm, made.delta_norm) == (13.0, 5.0)


def test_whole_numbers_are_the_first_s(tmp_path: Path):
    weights = [{"n": np.array(i), "f": np.array([i % 2 == 1]), "x": np.array([float(i)])} for i in (3, 4)]
    averaged(tmp_path, weights, [1.0, 3.0], old={"n": np.array(0), "f": np.array([False]), "x": np.zeros(1)})
    assert {k: v.tolist() for k, v in new(tmp_path).items()} == {"n": 3, "f": [True], "x": [3.75]}


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_the_same_input_gives_the_same_bytes(tmp_path: Path, form: str):
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.{form}" for i in range(4)]
    for path in paths:
        array = rng.normal(size=(3, BLOCK // 2 + 1)).astype(np.float32)
        np.save(path, array) if form == "npy" else np.savez(path, x=array)
    shares = [
        contribution(i, path, w) for i, (path, w) in enumerate(zip(paths[1:], (3.0, 1.0, 7.0), strict=True))
    ]
    made = [aggregate(paths[0], shares, tmp_path / f"new-{i}.{form}") for i in range(2)]
    one, two = ((tmp_path / f"new-{i}.{form}").read_bytes() for i in range(2))
    assert one == two
    assert made[0] == made[1]
    assert made[0].sha256 == hashlib.sha256(one).hexdigest()


def test_layout_and_compression_do_not_matter(tmp_path: Path):
    array = np.random.default_rng(0).normal(size=(40, 50))
    plain = averaged(tmp_path, [{"x": array}, {"x": array + 1}], [1.0, 2.0])
    np.savez_compressed(tmp_path / "0.npz", x=np.asfortranarray(array))
    given_ = [
        Contribution(rank, check_weights(tmp_path / f"{rank}.npz", tmp_path / "old.npz").file, rank + 1.0)
        for rank in (0, 1)
    ]
    assert aggregate(tmp_path / "old.npz", given_, tmp_path / "new.npz") == plain


@pytest.mark.parametrize(
    "shares", [[], [0.0, 0.0], [math.inf, 1.0], [math.nan, 1.0], [1e308, 1e308]], ids=str
)
def test_weights_without_a_aggregate(tmp_path: Path, shares: list[float]):
    save(tmp_path / "old.npz", x=np.ones(2))
    given_ = [contribution(i, tmp_path / "old.npz", share) for i, share in enumerate(shares)]
    with pytest.raises(ArrayError) as caught:
        aggregate(tmp_path / "old.npz", given_, tmp_path / "new.npz")
    assert caught.value.reason == "num_samples"
    assert [path.name for path in tmp_path.iterdir()] == ["old.npz"]


@HOUSE
@given(st.lists(st.floats(0, 1e300), min_size=2, max_size=4))
def test_shares_of_any_size(tmp_path: Path, shares: list[float]):
    assume(0 < sum(shares) < math.inf)
    averaged(tmp_path, [{"x": np.full(2, 3.0, np.float32)}] * len(shares), shares)
    np.testing.assert_allclose(new(tmp_path)["x"], 3.0, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_numbers_average_without_a_warning(tmp_path: Path, dtype):
    top = np.full(3, np.finfo(dtype).max, dtype)
    try:
        averaged(tmp_path, [{"x": top}] * 3, [1.0] * 3, old={"x": top})
    except ArrayError as e:
        assert e.reason == "nonfinite"  # noqa: PT017 - of doubles, the norm has no number
        assert not (tmp_path / "new.npz").exists()


def test_a_failure_midway_leaves_the_old_params_and_nothing_else(tmp_path: Path, monkeypatch):
    target = save(tmp_path / "new.npz", x=np.ones(3))
    before = target.read_bytes()
    a = save(tmp_path / "0.npz", x=np.zeros(3), y=np.zeros(3))
    b = save(tmp_path / "1.npz", x=np.zeros(3), y=np.zeros(3))
    names = {path.name for path in tmp_path.iterdir()}
    both = [contribution(0, a, 1.0), contribution(1, b, 1.0)]
    data = b.read_bytes()
    b.write_bytes(data[: data.index(b"y.npy") + 130])
    with pytest.raises(ArrayError, match=r"1\.npz was cut off while it was in use"):
        aggregate(a, both, target)
    assert target.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == names

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(aggregating.ArrayWriter, "commit", full)
    with pytest.raises(OSError, match="No space left"):
        aggregate(a, [contribution(0, a, 1.0)], target)
    with pytest.raises(OSError, match="No space left"):
        adopt(a, target)
    assert target.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_survivor_s_file_that_vanished(tmp_path: Path):
    a = save(tmp_path / "0.npz", x=np.zeros(3))
    both = [contribution(0, a, 1.0), Contribution(1, Plain(tmp_path / "gone.npz", {"x": 0}), 1.0)]
    with pytest.raises(ArrayError, match=r"gone\.npz can't be read"):
        aggregate(a, both, tmp_path / "new.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["0.npz"]


def test_initial_params_that_are_not_finite(tmp_path: Path):
    source = save(tmp_path / "x.npz", x=np.array([1.0, np.nan]))
    with pytest.raises(ArrayError, match=r"nan at \(1,\)"):
        adopt(source, tmp_path / "new.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
