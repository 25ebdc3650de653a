"""The .safetensors format: as its own library writes and reads it, and whatever else comes refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import deserialize, safe_open
from safetensors.numpy import load_file, save_file

from runner.aggregate import Contribution, aggregate
from runner.arrays import ArrayFile
from runner.errors import ArrayError
from runner.safetensors import DTYPES, dtype_of
from runner.tiles import Plain
from runner.weights import adopt, check_weights

RNG = np.random.default_rng(2)
PLAIN = {
    "w": RNG.normal(size=(3, 4)).astype(np.float32),
    "h": RNG.normal(size=5).astype(np.float16),
    "d": RNG.normal(size=(2, 1)),
    "n": np.array(7, np.int64),
    "f": np.array([True, False]),
    "e": np.zeros((0, 3), np.float32),
}


def raw(header: Any, data: bytes = b"", *, text: bytes | None = None) -> bytes:
    text = json.dumps(header).encode() if text is None else text
    return len(text).to_bytes(8, "little") + text + data


def whole(path: Path) -> dict[str, np.ndarray]:
    with ArrayFile(path) as file:
        assert file.plain
        assert file.format == "safetensors"
        return {
            name: np.concatenate([*file.blocks(name), np.empty(0, spec.dtype)]).reshape(spec.shape)
            for name, spec in file.specs.items()
        }


def test_as_its_own_library_writes_it(tmp_path: Path):
    save_file(PLAIN, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = whole(tmp_path / "x.safetensors")
    assert set(found) == set(PLAIN)
    for name, array in PLAIN.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_what_is_written_its_own_library_reads(tmp_path: Path):
    save_file(PLAIN, tmp_path / "x.safetensors", metadata={"format": "pt"})
    adopt(tmp_path / "x.safetensors", tmp_path / "new.safetensors")
    again = load_file(tmp_path / "new.safetensors")
    assert set(again) == set(PLAIN)
    for name, array in PLAIN.items():
        np.testing.assert_array_equal(again[name], array)
    with safe_open(tmp_path / "new.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("name", [name for name in DTYPES if dtype_of(name).kind in "fcV"])
def test_every_dtype_is_averaged_and_handed_back(tmp_path: Path, name: str):
    dtype = dtype_of(name)
    arrays = [np.array([1.0, -2.0, 0.5, 3.0]).astype(dtype), np.array([3.0, -4.0, 1.5, 5.0]).astype(dtype)]
    header = {"x": {"dtype": name, "shape": [2, 2], "data_offsets": [0, arrays[0].nbytes]}}
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for path, array in zip(paths, [arrays[0], *arrays], strict=True):
        path.write_bytes(raw(header, array.tobytes()))
    given_ = [
        Contribution(rank, check_weights(path, paths[0]).file, 1.0) for rank, path in enumerate(paths[1:])
    ]
    aggregate(paths[0], given_, tmp_path / "new.safetensors")
    ((_, told),) = deserialize((tmp_path / "new.safetensors").read_bytes())
    assert (told["dtype"], told["shape"]) == (name, [2, 2])
    new = np.frombuffer(bytes(told["data"]), dtype).astype(complex)
    np.testing.assert_array_equal(new, [2.0, -3.0, 1.0, 4.0])


def test_half_precision_is_rounded_once(tmp_path: Path):
    """Adding 2,000 small numbers in bfloat16 itself would stop at 256 of them."""
    one = np.array([1.0], ml_dtypes.bfloat16)
    header = {"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    (tmp_path / "w.safetensors").write_bytes(raw(header, one.tobytes()))
    given_ = [Contribution(rank, Plain.of(tmp_path / "w.safetensors"), 1.0) for rank in range(2000)]
    aggregate(tmp_path / "w.safetensors", given_, tmp_path / "new.safetensors")
    assert whole(tmp_path / "new.safetensors")["x"] == 1


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
EVIL = {
    "a header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "no JSON": raw(None, text=b"{nonsense}"),
    "not UTF-8": raw(None, text=b'{"\xff": 1}'),
    "deep": raw(None, text=b'{"a":' + b"[" * 100_000),
    "a name twice": raw(None, bytes(8), text=b'{"a":%b,"a":%b}' % ((json.dumps(ENTRY).encode(),) * 2)),
    "an entry of text": raw({"a": "b"}),
    "an entry with more": raw({"a": {**ENTRY, "more": 1}}, bytes(8)),
    "metadata of numbers": raw({"__metadata__": {"a": 1}, "a": ENTRY}, bytes(8)),
    "negative shape": raw({"a": {**ENTRY, "shape": [-2]}}, bytes(8)),
    "a shape of truths": raw({"a": {**ENTRY, "shape": [True, 2]}}, bytes(8)),
    "a huge shape": raw({"a": {**ENTRY, "shape": [1 << 62, 1 << 62]}}, bytes(8)),
    "three offsets": raw({"a": {**ENTRY, "data_offsets": [0, 8, 8]}}, bytes(8)),
    "offsets turned round": raw({"a": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8)),
    "a gap": raw({"a": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)),
    "an overlap": raw({"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)),
    "data behind": raw({"a": ENTRY}, bytes(9)),
    "data missing": raw({"a": ENTRY}, bytes(7)),
    "an unknown dtype": raw({"a": {**ENTRY, "dtype": "F4"}}, bytes(8)),
    "a dtype that is a list": raw({"a": {**ENTRY, "dtype": []}}, bytes(8)),
}


@pytest.mark.parametrize("what", EVIL)
def test_a_broken_or_evil_file_is_refused(tmp_path: Path, what: str):
    (tmp_path / "x").write_bytes(EVIL[what])
    with pytest.raises(ArrayError) as caught:
        ArrayFile(tmp_path / "x")
    assert caught.value.reason in {"unreadable", "dtype"}
    assert len(str(caught.value).splitlines()) == 1


def test_cut_off_at_any_byte(tmp_path: Path):
    save_file(PLAIN, tmp_path / "good")
    data = (tmp_path / "good").read_bytes()
    for length in range(len(data)):
        (tmp_path / "x").write_bytes(data[:length])
        with pytest.raises(ArrayError):
            ArrayFile(tmp_path / "x")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changed_at_any_byte(tmp_path: Path, data: st.DataObject):
    """Either it is refused, or it is still a file of arrays."""
    save_file(PLAIN, tmp_path / "x")
    changed = bytearray((tmp_path / "x").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "x").write_bytes(changed)
    with suppress(ArrayError):
        whole(tmp_path / "x")
