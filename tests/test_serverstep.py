"""The aggregate in whole runs: methods, optimizers, formats and what the log tells of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from jobs import COPY, runner, start, write_job
from safetensors.numpy import load_file, save_file

from runner.optimizers import DEFAULTS, STATE

STEP = """
import os
import numpy as np
rank, params = int(os.environ["ROUNDLOG_RANK"]), np.load(os.environ["ROUNDLOG_PARAMS"])
step = np.float32([1, 2, 3, 1000][rank])
with open(os.environ["ROUNDLOG_WEIGHTS"], "wb") as file:
    np.save(file, params + step)
"""


def job(folder: Path, **changes) -> Path:
    """Write a job of four workers whose updates are 1, 2, 3 and 1000 everywhere."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(STEP)
    train = {"command": ["{python}", "train.py"], "files": ["train.py"]}
    return write_job(folder, **{"workers": 4, "train": train, **changes})


def test_the_event_tells_of_each_update(tmp_path: Path):
    run = start(job(tmp_path, rounds=1))
    event = run.one("aggregate")
    assert event["ranks"] == [0, 1, 2, 3]
    assert event["shares"] == [0.25] * 4
    assert event["update_norms"] == pytest.approx([6**0.5 * n for n in (1, 2, 3, 1000)], rel=1e-5)
    assert event["cosines"] == pytest.approx([1] * 4)
    assert event["clipped"] == []
    assert event["optimizer"] is None
    assert event["state_sha256"] == {}


def test_who_told_no_samples_is_said_where_others_did(tmp_path: Path):
    script = (
        COPY
        + """; test $ROUNDLOG_ROUND = 2 || test $ROUNDLOG_RANK = $ROUNDLOG_ROUND || \\
        echo '{"num_samples": 2}' > "$ROUNDLOG_METRICS\""""
    )
    run = start(write_job(tmp_path, rounds=3, workers=3, train={"command": ["/bin/sh", "-c", script]}))
    said = [(e["round"], e["rank"], e["error"]) for e in run.kind("metric") if e["error"]]
    told = "no num_samples, which 2 of 3 told: all workers count alike"
    assert said == [(0, 0, told), (1, 1, told)], "where nobody tells, nothing is amiss"
    assert [e["weighting"] for e in run.kind("aggregate")] == ["uniform"] * 3
    assert told in run.err


@pytest.mark.parametrize(
    ("aggregate", "step"),
    [
        ({"method": "median"}, 2.5),
        ({"method": "trimmed_mean", "trim": 0.25}, 2.5),
        ({"method": "krum"}, 2),
        ({"method": "multi_krum", "keep": 3}, 2),
        ({"clip_norm": 6**0.5}, 1),
        ({"outlier_k": 5}, 2),
    ],
    ids=str,
)
def test_methods(tmp_path: Path, aggregate: dict, step: float):
    run = start(job(tmp_path, rounds=1, aggregate=aggregate))
    np.testing.assert_allclose(np.load(run.params) - np.load(tmp_path / "params.npy"), step, rtol=1e-5)
    assert run.one("aggregate")["method"] == aggregate.get("method", "mean")
    if "clip_norm" in aggregate:
        assert run.one("aggregate")["clipped"] == [1, 2, 3]
    if "outlier_k" in aggregate:
        assert run.one("reject")["reason"] == "outlier"
        assert run.one("reject")["rank"] == 3
        assert run.one("aggregate")["ranks"] == [0, 1, 2]
        assert run.one("round_end")["failed"] == [3]
        assert run.one("round_end")["survivors"] == 3


def test_outliers_count_against_the_quorum(tmp_path: Path):
    policy = {"quorum": 4, "round_retries": 0}
    run = start(job(tmp_path, rounds=1, aggregate={"outlier_k": 5}, policy=policy), code=1)
    assert "quorum missed: 3 delivered, 1 failed, 4 needed" in run.one("round_end")["reason"]
    assert not run.kind("aggregate")


