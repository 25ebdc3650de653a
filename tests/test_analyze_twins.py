"""One log under several names counts once; a bomb is told; a line of a pipe is explained."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import logs
import pyarrow as pa
import pytest

from analyze import glance, kept, source
from analyze.database import opened

ROOT = Path(__file__).parents[1]


def zstd(text: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("few", [1, 100])
def test_a_log_its_copy_and_what_is_packed_of_it_count_once(analyze, tmp_path, demo, monkeypatch, few):
    monkeypatch.setattr(kept, "FEWEST_LOGS", few)
    monkeypatch.setattr(glance, "_FEWEST", few)
    text = demo.read_bytes()
    names = ["y.jsonl", "z.jsonl.gz", "z.jsonl.zst"]
    for name, packed in zip(names, (text, gzip.compress(text), zstd(text)), strict=True):
        (tmp_path / name).write_bytes(packed)
    (tmp_path / "zz.jsonl").write_bytes(text[:-1] + b" ")
    count = "SELECT count(*) AS n FROM runs"
    for _ in range(2):
        code, out, err = analyze("sql", count, "--format", "csv", demo, *names)
        assert (code, out) == (0, "n\n1\n")
        assert err.splitlines() == [
            f"warning: {name} says the same as {demo}: they count once" for name in names
        ]
    for choice in ([demo, *names], names, [names[1], demo]):
        code, out, err = analyze("runs", *choice)
        assert (code, out.count("digits"), len(err.splitlines())) == (0, 1, len(choice) - 1)
    # One that differs in a byte is another.
    assert analyze("sql", count, "--format", "csv", demo, "zz.jsonl")[1] == "n\n2\n"


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_file_that_unpacks_beyond_measure_is_told_in_one_sentence(analyze, tmp_path, monkeypatch, pack):
    monkeypatch.setattr(source, "UNPACKED_BYTES", 1 << 20)
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(pack(bytes(8 << 20)))
    code, out, err = analyze("summary", path)
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == (
        f"error: {path}: it unpacks to more than 200 times its size, as no log does"
    )
    good = logs.demo().write(tmp_path)
    assert analyze("sql", "SELECT count(*) FROM runs", good, path)[0] == 3


def test_a_line_of_a_packed_log_is_explained(analyze, tmp_path, demo):
    for name, pack in (("x.gz", gzip.compress), ("x.zst", zstd)):
        (tmp_path / name).write_bytes(pack(demo.read_bytes()))
        want = analyze("explain", f"{demo}:7")[1]
        assert analyze("explain", f"{name}:7")[1] == want.replace(str(demo), name)


def test_a_line_of_stdin_and_of_a_pipe_is_explained(tmp_path, demo):
    script = f"gzip < '{demo}' | '{sys.executable}' -m analyze.cli explain -:7"
    pipe = f"'{sys.executable}' -m analyze.cli explain <(cat '{demo}'):7"
    for command in (script, pipe):
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, timeout=60, check=False, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        raw = demo.read_bytes().splitlines()[6].decode()
        assert f"  raw      {raw}\n" in done.stdout
        assert "became   an event" in done.stdout


def test_stdin_named_twice_counts_once(demo, monkeypatch):
    with demo.open("rb") as file:

        class Stdin:
            buffer = file

        monkeypatch.setattr(sys, "stdin", Stdin)
        for _ in range(2):
            with opened([source.STDIN, source.STDIN]) as database:
                assert len(database.logs) == 1
