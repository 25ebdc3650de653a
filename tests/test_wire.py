"""What travels encoded: the arithmetic on both ends, whole runs, and files that lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jobs import Run, runner, start, write_job
from safetensors.numpy import load_file, save_file

from runner import wire
from runner.arrays import ArrayFile
from runner.errors import ArrayError
from runner.job import WIRE, Wire
from runner.scaffold import roundlog_wire as far
from runner.weights import adopt

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = hnp.arrays(np.float32, st.integers(0, 700), elements=st.floats(width=32, allow_nan=True))
STEP = """
import os
import numpy as np
rank, params = int(os.environ["ROUNDLOG_RANK"]), dict(np.load(os.environ["ROUNDLOG_PARAMS"]))
for name in params:
    if params[name].dtype.kind == "f":
        steps = np.arange(params[name].size, dtype=np.float32).reshape(params[name].shape) % 7
        params[name] = params[name] + steps * np.float32(rank + 1)
    {fault}
np.savez(os.environ["ROUNDLOG_WEIGHTS"], **params)
"""
STAYS = """
import numpy as np
from roundlog_rounds import rounds
for r in rounds():
    params = dict(np.load(r.params))
    np.savez(r.weights, **{name: value + value.dtype.type(1) for name, value in params.items()})
    r.report(loss=0.5)
"""


def _same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one, other)


# -- the arithmetic


@given(FLOATS)
def test_bfloat16_is_as_its_makers_round_it(numbers: np.ndarray):
    data, scales = far.encode(numbers, "bfloat16", 0)
    assert scales is None
    with np.errstate(all="ignore"):
        expected = numbers.astype(BF16).astype(np.float32)
    overflown = np.isinf(expected) & np.isfinite(numbers)
    expected[overflown] = np.copysign(np.float32(ml_dtypes.finfo(BF16).max), numbers[overflown])
    _same(far.decode(data, None, "bfloat16", 0), expected)


@given(FLOATS)
def test_float16_keeps_what_is_finite_so(numbers: np.ndarray):
    decoded = far.decode(far.encode(numbers, "float16", 0)[0], None, "float16", 0)
    _same(
        decoded, np.where(np.isfinite(numbers), np.clip(numbers, -65504, 65504), numbers).astype(np.float16)
    )


@given(FLOATS, st.sampled_from([32, 256]))
def test_int8_is_off_by_half_a_step_at_most(numbers: np.ndarray, block: int):
    data, scales = far.encode(numbers, "int8", block)
    assert data.dtype == np.int8
    assert scales.size == -(-numbers.size // block)
    decoded = far.decode(data, scales, "int8", block)
    for first in range(0, numbers.size, block):
        given, got = numbers[first : first + block], decoded[first : first + block]
        if not np.isfinite(given).all():
            assert not np.isfinite(got[~np.isfinite(given)]).any(), "what is not finite must not look so"
            continue
        step = np.abs(given.astype(np.float64)).max() / 127
        assert (np.abs(got.astype(np.float64) - given) <= step * 0.5001 + 1e-44).all()


# -- one worker's files, both ends


def _params(folder: Path, form: str) -> Path:
    """Write params of all kinds that the form can have; return them in the runner's own form."""
    draw = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        "weights": draw.normal(size=(70_000, 2)).astype(np.float32),
        "file": draw.normal(size=3),
        "half": draw.normal(size=(2, 0, 3)).astype(np.float16),
        "one": np.float32(0.25),
        "steps": np.arange(5, dtype=np.int64),
    }
    if form == "npz":
        made = [
            far.Array(name, np.asarray(value).dtype.name, np.asarray(value)) for name, value in arrays.items()
        ]
        far.write(folder / "made.npz", "npz", made)
    elif form == "npy":
        np.save(folder / "made.npy", arrays["weights"])
    else:
        arrays["brain"] = draw.normal(size=(5, 7)).astype(BF16)
        save_file({name: np.asarray(value) for name, value in arrays.items()}, folder / "made.safetensors")
    adopt(folder / f"made.{form}", folder / f"params-0003.{form}")
    return folder / f"params-0003.{form}"


def _change(count: int) -> np.ndarray:
    return np.linspace(0.05, 0.125, count)


def _go_on() -> None:
    """Do nothing between blocks."""


