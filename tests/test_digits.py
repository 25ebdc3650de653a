"""The built-in job and the scaffold: their training commands, run as a worker would run them."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.builtin import alone, train

RUNNER = Path(train.__file__).parents[1]
BUILTIN, SCAFFOLD = RUNNER / "builtin", RUNNER / "scaffold"
SEED, WORLD_SIZE = 1, 4


class Folder:
    """A folder with a training command in it, outside the package."""

    def __init__(self, path: Path, *files: Path) -> None:
        self.path = path
        for file in files:
            shutil.copy(file, path)

    def run(self, *args: str, code: int = 0, **variables: object) -> subprocess.CompletedProcess[str]:
        given = {
            f"ROUNDLOG_{name.upper()}" if name.islower() else name: str(v) for name, v in variables.items()
        }
        done = subprocess.run(
            [sys.executable, "train.py", *args],
            cwd=self.path,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def init(self, seed: int = SEED) -> Path:
        params = self.path / f"params-{seed}.npz"
        self.run("--init", seed=seed, params=params)
        return params

    def train(
        self, params: Path, rank: int, *, round_: int = 0, tag: str = "", code: int = 0, **more: object
    ) -> tuple[Path, Path, subprocess.CompletedProcess[str]]:
        weights, metrics = (self.path / f"{kind}-{rank}{tag}" for kind in ("weights.npz", "metrics.json"))
        done = self.run(
            code=code,
            seed=SEED,
            round=round_,
            rank=rank,
            world_size=WORLD_SIZE,
            params=params,
            weights=weights,
            metrics=metrics,
            **more,
        )
        return weights, metrics, done

    def evaluate(self, params: Path) -> tuple[dict[str, float], str]:
        metrics = self.path / "evaluation.json"
        done = self.run("--evaluate", params=params, metrics=metrics)
        return json.loads(metrics.read_text()), done.stdout

    def average(self, trained: list[tuple[Path, Path]]) -> Path:
        samples = [json.loads(metrics.read_text())["num_samples"] for _, metrics in trained]
        arrays = alone.average([(n, read(weights)) for n, (weights, _) in zip(samples, trained, strict=True)])
        path = self.path / "averaged.npz"
        np.savez(path, **arrays)
        return path


def read(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file}


def shapes(arrays: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


@pytest.fixture
def digits(tmp_path: Path) -> Folder:
    return Folder(tmp_path, BUILTIN / "train.py", BUILTIN / "digits.npz")


@pytest.fixture
def scaffold(tmp_path: Path) -> Folder:
    return Folder(tmp_path, SCAFFOLD / "train.py")


def test_one_round_of_digits(digits: Folder) -> None:
    params = digits.init()
    before, said = digits.evaluate(params)
    assert said == f"accuracy {before['accuracy']:.3f} loss {before['loss']:.3f} on 360 held-out images\n"
    trained = []
    for rank in range(WORLD_SIZE):
        weights, metrics, done = digits.train(params, rank)
        trained.append((weights, metrics))
        assert shapes(read(weights)) == shapes(read(params))
        assert all(np.isfinite(array).all() for array in read(weights).values())
        values = json.loads(metrics.read_text())
        assert values["num_samples"] == len(train.shard_indices(SEED, rank, WORLD_SIZE))
        last = f"loss {values['loss']:.3f} on {values['num_samples']} samples"
        assert done.stdout.splitlines()[-1] == last
        assert len(done.stdout.splitlines()) == 4
        assert done.stderr == ""
    after, _ = digits.evaluate(digits.average(trained))
    assert before["accuracy"] < 0.3
    assert after["accuracy"] > 0.6
    assert after["loss"] < before["loss"]


def test_the_planned_failure_hits_one_rank_in_one_round(digits: Folder) -> None:
    params = digits.init()
    weights, metrics, done = digits.train(params, 2, round_=3, code=3, DIGITS_FAIL="2:3")
    assert done.stderr == "planned failure: rank 2 leaves round 3, see DIGITS_FAIL in job.toml\n"
    assert len(done.stderr.rstrip()) <= 80, "the log keeps 80 characters"
    assert done.stdout.startswith("epoch 5/")
    assert not weights.exists()
    assert not metrics.exists()
    digits.train(params, 2, round_=2, DIGITS_FAIL="2:3")
    digits.train(params, 1, round_=3, DIGITS_FAIL="2:3")
    digits.train(params, 2, round_=3, DIGITS_FAIL="")


def test_the_same_round_gives_the_same_bytes(digits: Folder) -> None:
    params = digits.init()
    first = params.read_bytes()
    assert digits.init().read_bytes() == first
    assert digits.init(SEED + 1).read_bytes() != first
    a, a_metrics, _ = digits.train(params, 1)
    b, b_metrics, _ = digits.train(params, 1, tag="-again")
    assert a.read_bytes() == b.read_bytes()
    assert a_metrics.read_bytes() == b_metrics.read_bytes()
    c, _, _ = digits.train(params, 1, round_=1, tag="-next")
    assert a.read_bytes() != c.read_bytes(), "another round draws another order"


@pytest.mark.parametrize("world_size", [*range(1, 17), 64])
def test_shards_are_disjoint_and_cover_all_but_the_held_out(world_size: int) -> None:
    _, _, order = train.load_digits()
    for seed in (0, 1, 2**63 - 1):
        shards = [train.shard_indices(seed, rank, world_size) for rank in range(world_size)]
        assert all(len(shard) for shard in shards)
        dealt = np.concatenate(shards)
        assert len(np.unique(dealt)) == len(dealt)
        assert set(dealt) == set(order[train.HELD_OUT :])


def test_shards_are_uneven_and_differ_in_their_digits() -> None:
    _, labels, _ = train.load_digits()
    shards = [train.shard_indices(SEED, rank, WORLD_SIZE) for rank in range(WORLD_SIZE)]
    sizes = [len(shard) for shard in shards]
    assert max(sizes) > 2 * min(sizes)
    for shard in shards:
        counts = np.sort(np.bincount(labels[shard], minlength=10))
        assert counts[-5:].sum() > 0.8 * len(shard), "mostly of five digits or fewer"


def test_averaging_beats_every_worker_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["alone"])
    alone.main()
    said = capsys.readouterr().out
    rows = re.findall(r"^(worker \d alone|all, averaged) +\d+ +([\d.]+)$", said, re.MULTILINE)
    *single, averaged = [float(accuracy) for _, accuracy in rows]
    assert len(single) == WORLD_SIZE
    assert averaged >= 0.90
    assert max(single) <= 0.85
    by_round = said.splitlines()[-1].removeprefix("averaged, by round: ").split()
    assert len(by_round) == 8
    assert float(by_round[-1]) == averaged


def test_the_plan_is_the_job_files() -> None:
    assert alone.read_plan() == alone.Plan(rounds=8, workers=WORLD_SIZE, seed=SEED, fails=(2, 3))
    assert alone.read_plan(7).seed == 7


def test_three_rounds_of_the_scaffold(scaffold: Folder) -> None:
    params = scaffold.init()
    assert scaffold.init().read_bytes() == params.read_bytes()
    losses = [scaffold.evaluate(params)[0]["loss"]]
    for number in range(3):
        trained = []
        for rank in range(3):
            weights, metrics, done = scaffold.train(params, rank, round_=number)
            assert shapes(read(weights)) == shapes(read(params))
            values = json.loads(metrics.read_text())
            assert done.stdout == f"loss {values['loss']:.4f} on {values['num_samples']} samples\n"
            trained.append((weights, metrics))
        params = scaffold.average(trained)
        values, said = scaffold.evaluate(params)
        assert said == f"held-out loss {values['loss']:.4f}\n"
        losses.append(values["loss"])
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 10


def test_the_scaffold_refuses_unknown_arguments(scaffold: Folder) -> None:
    done = scaffold.run("--int", code=1)
    assert done.stderr == "train.py: unknown arguments ['--int']; allowed: none, --init, --evaluate\n"


@pytest.mark.parametrize("script", [BUILTIN / "train.py", SCAFFOLD / "train.py"], ids=["digits", "scaffold"])
def test_training_commands_need_only_numpy(script: Path) -> None:
    nodes = list(ast.walk(ast.parse(script.read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names | {"numpy"}
