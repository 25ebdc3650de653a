"""The commands as a user types them: output, exit codes, files, hostile logs; real DuckDB, real processes."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import duckdb
import logs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import Log, Turn, play_round

from analyze.terminal import Column, fitted, shown_width

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e'; DROP TABLE x; --&\"$x^2$../../x"


@pytest.fixture(autouse=True)
def _plain(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def test_a_report_prints_chart_and_summary_and_writes_page_and_pictures(analyze, demo, tmp_path):
    code, out, err = analyze("report", demo, "-o", tmp_path / "out")
    assert code == 0
    assert "round 2  3/4 survivors" in out
    assert "round 2, w1: training failed after 210 ms: exit 3: RuntimeError: planned failure" in out
    want = {f"{logs.RUN}.html"} | {
        f"{logs.RUN}.{w}.{f}" for w in ("timeline", "metrics", "time") for f in ("svg", "png")
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == want
    assert {Path(line.removeprefix("wrote ")).name for line in err.splitlines()} == want
    for path in (tmp_path / "out").glob("*.svg"):
        ET.fromstring(path.read_text())
    for path in (tmp_path / "out").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_same_log_gives_the_same_files(analyze, tmp_path):
    log = logs.big(1, 1).write(tmp_path)
    for folder in ("a", "b"):
        analyze("report", log, "-o", tmp_path / folder)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_gantt_of_some_rounds_in_a_narrow_space(analyze, demo):
    code, out, _ = analyze(
        "gantt", demo, "--round", "4-5", "--round", "0", "--width", "40", "--glyphs", "ascii"
    )
    assert code == 0
    assert re.findall(r"^round (\d(?: try \d)?)", out, re.MULTILINE) == ["0", "4 try 1", "4 try 2", "5"]
    assert max(map(len, out.splitlines())) <= 40
    assert out.isascii()


def test_summary_fits_80_columns_with_whole_numbers_and_a_totals_row(analyze, demo):
    code, out, _ = analyze("summary", demo)
    assert code == 0
    rows = [line for line in out.splitlines() if re.match(r"\d|total|round ", line)]
    assert max(map(len, rows)) <= 80
    assert "…" not in out
    total = next(line for line in rows if line.startswith("total")).split()
    assert total == ["total", "310", "KB", "274", "KB", "6.060", "0.096", "8.082"]


def test_runs_lists_a_line_each_with_status(analyze, tmp_path):
    logs.demo().write(tmp_path)
    crashed = logs.demo(crash=True)
    crashed.run = "z"
    for event in crashed.events:
        event["run"] = "z"
    crashed.write(tmp_path)
    code, out, _ = analyze("runs", tmp_path)
    assert code == 0
    assert re.search(r"demo +digits +2026-03-01 12:00 +8/8 +completed +3/4 +accuracy 0.8744", out)
    assert re.search(r"^z +digits .* 6/8 +crashed", out, re.MULTILINE)
    (tmp_path / "runs").mkdir()
    assert analyze("runs")[0] == 1


def test_compare_names_each_run_and_the_differences(analyze, demo, tmp_path):
    other = logs.big(4, 3).write(tmp_path)
    code, out, _ = analyze("compare", demo, other)
    assert code == 0
    assert re.search(r"^train \(s\) +0\.690 +0\.\d+ +[+-]0\.\d+ +[+-]\d+\.\d$", out, re.MULTILINE)
    assert analyze("compare", demo)[0] == 2


def test_sql_in_every_format(analyze, demo, tmp_path):
    query = "SELECT rank, count(*) AS n, avg(end_s) AS d FROM spans WHERE kind = 'exec' GROUP BY 1 ORDER BY 1"
    as_json = json.loads(analyze("sql", query, demo, "--format", "json")[1])
    as_csv = list(csv.DictReader(io.StringIO(analyze("sql", query, demo, "--format", "csv")[1])))
    assert [row["n"] for row in as_json] == [int(row["n"]) for row in as_csv] == [9, 9, 9, 6, 8]
    target = tmp_path / "x.parquet"
    assert analyze("sql", query, demo, "--format", "parquet", "-o", target)[0] == 0
    rows = duckdb.connect().execute("SELECT n FROM read_parquet(?)", [str(target)]).fetchall()
    assert [n for (n,) in rows] == [9, 9, 9, 6, 8]
    code, out, _ = analyze("sql", query, demo)
    assert code == 0
    assert out.splitlines()[0].split() == ["rank", "n", "d"]


def test_sql_over_the_default_folder_and_the_schema(analyze, tmp_path):
    (tmp_path / "runs").mkdir()
    logs.demo().write(tmp_path / "runs")
    logs.big(2, 2).write(tmp_path / "runs")
    assert json.loads(analyze("sql", "SELECT count(*) AS n FROM runs", "--format", "json")[1]) == [{"n": 2}]
    code, out, _ = analyze("sql", "--schema")
    assert code == 0
    assert "One row a run." in out


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO 'evil.csv'",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM 'x.jsonl'",
        "ATTACH 'evil.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SELEC",
        "SELECT * FROM nowhere",
    ],
)
def test_sql_reaches_no_file_and_fails_in_one_line(analyze, demo, tmp_path, query):
    before = set(tmp_path.iterdir())
    form = "parquet" if "SELECT *" in query else "csv"
    code, out, err = analyze("sql", query, demo, "--format", form, "-o", "result")
    assert code == 2
    assert out == ""
    assert re.fullmatch(r"error: .+\n(.+\n)*hint: .+\n", err)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x7fELF\0\0\1\xff\n\xfe\xfd", "no log of a run"),
        (b"name,age\nx,3\n", "no log of a run"),
        (b'{"hello": 1}\n', "wrong envelope"),
        (None, "no such file"),
    ],
)
@pytest.mark.parametrize("command", ["report", "gantt", "summary"])
def test_what_is_no_log_gives_one_clear_error(analyze, tmp_path, command, content, words):
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    code, out, err = analyze(command, path)
    assert (code, out) == (1, "")
    assert words in err
    assert re.fullmatch(r"error: .+\n(.+\n)*hint: .+\n", err)


def test_a_folder_is_no_log(analyze, tmp_path):
    code, _, err = analyze("summary", tmp_path)
    assert code == 1
    assert "is a directory" in err


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("no-such",), ("gantt",), ("gantt", "x", "--round", "five"), ("gantt", "x", "--round", "5-2"),
        ("gantt", "x", "--width", "3"), ("sql",), ("sql", " "), ("summary", "x", "--no"),
    ],
)  # fmt: skip
def test_wrong_usage_is_2(analyze, arguments):
    code, _, err = analyze(*arguments)
    assert code == 2
    assert "\nhint: " in "\n" + err or err.startswith("Usage: analyze")


@pytest.mark.parametrize("command", ["report", "gantt", "summary", "sql", "runs", "compare"])
def test_every_command_has_help_by_h_and_says_what_it_does(analyze, command):
    code, out, _ = analyze(command, "-h")
    assert code == 0
    assert out == analyze(command, "--help")[1]
    assert len(out.splitlines()) > 4


@pytest.mark.parametrize("command", ["report", "gantt", "summary", "runs", "sql"])
def test_damage_is_3_and_shown(analyze, demo, command):
    with demo.open("ab") as file:
        file.write(b"garbage\n")
    arguments = ("sql", "FROM damage", demo) if command == "sql" else (command, demo)
    code, out, err = analyze(*arguments)
    assert code == 3
    if command in {"report", "summary", "sql"}:
        assert "not JSON" in out
    if command not in {"report", "summary"}:
        assert "damaged log: 1 line not JSON; spans, bytes and metrics may be missing" in err
    if command == "report":
        assert "The log is damaged." in demo.with_suffix(".html").read_text()
        for picture in ("timeline", "metrics", "time"):
            assert "damaged log: 1 line not JSON" in demo.with_suffix(f".{picture}.svg").read_text()


def test_a_newer_version_is_read_with_a_warning_that_names_it(analyze, demo):
    demo.write_bytes(demo.read_bytes().replace(b'{"v":1,', b'{"v":7,'))
    code, out, err = analyze("summary", demo)
    assert code == 0
    assert "schema version 7" in err
    assert "8/8 rounds" in out


def hostile_log(folder: Path) -> Path:
    log = Log(run="x", workers=2, rounds=1, name=HOSTILE)
    log.start(note=HOSTILE)
    for event in log.events:
        event |= {"host": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    log.add("worker_up", None, 0, address=HOSTILE, facts={HOSTILE: HOSTILE})
    play_round(log, 0, {1: Turn(reject=("shape", HOSTILE))}, evaluate=False)
    log.add("metric", 0, values={HOSTILE: 1.0}, num_samples=1, error=None)
    log.down(0, 0, HOSTILE, HOSTILE)
    log.add("exec", 0, 1, exit_code=3, output_tail=HOSTILE, output_bytes=1, output_path=HOSTILE, attempt=1,
            duration_s=0.1, error=HOSTILE)  # fmt: skip
    log.end(1, "failed", HOSTILE)
    for event in log.events:
        event["run"] = HOSTILE
    return log.write(folder)


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        for name, value in attrs:
            if name in {"src", "srcset", "href"}:
                assert value.startswith("data:image/svg+xml;base64,")


def test_hostile_text_stays_text(analyze, tmp_path):
    path = hostile_log(tmp_path)
    out_folder = tmp_path / "out"
    code, out, err = analyze("report", path, "-o", out_folder)
    assert code == 0
    assert not set(out + err) & {"\x1b", "\u202e"}
    assert all(name.name.startswith("x.") for name in out_folder.iterdir())
    page = (out_folder / "x.html").read_text()
    assert not set(page) & {"\x1b", "\u202e"}
    assert "<script" not in page
    seen = Page()
    seen.feed(page)
    assert not seen.tags & {"script", "iframe", "object", "link", "base", "form", "a"}
    assert not any(name.startswith("on") or name == "style" for name in seen.attributes)
    for picture in out_folder.glob("*.svg"):
        assert {el.tag.rpartition("}")[2] for el in ET.fromstring(picture.read_text()).iter()}.isdisjoint(
            {"script", "a"}
        )
    for command in (("runs", path), ("summary", path), ("compare", path, path), ("sql", "FROM losses", path)):
        _, out, err = analyze(*command)
        assert not set(out + err) & {"\x1b", "\u202e"}


def process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "analyze.cli", *map(str, arguments)],
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])} | environment,
    )


def test_an_output_without_unicode_gets_ascii(demo):
    done = process("gantt", demo, LC_ALL="C", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"# train" in done.stdout
    done.stdout.decode("ascii")


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    path = logs.big(30, 40).write(tmp_path)
    command = f'"{sys.executable}" -m analyze.cli sql "FROM spans" "{path}" | head -1'
    done = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.stderr == b""
    assert done.stdout.startswith(b"run")


@pytest.mark.parametrize("form", ["table", "parquet"])
def test_no_result_of_a_query_goes_unseen(analyze, demo, tmp_path, form):
    out = ("--format", form, "-o", tmp_path / "result")
    code, _, err = analyze("sql", "SELECT 1; SELECT 2", demo, *out)
    assert code == 2
    assert err.startswith("error: statement 1 of 2 has a result, and only that of the last is shown")
    code, _, err = analyze("sql", "/* SELECT 1 */", demo, *out)
    assert code == 2
    assert err.startswith("error: there is no statement in the query\nhint: ")
    assert not (tmp_path / "result").exists()
    assert analyze("sql", "CREATE TEMP TABLE a AS SELECT 1 AS x; FROM a;", demo, *out)[0] == 0
    assert (tmp_path / "result").exists()


def test_without_the_folder_of_logs_it_says_where_to_look(analyze):
    code, _, err = analyze("runs")
    assert code == 1
    assert "hint: go to the folder in which the runner was started, or name its logs" in err


def test_a_table_wider_than_the_paper_is_cut_and_says_so(analyze, demo):
    code, out, _ = analyze("runs", demo, "--width", "60")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 60
    assert lines[2].startswith(f"{logs.RUN}  digits  2026-")
    assert "columns left out: status, survivors, last metric; a pipe gets all" in " ".join(lines[3:])
    assert "(cut to fit" not in analyze("runs", demo)[1], "a pipe gets all"


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.text(max_size=30), min_size=n, max_size=n), min_size=1, max_size=4)
    ),
    st.integers(20, 60),
)
def test_a_cut_table_fits_and_never_shortens_a_number(rows, width):
    columns = [Column("name", right=i % 2 == 1) for i in range(len(rows[0]))]
    rows = [[str(len(cell)) * 5 if i % 2 else cell for i, cell in enumerate(row)] for row in rows]
    lines = list(fitted(columns, rows, width))
    assert max(map(shown_width, lines)) <= width
    if "columns left out" not in " ".join(lines):
        assert all(cell in " ".join(lines) for row in rows for cell in row[1::2])


def test_a_damaged_run_id_makes_no_run(analyze, demo):
    lines = demo.read_bytes().splitlines(keepends=True)
    lines[7] = lines[7].replace(b"-demo", b"-demn", 1)
    demo.write_bytes(b"".join(lines))
    query = "SELECT (SELECT string_agg(run) FROM runs) AS run, line, reason FROM rejects"
    code, out, _ = analyze("sql", query, demo, "--format", "csv")
    assert (code, out) == (3, f"run,line,reason\n{logs.RUN},8,unknown run\n")
    missing = analyze("sql", "SELECT missing FROM logs", demo, "--format", "csv")[1]
    assert missing == "missing\n0\n", "its place is no gap"


def test_the_page_in_a_real_browser_runs_no_script_and_shows_everything(analyze, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        if os.environ.get("ROUNDLOG_REQUIRE_ALL") == "1":
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    path = hostile_log(tmp_path)
    analyze("report", path)
    # A script that did run would leave its mark in the title.
    done = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--proxy-server=127.0.0.1:9",
            f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
            "--dump-dom", path.with_suffix(".html").as_uri(),
        ],
        capture_output=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    dom, said = done.stdout.decode(), done.stderr.decode()
    assert "Content Security Policy" not in said
    assert "CONSOLE" not in said
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in dom
    assert "<script" not in dom
    for heading in (
        "Timeline",
        "Rounds",
        "Rejected or lost",
        "Where the time went",
        "Workers",
        "Job and versions",
    ):
        assert f"<h2>{heading}</h2>" in dom
    assert dom.count("<title>") > 5
