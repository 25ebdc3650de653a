"""What hostile or damaged logs once broke: numbers, names and places that nobody would choose."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import logs
import pytest

from analyze import export
from analyze.database import opened

MOST = 2**63 - 1


def written(folder: Path, change, name: str = "x.jsonl") -> Path:
    """Write a log of four workers after `change` has been at each of its events."""
    log = logs.demo()
    for event in log.events:
        change(event)
    path = folder / name
    path.write_bytes(log.text())
    return path


def huge(event):
    for name in {"size_bytes", "total_nodes", "active_nodes", "survivors", "num_samples"} & event.keys():
        event[name] = MOST
    if "duration_s" in event:
        event["duration_s"] = 9e9


@pytest.mark.parametrize("command", ["gantt", "summary", "runs", "compare", "export"])
def test_numbers_whose_sums_are_beyond_64_bits_stop_no_command(analyze, tmp_path, command):
    path = written(tmp_path, huge)
    more = {"runs": ["--whole"], "compare": [path], "export": ["--parquet", "lake"]}
    other = written(tmp_path, lambda _: None, "other.jsonl")
    code, _, err = analyze(command, *more.get(command, []), path, *([other] if command == "compare" else []))
    assert (code, "error" in err) == (0, False)


def test_every_view_answers_where_sums_are_beyond_64_bits(tmp_path):
    with opened([written(tmp_path, huge)]) as database:
        for view, _, _ in database.documented():
            database.rows(f"FROM {view}")
        ((up,),) = database.execute("SELECT max(bytes_up) FROM runs").fetchall()
    assert up == 2**60


def test_a_gap_of_nearly_all_numbers_is_counted_to_the_last(tmp_path):
    log = logs.demo()
    log.events[-1]["seq"] = MOST
    with opened([log.write(tmp_path)]) as database:
        (row,) = database.rows("SELECT missing FROM logs")
        (damage,) = database.rows("SELECT lines FROM damage")
    assert row["missing"] == damage["lines"] == MOST - len(log.events) + 1


def test_a_rank_that_no_worker_has_makes_no_row_for_each_below_it(tmp_path):
    def change(event):
        if event["kind"] == "pull" and event["rank"] == 3:
            event["rank"] = 99_998

    with opened([written(tmp_path, change)]) as database:
        (row,) = database.rows("SELECT count(*) AS n, max(rank) AS most FROM worker_rounds")
    assert row["most"] < 10
    assert row["n"] < 100


def test_a_pipe_is_opened_once_and_one_in_a_folder_not_at_all(analyze, tmp_path, demo):
    pipe = tmp_path / "folder" / "p.jsonl"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    (pipe.parent / "a.jsonl").write_bytes(demo.read_bytes())
    code, out, _ = analyze("runs", pipe.parent)
    assert (code, out.count(logs.RUN)) == (0, 1)
    writer = threading.Thread(target=pipe.write_bytes, args=(demo.read_bytes(),), daemon=True)
    writer.start()
    code, out, _ = analyze("runs", pipe)
    writer.join(10)
    assert (code, out.count(logs.RUN)) == (0, 1)


@pytest.mark.parametrize(
    "command",
    [
        ["report"],
        ["summary"],
        ["runs"],
        ["runs", "--whole"],
        ["sql", "FROM logs"],
        ["export", "--parquet", "l"],
    ],
)
def test_a_name_that_is_no_text_is_shown_as_what_it_is(analyze, tmp_path, demo, command):
    path = tmp_path / os.fsdecode(b"a\xff.jsonl")
    path.write_bytes(demo.read_bytes() + b"bad\n")
    code, out, err = analyze(*command, path)
    assert (code, "error" in err) == (3, False)
    assert command[0] != "sql" or r"a\xff.jsonl" in out
    assert command[0] != "report" or (tmp_path / r"a\xff.html").exists()


def test_a_log_of_version_0_takes_its_run_from_a_name_that_is_no_text(analyze, tmp_path):
    path = tmp_path / os.fsdecode(b"a\xff.jsonl")
    path.write_bytes((Path(__file__).parent / "data" / "v0.jsonl").read_bytes())
    code, out, _ = analyze("sql", "SELECT run FROM runs", path)
    assert (code, r"a\xff" in out) == (0, True)


def test_what_a_terminal_may_obey_is_escaped_in_json_and_left_out_of_csv_that_it_shows():
    value = "a\x1b[31m\u202eb\u2028\x7f\x9b\U000e0001\u00e9"
    for form in ("json", "jsonl"):
        text = export.text(["x"], ["VARCHAR"], [(value,)], form)
        assert all(c.isprintable() or c == "\n" for c in text)
        assert "\u00e9" in text
        made = json.loads(text)
        assert (made[0] if form == "json" else made)["x"] == value
    assert value in export.text(["x"], ["VARCHAR"], [(value,)], "csv")
    shown = export.text(["x"], ["VARCHAR"], [(value,)], "csv", width=80)
    assert all(c.isprintable() or c == "\n" for c in shown)