def _there_and_back(folder: Path, form: str, given: Wire, number: int = 3) -> tuple[Path, Path, Path]:
    """Send params, add to reals over there, fetch the change; return params, what came, weights."""
    params = _params(folder, form)
    box = folder / "worker"
    box.mkdir(exist_ok=True)
    sent = box / wire.sent(params.name, given, pushed=True)
    if given.encodes_params:
        wire.encode_params(params, sent, given, _go_on)
    else:
        sent.write_bytes(params.read_bytes())
    os.chdir(box)
    files = far.Files(json.loads(wire.settings(given)["ROUNDLOG_WIRE"]))
    plain = files.unpack(sent)
    changed = [
        array._replace(data=far._narrow(far.wide(array) + _change(array.data.size), array))
        if array.dtype in far._REAL
        else array
        for array in far.read(plain, form)
    ]
    weights = box / f"weights-{number:04}.{form}{far.ENDING}"
    far.write(weights.with_suffix(""), form, changed)
    files.pack(number, plain, weights)
    assert not weights.with_suffix("").exists()
    back = folder / f"back.{form}"
    wire.decode_weights(weights, back, params, given, _go_on)
    return params, plain, back


def _numbers(path: Path) -> dict[str, np.ndarray]:
    with ArrayFile(path) as file:
        return {
            name: np.concatenate([np.empty(0, spec.dtype), *file.blocks(name)]).reshape(spec.shape)
            for name, spec in file.specs.items()
        }


@pytest.mark.parametrize(
    "how",
    [
        ("plain", "plain", 3),
        ("bfloat16", "plain", 0),
        ("plain", "int8", 3),
        ("float16", "bfloat16", 0),
        ("int8", "float16", 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["npz", "npy", "safetensors"])
def test_there_and_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str, how: tuple[Any, Any, int]
):
    monkeypatch.chdir(tmp_path)
    push, pull, zstd = how
    given = Wire(push=push, pull=pull, zstd=zstd)
    params, plain, back = _there_and_back(tmp_path, form, given)
    before, came, after = _numbers(params), _numbers(plain), _numbers(back)
    assert list(before) == list(came) == list(after)
    for name, old in before.items():
        assert came[name].dtype == after[name].dtype == old.dtype
        assert came[name].shape == after[name].shape == old.shape
        if old.dtype.kind == "i":
            _same(came[name], old)
            _same(after[name], old)
            continue
        wide = old.astype(np.float64)
        tolerance = {"plain": 0, "bfloat16": 2**-8, "float16": 2**-11, "int8": 0.02}[push]
        assert (np.abs(came[name].astype(np.float64) - wide) <= tolerance * np.abs(wide).max(initial=0)).all()
        # the change, not the params that had travelled, is what counts
        exact = (wide + _change(wide.size).reshape(wide.shape)).astype(
            np.float32 if old.dtype.itemsize < 8 else np.float64
        )
        slack = 1e-6 if old.dtype.itemsize >= 4 else 0.05
        np.testing.assert_allclose(after[name].astype(np.float64), exact, atol=0.125 / 127 + slack)
    sent = tmp_path / "worker" / wire.sent(params.name, given, pushed=True)
    if push == "int8":
        assert sent.stat().st_size < 0.27 * params.stat().st_size


def test_the_same_round_twice_is_the_same_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    given = Wire(pull="int8")
    seen = []
    for number in (3, 4, 4, 5):
        _there_and_back(tmp_path, "npz", given, number)
        seen.append((tmp_path / "worker" / f"weights-{number:04}.npz.wire").read_bytes())
    assert seen[1] == seen[2]
    assert seen[0] != seen[1], "what round 3 lost is in round 4"
    kept = sorted(path.name for path in (tmp_path / "worker").glob("wire-lost-*"))
    assert kept == ["wire-lost-0004.npz", "wire-lost-0005.npz"]


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40), st.sampled_from(["int8", "bfloat16"]))
def test_what_is_lost_comes_later(changes: list[float], how: str):
    """The sum of what arrives is the sum of the changes, but for what the last round lost."""
    lost = arrived = np.zeros(2, np.float32)
    other = np.float32(3.0)  # makes the scale
    for change in changes:
        total = np.array([change, other], np.float32) + lost
        got = far.decode(*far.encode(total, how, 32), how, 32)
        lost, arrived = total - got, arrived + got
    assert abs(arrived[0] - np.sum(np.float32(changes))) <= 0.02 + 1e-4 * len(changes)


# -- whole runs


def job(folder: Path, script: str = STEP, fault: str = "pass", **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script.replace("{fault}", fault))
    np.savez(folder / "params.npz", w=np.zeros((40, 50), np.float32), steps=np.arange(3))
    train = {
        "command": ["{python}", "train.py"],
        "files": ["train.py", "{rounds}"],
        **changes.pop("train", {}),
    }
    return write_job(folder, **{"params": {"file": "params.npz"}, "train": train, **changes})


