"""Server optimizers against other programs' values (see references/) and, through files, in double."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.aggregate import Contribution, StateFile, aggregate
from runner.optimizers import DEFAULTS, STATE, STEPS, USES, Settings
from runner.recipe import Recipe
from runner.tiles import Plain

REFERENCE = json.loads((Path(__file__).parent / "references" / "optimizers.json").read_text())


def flower_s_rate(number: int, settings: Settings) -> float:
    """Flower's FedAdam corrects the bias with the step's number plus one; ours doesn't, as the paper."""
    return math.sqrt(1 - settings.beta_2 ** (number + 1)) / (1 - settings.beta_1 ** (number + 1))


@pytest.mark.parametrize("name", DEFAULTS)
def test_as_others_compute_it(name: str):
    settings = replace(DEFAULTS[name], **REFERENCE["settings"][name])
    assert settings == DEFAULTS[name], "the published defaults are what was compared"
    state = [np.zeros(6) for _ in STATE[name]]
    now = before = np.array(REFERENCE["first"])
    for number, (update, expected) in enumerate(
        zip(np.array(REFERENCE["updates"]), np.array(REFERENCE["params"][name]), strict=True), start=1
    ):
        new = STEPS[name](settings, now, -update, state, number)
        step, theirs = new - now, expected - before
        if name == "fedadam":
            theirs /= flower_s_rate(number, settings)
        np.testing.assert_allclose(step, theirs, rtol=1e-9, atol=1e-15)
        now, before = new, expected


def test_bias_correction_is_that_of_kingma_and_ba():
    settings = replace(DEFAULTS["fedadam"], bias_correction=True, tau=1e-12)
    for number in (1, 2, 3):
        state = [np.zeros(3), np.zeros(3)]
        for n in range(1, number + 1):
            new = STEPS["fedadam"](settings, np.zeros(3), np.array([3.0, -4.0, 1e-3]), state, n)
        # of a gradient that stays the same, the corrected moments are the gradient and its square
        np.testing.assert_allclose(new, [-0.1, 0.1, -0.1], rtol=1e-8)


def test_every_optimizer_is_whole():
    assert set(STEPS) == set(DEFAULTS) == set(USES) == set(STATE)
    for name, keys in USES.items():
        assert {key for key in Settings.__slots__ if getattr(DEFAULTS[name], key)} <= {*keys}


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
def test_through_files_over_several_rounds(tmp_path: Path, name: str, dtype: str):
    """Against the same steps on whole arrays in double precision."""
    rng = np.random.default_rng(3)
    old = rng.normal(size=(3, 5)).astype(dtype)
    np.savez(tmp_path / "0.npz", x=old, n=np.array(0))
    recipe = Recipe(optimizer=name, settings=DEFAULTS[name])
    reals = old.view(f"f{old.real.itemsize}").astype(float).ravel()
    expected, memory = reals, [np.zeros(reals.size) for _ in STATE[name]]
    for number in range(4):
        weights = [(old + 0.1 * rng.normal(size=old.shape) * (1 + rank)).astype(dtype) for rank in range(3)]
        given = []
        for rank, array in enumerate(weights):
            np.savez(tmp_path / f"w{rank}.npz", x=array, n=np.array(number + 1))
            given.append(Contribution(rank, Plain.of(tmp_path / f"w{rank}.npz"), rank + 1.0))
        states = [
            StateFile(
                slot,
                tmp_path / f"{slot}-{number}.npz" if number else None,
                tmp_path / f"{slot}-{number + 1}.npz",
            )
            for slot in STATE[name]
        ]
        made = aggregate(
            tmp_path / f"{number}.npz",
            given,
            tmp_path / f"{number + 1}.npz",
            recipe,
            number=number,
            state=states,
        )
        assert set(made.state_sha256) == set(STATE[name])
        wide = [array.view(f"f{old.real.itemsize}").astype(float).ravel() for array in weights]
        average = np.average(wide, axis=0, weights=[1, 2, 3])
        before = np.load(tmp_path / f"{number}.npz")["x"]
        start = before.view(f"f{old.real.itemsize}").astype(float).ravel()
        expected = STEPS[name](DEFAULTS[name], start, start - average, memory, number + 1)
        with np.load(tmp_path / f"{number + 1}.npz") as new:
            found = new["x"].view(f"f{old.real.itemsize}").ravel()
            assert new["x"].dtype == old.dtype
            assert new["n"] == number + 1
        np.testing.assert_allclose(found, expected, rtol=2e-6 if dtype != "f8" else 1e-13)
    with np.load(tmp_path / f"{STATE[name][0]}-4.npz") as state:
        assert list(state) == ["x"], "whole numbers have no state"
