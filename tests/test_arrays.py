"""Files of arrays: what goes in comes out, and no file, however broken or evil, does more than be refused."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runner.arrays import BLOCK, SINGLE, ArrayFile, sha256_of
from runner.arraywriter import ArrayWriter
from runner.errors import ArrayError
from runner.weights import adopt, check_weights

F32 = np.arange(12, dtype=np.float32).reshape(3, 4)
KINDS = {
    "float16": np.arange(5, dtype=np.float16),
    "float64": np.linspace(0, 1, 7),
    "longdouble": np.arange(3, dtype=np.longdouble),
    "complex64": np.array([[1 + 2j, 3 - 1j]], np.complex64),
    "int8": np.array([-128, 127], np.int8),
    "uint64": np.array([0, 2**64 - 1], np.uint64),
    "bool": np.array([True, False, True]),
    "0-d": np.float32(3.5),
    "empty": np.zeros((0,), np.float32),
    "empty 2-d": np.zeros((3, 0, 2), np.float64),
    "Fortran": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "big-endian": np.arange(6, dtype=">f4").reshape(2, 3),
    "big-endian Fortran": np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
    "several blocks": np.random.default_rng(0).normal(size=(3, BLOCK)).astype(np.float32),
    "several blocks Fortran": np.asfortranarray(np.arange(2 * BLOCK + 2).reshape(2, BLOCK + 1)),
    "strided": np.arange(20, dtype=np.int32)[::3],
    "many dimensions": np.ones((1,) * 30 + (2,), np.float32),
}


def whole(path: Path) -> dict[str, np.ndarray]:
    """Read all of a file the way the runner does."""
    with ArrayFile(path) as file:
        return {
            name: np.frombuffer(b"".join(block.tobytes() for block in file.blocks(name)), spec.dtype).reshape(
                spec.shape
            )
            for name, spec in file.specs.items()
        }


def same(one: np.ndarray, two: np.ndarray) -> None:
    assert one.dtype == two.dtype
    assert one.shape == two.shape
    assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_comes_out_as_it_went_in(tmp_path: Path, save):
    path = tmp_path / "x.npz"
    save(path, **KINDS)
    found = whole(path)
    assert list(found) == list(KINDS)
    for name, array in KINDS.items():
        same(found[name], np.asarray(array))


@pytest.mark.parametrize("what", KINDS)
def test_npy_comes_out_as_it_went_in(tmp_path: Path, what: str):
    np.save(tmp_path / "x.npy", KINDS[what])
    found = whole(tmp_path / "x.npy")
    assert list(found) == [SINGLE]
    same(found[SINGLE], np.asarray(KINDS[what]))


@pytest.mark.parametrize("form", ["npz", "npy"])
@pytest.mark.parametrize("what", KINDS)
def test_what_is_written_can_be_read_by_numpy(tmp_path: Path, what: str, form: str):
    source, target, again = (tmp_path / f"{name}.{form}" for name in ("source", "target", "again"))
    array = np.asarray(KINDS[what])
    np.save(source, array) if form == "npy" else np.savez(source, x=array, y=F32)
    if form == "npy" and not array.size:
        with pytest.raises(ArrayError, match="no numbers"):
            adopt(source, target)
        assert list(tmp_path.iterdir()) == [source]
        return
    sha256, _ = adopt(source, target)
    assert sha256 == hashlib.sha256(target.read_bytes()).hexdigest() == sha256_of(target)
    assert adopt(source, again)[0] == sha256, "the same arrays give the same bytes"
    found = np.load(target)
    same(found if form == "npy" else found["x"], array)


def header(
    descr: object, shape: object, *, fortran: object = False, version: tuple[int, int] = (1, 0)
) -> bytes:
    text = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text


def raw_header(text: bytes, version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text


def zipped(entries: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that come twice
        for name, data in entries:
            archive.writestr(name, data)
    return stream.getvalue()


DATA = F32.tobytes()
GOOD = header("<f4", (3, 4)) + DATA
EVIL = {
    "empty": b"",
    "text": b"not an array",
    "npy magic alone": b"\x93NUMPY",
    "unknown version": b"\x93NUMPY\x09\x00" + GOOD[8:],
    "zip magic alone": b"PK\3\4",
    "empty zip": zipped([]),
    "more data": GOOD + b"\0",
    "less data": GOOD[:-1],
    "larger shape": header("<f4", (4, 4)) + DATA,
    "smaller shape": header("<f4", (2, 4)) + DATA,
    "huge shape": header("<f4", (1 << 60, 1 << 60)) + DATA,
    "negative shape": header("<f4", (-3, -4)) + DATA,
    "shape of text": header("<f4", ("3", 4)) + DATA,
    "shape is a number": header("<f4", 12) + DATA,
    "descr is nothing": header("", (3, 4)) + DATA,
    "descr is an odd tuple": header((), (3, 4)) + DATA,
    "descr is an odd nested tuple": header(((),), (3, 4)) + DATA,
    "descr is a dict": header({"names": 1}, (3, 4)) + DATA,
    "descr is an empty list": header([], (3, 4)) + DATA,
    "descr of odd entries": header([(1, 2), 3], (3, 4)) + DATA,
    "records": header([("a", "<f4")], (12,)) + DATA,
    "sub-array": header([("a", "<f4", (12,))], (1,)) + DATA,
    "text dtype": header("<U4", (3,)) + DATA,
    "nothing dtype": header("V0", (3,)),
    "dates": header("<M8[s]", (6,)) + DATA,
    "objects": header("|O", (12,)) + DATA,
    "open bracket": raw_header(b"{'descr': '<f4', 'shape': ((((\n") + DATA,
    "open string": raw_header(b"{'descr': '''\n") + DATA,
    "odd indent": raw_header(b"  {\n 1\n") + DATA,
    "Python 2": raw_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L)}\n") + DATA,
    "NUL": raw_header(b"{'descr': '\0'}\n") + DATA,
    "unhashable": raw_header(b"{[]: 1}\n") + DATA,
    "mixed keys": raw_header(b"{1: 1, 'a': 2}\n") + DATA,
    "code": raw_header(b"__import__('os').mkdir('boom')\n") + DATA,
    "deep": raw_header(b"(" * 9000 + b")" * 9000 + b"\n") + DATA,
    "deep minus": raw_header(b"-" * 9000 + b"1\n") + DATA,
    "long header": raw_header(b"{" + b" " * 60000 + b"\n") + DATA,
    "not ASCII": raw_header(b"\xff\xfe{}\n") + DATA,
    "no dict": raw_header(b"[]\n") + DATA,
    "an entry twice": zipped([("a.npy", GOOD), ("a.npy", GOOD)]),
    "an entry of something else": zipped([("a.npy", GOOD), ("readme.txt", b"hello")]),
    "a folder": zipped([("a.npy", GOOD), ("d/", b"")]),
    "a pickle": zipped([("a.pkl", pickle.dumps({}))]),
    "an entry that is cut": zipped([("a.npy", GOOD[:-4])]),
    "an entry too long": zipped([("a.npy", GOOD + b"1")]),
    "an entry of nothing": zipped([("a.npy", b"")]),
    "lzma that is none": b"",
    "bzip2 that is none": b"",
}


def broken(method: int) -> bytes:
    """Return a zip whose compressed data are overwritten."""
    data = bytearray(zipped([("a.npy", GOOD + bytes(500))], method))
    start = 30 + len("a.npy") + 4
    data[start : start + 40] = b"\xff" * 40
    return bytes(data)


EVIL["lzma that is none"] = broken(zipfile.ZIP_LZMA)
EVIL["bzip2 that is none"] = broken(zipfile.ZIP_BZIP2)
EVIL["deflate that is none"] = broken(zipfile.ZIP_DEFLATED)


def refused(path: Path, data: bytes) -> ArrayError:
    path.write_bytes(data)
    with pytest.raises(ArrayError) as caught:
        whole(path)
    return caught.value


@pytest.mark.parametrize("what", EVIL)
def test_a_broken_or_evil_file_is_refused(tmp_path: Path, what: str, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = refused(tmp_path / "x", EVIL[what])
    assert error.reason in {"unreadable", "dtype"}
    assert len(str(error).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (os.fspath(self.path),)


@pytest.mark.parametrize("form", ["npy", "npz", "pickle", "npz compressed"])
def test_nothing_is_ever_unpickled(tmp_path: Path, form: str):
    path, boom = tmp_path / "x.npz", tmp_path / "boom"
    bomb = np.array([Bomb(boom)], dtype=object)
    with path.open("wb") as file:
        match form:
            case "npy":
                np.save(file, bomb)
            case "npz":
                np.savez(file, a=F32, b=bomb)
            case "npz compressed":
                np.savez_compressed(file, b=bomb)
            case "pickle":
                pickle.dump(Bomb(boom), file)
    with pytest.raises(ArrayError):
        whole(path)
    assert not boom.exists()


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_cut_off_at_any_byte(tmp_path: Path, save):
    stream = io.BytesIO()
    save(stream, F32)
    data = stream.getvalue()
    for length in range(len(data)):
        refused(tmp_path / "x", data[:length])


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changed_at_any_byte(tmp_path: Path, save, data: st.DataObject):
    """Either it is refused, or it is still a file of arrays."""
    stream = io.BytesIO()
    save(stream, F32)
    changed = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "x").write_bytes(changed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(ArrayError):
            whole(tmp_path / "x")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"PK\3\4", b"\x93NUMPY\1\0\x40\0", b"\x93NUMPY\2\0\x40\0\0\0"]),
)
def test_any_bytes(tmp_path: Path, rest: bytes, start: bytes):
    (tmp_path / "x").write_bytes(start + rest)
    with pytest.raises(ArrayError):
        whole(tmp_path / "x")


def test_bombs_are_not_blown_up(tmp_path: Path):
    """A gigabyte of zeros in a megabyte: told by its header, or cut at what its entry says."""
    zeros = header("<f4", (1 << 25,)) + bytes(1 << 27)
    honest = zipped([("array.npy", zeros)], zipfile.ZIP_DEFLATED)
    small = bytearray(honest)
    at = small.rindex(b"PK\1\2") + 24
    small[at : at + 4] = struct.pack("<I", len(GOOD))
    np.savez(tmp_path / "good.npz", array=F32)
    tracemalloc.start()
    for data in (honest, bytes(small)):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(ArrayError):
            check_weights(tmp_path / "x", tmp_path / "good.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("what", ["zip", "safetensors"])
def test_what_a_file_says_of_its_arrays_is_not_read_without_bounds(tmp_path: Path, what: str):
    path = tmp_path / "file"
    if what == "zip":
        entry = b"PK\1\2" + bytes(24) + b"\xff\xff" + bytes(16) + b"x" * 65_535
        entries = b"PK\3\4" + entry * 300
        size = len(entries) - 4
        end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 300, 300, size, 4, 0)
        path.write_bytes(entries + end)
    else:
        path.write_bytes((20_000_000).to_bytes(8, "little") + b'{"a":[' + b"[]," * 7_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ArrayError, match=r"a (directory|header) of \d+ bytes"):
            ArrayFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_is_no_file(tmp_path: Path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ArrayError, match="can't be read"):
            ArrayFile(path)


@pytest.mark.parametrize("form", ["npz", "npy", "safetensors"])
def test_a_writer_that_does_not_commit_leaves_nothing(tmp_path: Path, form: str):
    target = tmp_path / f"x.{form}"
    target.write_bytes(b"old")
    np.save(tmp_path / "source.npy", F32)
    with ArrayFile(tmp_path / "source.npy") as file:
        for error in (None, KeyError):
            with suppress(KeyError), ArrayWriter(target, form, file.specs) as writer:
                with writer.array(file.specs[SINGLE]) as put:
                    put(next(file.blocks(SINGLE)))
                if error is not None:
                    raise error
    assert target.read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {target.name, "source.npy"}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hnp.arrays(
        st.sampled_from(["<f4", ">f8", "<i4", "?", "<c8", "<f2"]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0),
    )
)
def test_any_array_comes_out_as_it_went_in(tmp_path: Path, array: np.ndarray):
    np.savez(tmp_path / "x.npz", c=array, f=np.array(array, order="F"))
    found = whole(tmp_path / "x.npz")
    same(found["c"], array)
    same(found["f"], array)