def _weights(run: Run) -> np.ndarray:
    return np.load(run.params)["w"]


def test_a_run_with_all_of_it(tmp_path: Path):
    plain = start(job(tmp_path / "a"))
    small = start(job(tmp_path / "b", wire={"push": "bfloat16", "pull": "int8", "zstd": 3}))
    again = start(job(tmp_path / "c", wire={"push": "bfloat16", "pull": "int8", "zstd": 3}))
    assert small.params.read_bytes() == again.params.read_bytes()
    np.testing.assert_allclose(_weights(small), _weights(plain), atol=0.1)
    _same(np.load(small.params)["steps"], np.arange(3))
    for kind in ("push", "pull"):
        mine = [e for e in small.kind(kind) if e["path"].endswith(".wire")]
        assert len(mine) == 4
        assert all(e["size_bytes"] < 0.6 * e["plain_bytes"] for e in mine)
        assert {e["plain_bytes"] for e in mine} == {small.params.stat().st_size}
        assert {e["plain_bytes"] for e in plain.kind(kind)} == {None}
    assert all(e["encode_s"] > 0 for e in small.kind("round_end"))
    assert all(e["encode_s"] is None for e in plain.kind("round_end"))
    assert "roundlog_wire.py" in small.kind("exec_start")[0]["command"]
    assert " for " in small.err
    folder = small.log.with_suffix("")
    assert not list(folder.glob("**/*.part"))
    assert not list(folder.glob("*.wire")), "what was made to be pushed is gone"
    assert not list((folder / "incoming").iterdir())


def test_a_command_that_stays(tmp_path: Path):
    run = start(
        job(
            tmp_path,
            STAYS,
            rounds=3,
            train={"resident": True},
            wire={"push": "int8", "pull": "int8"},
        )
    )
    np.testing.assert_allclose(_weights(run), 3, atol=0.03)
    assert [e["values"] for e in run.kind("metric", rank=1)] == [{"loss": 0.5}] * 3
    left = {path.name for path in (run.log.with_suffix("") / "workers" / "0").iterdir()}
    assert {name for name in left if "0000" in name or "0001" in name} == {"wire-lost-0001.npz"}


BAD = [
    ("params['w'] = params['w'] * np.float32('nan')", "nonfinite", "array 'w' has nan"),
    ("params['w'] = params['w'][:1]", "shape", "array 'w' has shape"),
    ("params['w'] = params['w'].astype(np.float64)", "dtype", "array 'w' has dtype float64"),
    ("del params['steps']", "missing", "array 'steps' is missing"),
    ("params['more'] = params['w']", "unexpected", "array 'more'"),
]


def test_bad_weights_are_told_as_they_are(tmp_path: Path):
    """The last worker is honest, each of the others bad in a way of its own."""
    faults = [*(fault for fault, _, _ in BAD), "pass"]
    run = start(
        job(
            tmp_path,
            fault=f"exec({faults}[rank]); break",
            rounds=1,
            workers=len(faults),
            policy={"quorum": 1},
            wire={"pull": "int8"},
        )
    )
    for rank, (_, reason, detail) in enumerate(BAD):
        event = run.one("reject", rank=rank)
        assert event["reason"] == reason
        assert detail in event["detail"]
    assert run.one("aggregate")["ranks"] == [len(BAD)]


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9)])
def test_how_the_command_ends_is_how_it_ended(tmp_path: Path, ends: str, code: int):
    path = job(tmp_path, fault=f"import sys, signal; {ends}", rounds=1, workers=1, wire={"pull": "int8"})
    run = start(path, code=1)
    assert {e["exit_code"] for e in run.kind("exec")} == {code}


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("os._exit(4)", 4, "exit code 4"),
        ("raise ValueError('bad thing')", 1, "ValueError: bad thing"),
        ("os.write(1, b'\\nroundlog:nonsense\\n'); time.sleep(600)", None, "answered 'nonsense'"),
    ],
)
def test_how_a_command_that_stays_ends_is_how_it_ended(tmp_path: Path, fault: str, code: int, said: str):
    script = STAYS.replace("for r in", f"import os, time\nfor r in rounds():\n    {fault}\nfor r in", 1)
    path = job(tmp_path, script, rounds=1, workers=1, train={"resident": True}, wire={"pull": "int8"})
    run = start(path, code=1)
    for event in run.kind("exec"):
        assert event["exit_code"] == code
        assert said in f"{event['output_tail']} {event['error']}"


