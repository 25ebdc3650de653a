"""What may be named as a log, how a line is explained, what `analyze sql` takes; real files and pipes."""

from __future__ import annotations

import gzip
import json
import os
import random
import runpy
import subprocess
import sys
from pathlib import Path

import logs
import pyarrow as pa
import pytest

from analyze import database
from analyze.database import opened

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[1]


def counts(path: Path):
    with opened([path]) as loaded:
        return loaded.rows("SELECT lines, events, rejects, missing, shuffled, cut FROM logs")


def zstd(text: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_compressed_log_is_told_by_its_content(tmp_path, demo, pack):
    path = tmp_path / "packed.jsonl"
    path.write_bytes(pack(demo.read_bytes()))
    assert counts(path) == counts(demo)


def test_gzip_in_several_members_is_one_log(tmp_path, demo):
    text = demo.read_bytes()
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(text[:5000]) + gzip.compress(text[5000:]) + b"\0" * 100)
    assert counts(path) == counts(demo)


def test_a_compressed_log_that_is_cut_off_gives_what_can_be_had(analyze, tmp_path, demo):
    packed = gzip.compress(demo.read_bytes())
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    (row,) = counts(path)
    assert row["events"] > 50
    assert row["cut"].startswith("the compressed file is cut off: ")
    code, out, _ = analyze("summary", path)
    assert code == 3
    assert "compressed file is cut off" in " ".join(out.split())


def test_a_pipe_and_stdin_are_logs(demo):
    query = "SELECT count(*) AS n FROM events"
    for packed in (demo.read_bytes(), gzip.compress(demo.read_bytes())):
        done = subprocess.run(
            [sys.executable, "-m", "analyze.cli", "sql", query, "-", "--format", "csv"],
            input=packed, capture_output=True, timeout=60, check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.stdout == f"n\n{len(logs.demo().lines())}\n".encode()


def test_a_pattern_a_folder_and_a_hard_link_name_each_log_once(analyze, tmp_path, demo):
    (tmp_path / "again.jsonl").hardlink_to(demo)
    (tmp_path / "other.jsonl.gz").write_bytes(gzip.compress((DATA / "v0.jsonl").read_bytes()))
    for names in (["*.jsonl*"], [tmp_path], [demo, "again.jsonl", "*.gz"]):
        code, out, _ = analyze("sql", "SELECT count(*) AS n FROM runs", *names, "--format", "csv")
        assert (code, out) == (0, "n\n2\n")
    code, _, err = analyze("runs", "no*.jsonl")
    assert code == 1
    assert "no*.jsonl" in err


@pytest.mark.parametrize("arrange", [sorted, lambda lines: random.Random(1).sample(lines, len(lines))])
def test_a_sorted_or_shuffled_log_says_what_the_log_said(analyze, tmp_path, demo, arrange):
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"\n".join(arrange(demo.read_bytes().splitlines())) + b"\n")
    (row,) = counts(path)
    assert (row["rejects"], row["missing"], row["events"]) == (0, 0, row["lines"])
    assert row["shuffled"] * 10 >= row["lines"]
    query = "SELECT * EXCLUDE (file) FROM rounds JOIN runs USING (run_no) ORDER BY nth"
    _, want, _ = analyze("sql", query, demo)
    code, got, _ = analyze("sql", query, path)
    assert (code, got) == (3, want)
    assert "sorted or shuffled" in analyze("summary", path)[1]


def test_two_logs_in_one_file_are_two_runs_and_one_log_twice_is_one(tmp_path, demo):
    other = (DATA / "v0-same-run-in-v1.jsonl").read_bytes()
    path = tmp_path / "both.jsonl"
    path.write_bytes(demo.read_bytes() + other)
    with opened([path]) as loaded:
        assert [r["rounds_done"] for r in loaded.rows("SELECT * FROM runs")] == [8, 8]
    path.write_bytes(demo.read_bytes() * 2)
    with opened([path]) as loaded:
        assert [r["rounds_done"] for r in loaded.rows("SELECT * FROM runs")] == [8]
        (row,) = loaded.rows("SELECT DISTINCT reason, count(*) AS n FROM rejects GROUP BY ALL")
        assert row == {"reason": "repeated seq", "n": len(logs.demo().lines())}


def test_explain_shows_an_old_line_each_step_and_what_it_became(analyze):
    code, out, _ = analyze("explain", f"{DATA / 'v0.jsonl'}:3")
    assert code == 0
    told = out.splitlines()
    assert told[1].startswith('  raw      {"time": ')
    assert json.loads(told[2].removeprefix("  as v1     "))["kind"] == "push"
    assert "    kind = push" in told


def test_explain_says_why_a_line_is_no_event_and_hides_nothing_in_it(analyze, demo):
    bad = '{"v":1,"kind":"\x1b[31m\u202e<script>"}'.encode()
    demo.write_bytes(demo.read_bytes() + bad + b"\n")
    number = demo.read_bytes().count(b"\n")
    code, out, _ = analyze("explain", f"{demo}:{number}")
    assert code == 3
    assert "\\x1b[31m\\u202e<script>" in out
    assert not set(out) & {"\x1b", "\u202e"}
    assert "  rejected not JSON: " in out


@pytest.mark.parametrize("place", ["x.jsonl", "x.jsonl:0", "x.jsonl:-1", ":3"])
def test_explain_without_a_line_is_wrong_usage(analyze, place):
    assert analyze("explain", place)[0] == 2


def test_explain_of_a_line_that_is_not_there_is_wrong_usage(analyze, demo):
    code, _, err = analyze("explain", f"{demo}:99999")
    assert code == 2
    assert "lines" in err


def test_sql_takes_a_file_and_parameters(analyze, tmp_path, demo):
    script = tmp_path / "q.sql"
    script.write_text("SELECT $what AS what, count(*) AS n FROM rounds WHERE round >= $from::INT")
    hostile = "'; DROP TABLE store.runs; --"
    code, out, _ = analyze(
        "sql", "-f", script, demo, "-p", f"what={hostile}", "-p", "from=6", "--format", "jsonl"
    )
    assert code == 0
    assert json.loads(out) == {"what": hostile, "n": 2}
    assert analyze("sql", "SELECT 1", demo, "-p", "nothing")[0] == 2


def test_sql_writes_markdown_that_breaks_out_of_no_cell(analyze, demo):
    _, out, _ = analyze("sql", "SELECT 'a|b' AS x, '<b>' AS y", demo, "--format", "markdown")
    assert out == "| x | y |\n| --- | --- |\n| a\\|b | &lt;b> |\n"


def test_sql_reaches_files_only_where_it_is_asked_to(analyze, tmp_path, demo):
    (tmp_path / "hosts.csv").write_text("host,price\na,3\n")
    query = "SELECT price FROM 'hosts.csv'"
    assert analyze("sql", query, demo)[0] == 2
    assert analyze("sql", query, demo, "--unsafe", "--format", "csv")[:2] == (0, "price\n3\n")


def test_the_page_of_the_views_is_what_the_database_says():
    made = runpy.run_path(str(ROOT / "docs" / "make_views.py"))["page"]()
    assert (ROOT / "docs" / "views.md").read_text(encoding="utf-8") == made


def test_logs_too_large_for_memory_are_answered_alike(analyze, demo, monkeypatch):
    query = "SELECT * FROM segments ORDER BY ALL"
    want = analyze("sql", query, demo, "--format", "csv")
    monkeypatch.setattr(database, "IN_MEMORY_BYTES", 0)
    assert analyze("sql", query, demo, "--format", "csv") == want
    assert analyze("sql", "SELECT * FROM 'x.csv'", demo)[0] == 2