@pytest.mark.parametrize("optimizer", DEFAULTS)
def test_optimizers_remember(tmp_path: Path, optimizer: str):
    run = start(job(tmp_path, rounds=5, aggregate={"optimizer": optimizer}))
    states = run.kind("aggregate")[-1]["state_sha256"]
    assert len(states) == len(STATE[optimizer])
    for name, sha256 in states.items():
        assert hashlib.sha256((run.log.parent / name).read_bytes()).hexdigest() == sha256
    kept = sorted(path.name for path in run.log.with_suffix("").glob("state-*"))
    assert kept == sorted(f"state-{n:04}-{slot}.npz" for n in (3, 4, 5) for slot in STATE[optimizer])


OWN = """
import numpy as np
from beside import SCALE

def largest(inputs):
    return {name: SCALE * np.max([w[name] for w in inputs.weights], axis=0) for name in inputs.params}

def broken(inputs):
    return {}["no"]
"""


def test_a_function_of_one_s_own(tmp_path: Path):
    tmp_path.joinpath("own.py").write_text(OWN)
    tmp_path.joinpath("beside.py").write_text("SCALE = 2.0\n")
    run = start(job(tmp_path, rounds=1, aggregate={"method": "own:largest"}))
    np.testing.assert_allclose(np.load(run.params), 2 * (np.load(tmp_path / "params.npy") + 1000))
    assert "own.py" in run.one("run_start")["job"]["sent_sha256"]
    policy = {"round_retries": 0}
    run = start(job(tmp_path, rounds=1, aggregate={"method": "own:broken"}, policy=policy), code=1)
    assert "own:broken raised KeyError: 'no' (own.py:9)" in run.one("run_end")["reason"]


@pytest.mark.parametrize(
    ("code", "method", "said"),
    [
        ("", "own:f", "has no function 'f'"),
        ("1/0", "own:f", "importing"),
        ("f = 1", "own:f", "has no function 'f'"),
        ("", "gone:f", "No such file"),
    ],
)
def test_a_function_that_is_not_there(tmp_path: Path, code: str, method: str, said: str):
    tmp_path.joinpath("own.py").write_text(code)
    for command in ("check", "start"):
        done = runner(command, job(tmp_path, aggregate={"method": method}), code=2, cwd=tmp_path)
        assert said in done.stderr
        assert "aggregate.method" in done.stderr


def test_safetensors(tmp_path: Path):
    path = job(tmp_path, params={"file": "params.safetensors"}, train={"command": COPY, "files": []})
    save_file({"w": np.ones(3, np.float16)}, tmp_path / "params.safetensors", metadata={"format": "pt"})
    run = start(path)
    assert run.params.name == "params-0002.safetensors"
    np.testing.assert_array_equal(load_file(run.params)["w"], np.ones(3, np.float16))


def test_weights_may_come_in_another_format_if_the_names_are_the_same(tmp_path: Path):
    convert = """
import os
import numpy as np
from safetensors.numpy import load_file
with open(os.environ["ROUNDLOG_WEIGHTS"], "wb") as file:
    np.savez_compressed(file, **load_file(os.environ["ROUNDLOG_PARAMS"]))
"""
    train = {"command": ["{python}", "-c", convert], "files": []}
    path = job(tmp_path, params={"file": "params.safetensors"}, train=train)
    save_file({"w": np.arange(3.0)}, tmp_path / "params.safetensors")
    run = start(path)
    np.testing.assert_array_equal(load_file(run.params)["w"], np.arange(3.0))


def test_check_says_how(tmp_path: Path):
    aggregate = {
        "method": "multi_krum",
        "byzantine": 0,
        "optimizer": "diloco",
        "clip_norm": 2,
        "outlier_k": 6,
    }
    done = runner("check", job(tmp_path, aggregate={**aggregate, "exclude": ["bn*"]}))
    assert "multi_krum against 0 liars, keeping 2 of the updates, all workers alike" in done.stdout
    assert "then a step of diloco (learning_rate 0.7, momentum 0.9)" in done.stdout
    assert "the pattern 'bn*' matches no array of params.npy" in done.stdout


@pytest.mark.parametrize("aggregate", [{"include": ["nope*"]}, {"exclude": ["bn.*"]}])
def test_a_pattern_that_matches_nothing_ends_the_run_at_once(tmp_path: Path, aggregate: dict):
    run = start(job(tmp_path, aggregate=aggregate), code=1)
    assert "matches no array; there are array" in run.one("run_end")["reason"]