def test_a_worker_without_numpy_says_so(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-I", "-S", WIRE, "true"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.startswith("roundlog_wire: [wire] needs NumPy on the worker")


def test_another_python_may_be_named():
    given = Wire(pull="int8", python="/opt/python")
    assert wire.wrapped(("train", "x"), given) == ("/opt/python", WIRE.name, "train", "x")
    assert wire.wrapped("train x", given) == ("/opt/python", WIRE.name, "/bin/sh", "-c", "train x")
    assert wire.wrapped("train x", Wire(python="/opt/python")) == "train x"


def test_what_a_job_may_not_say(tmp_path: Path):
    path = job(tmp_path, wire={"push": "int4", "block": 100, "zstd": 30}, train={"files": ["train.py"]})
    said = runner("check", path, code=2).stderr
    for key in ("wire.push", "wire.block", "wire.zstd"):
        assert key in said
    assert "params travel as bfloat16" in runner("check", job(tmp_path, wire={"push": "bfloat16"})).stdout
    np.savez(tmp_path / "params.npz", w=np.zeros(3, np.complex128))
    path = write_job(tmp_path, params={"file": "params.npz"}, wire={"pull": "int8"})
    assert "complex128, which [wire] can't send" in start(path, code=1).err


# -- files that lie


def _lie(folder: Path, rows: Any, arrays: dict[str, np.ndarray]) -> Path:
    metadata = {far.KEY: rows if isinstance(rows, str) else json.dumps({"change": True, "arrays": rows})}
    save_file(arrays, folder / "lie.wire", metadata=metadata)
    return folder / "lie.wire"


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("{", "unreadable"),
        ('{"arrays": 3}', "unreadable"),
        ("[" * 100_000, "unreadable"),
        ([["w", "float32"]], "unreadable"),
        ([["w", "float32", [4], "int8"]] * 2, "unreadable"),
        ([["v", "float32", [4], "int8"]], "unexpected"),
        ([[["w"], "float32", [4], "int8"]], "unreadable"),
        ([["w", "float64", [4], "int8"]], "dtype"),
        ([["w", "float32", [2, 2], "int8"]], "shape"),
        ([["w", "float32", [4], "bfloat16"]], "unreadable"),
        ([["w", "float32", [4], "plain"]], "unreadable"),
        ([["w", "float32", [4], ["int8"]]], "unreadable"),
        ([["w", "float32", [4], "pickle"]], "unreadable"),
        ([["n", "int64", [4], "plain"], ["w", "float32", [4], "int8"]], "unreadable"),
        ([["n", "int64", [4], "int8"]], "unreadable"),
    ],
    ids=lambda rows: str(rows)[:40],
)
def test_a_file_that_lies_is_refused(tmp_path: Path, rows: Any, reason: str):
    np.savez(tmp_path / "made.npz", w=np.ones(4, np.float32), n=np.arange(4))
    adopt(tmp_path / "made.npz", tmp_path / "params.npz")
    lie = _lie(tmp_path, rows, {"0": np.ones(4, np.int8)})
    with pytest.raises(ArrayError) as caught:
        wire.decode_weights(lie, tmp_path / "out.npz", tmp_path / "params.npz", Wire(pull="int8"), _go_on)
    assert caught.value.reason == reason
    assert not (tmp_path / "out.npz").exists()


def test_a_bomb_is_defused(tmp_path: Path):
    np.savez(tmp_path / "made.npz", w=np.ones(4, np.float32))
    adopt(tmp_path / "made.npz", tmp_path / "params.npz")
    (tmp_path / "zeros").write_bytes(bytes(50_000_000))
    far.compress(tmp_path / "zeros", tmp_path / "bomb.wire", 1)
    for lie in (tmp_path / "bomb.wire", tmp_path / "torn.wire"):
        if not lie.exists():
            lie.write_bytes(far.ZSTD_MAGIC + b"nonsense")
        with pytest.raises(ArrayError, match="decompressed"):
            wire.decode_weights(lie, tmp_path / "out.npz", tmp_path / "params.npz", Wire(zstd=1), _go_on)
    assert not list(tmp_path.glob(".*.part"))


def test_a_file_on_the_wire_is_one_that_others_read(tmp_path: Path):
    made = _params(tmp_path, "npz")
    wire.encode_params(made, tmp_path / "sent.safetensors", Wire(push="int8"), _go_on)
    found = load_file(tmp_path / "sent.safetensors")
    assert found["0"].dtype == np.int8
    assert found["0.scale"].shape == (-(-140_000 // 256),)
