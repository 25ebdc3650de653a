"""What is an event and what is not, line by line; and that nothing is lost, whatever happens to a file."""

from __future__ import annotations

import io
import json
import shutil
from itertools import pairwise
from pathlib import Path

import duckdb
import logs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyze import lines
from analyze.database import NothingUsableError, opened
from analyze.fast import PlainReader
from analyze.load import Loader
from analyze.order import faults, longest_in_order
from analyze.reader import Reader
from analyze.tables import make_tables
from schemas.events import MAX_LINE_BYTES

GOOD = logs.demo().lines()


def read(text: bytes, *, size: int = lines.CHUNK_BYTES):
    """Return (line, event of the columns) and rejects of a text."""
    reader, events, rejects, count = Reader("name"), {}, [], 0
    for chunk in lines.chunks(io.BytesIO(text), size):
        batches, bad = reader.read(chunk)
        count += chunk.count
        rejects += bad
        for batch in batches:
            names = [field.name for field in batch.fields]
            for i, row in enumerate(zip(*batch.columns, strict=True)):
                extra = batch.extras[i] if batch.extras else None
                events[int(batch.lines[i])] = dict(zip(names, row, strict=True)) | {
                    "kind": batch.kind if "kind" not in names else row[names.index("kind")],
                    "extra": extra,
                    "offset": int(batch.offsets[i]),
                }
    assert len(events) + len(rejects) == count
    return events, rejects


def one(**changes):
    """Return a metric event as a line, with some fields other than usual."""
    event = {
        "v": 1, "run": "r", "seq": 0, "t": 1.5, "ts": "2026-01-01T00:00:00.000000Z", "kind": "metric",
        "round": 0, "rank": 1, "values": {"loss": 0.5}, "num_samples": 10, "error": None,
    } | changes  # fmt: skip
    return json.dumps({k: v for k, v in event.items() if v is not ...}, separators=(",", ":")).encode()


def test_a_whole_log_is_read_with_offsets_that_lead_back_to_the_lines():
    text = logs.demo().text()
    events, rejects = read(text)
    assert not rejects
    assert len(events) == len(GOOD)
    for number, event in events.items():
        assert text[event["offset"] :].startswith(GOOD[number - 1])


def test_the_writers_lines_all_take_the_fast_way():
    (chunk,) = lines.chunks(io.BytesIO(logs.demo().text()))
    _, others = PlainReader().read(chunk)
    assert others == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (one(round=2.7), "wrong envelope"),
        (one(round=True), "wrong envelope"),
        (one(round="1"), "wrong envelope"),
        (one(seq=-1), "wrong envelope"),
        (one(t="1.5"), "wrong envelope"),
        (one(t=...), "wrong envelope"),
        (one(v=True), "wrong envelope"),
        (one(v="1"), "wrong envelope"),
        (one(v=-3), "wrong envelope"),
        (one(v=...), "wrong envelope"),
        (one(kind=7), "wrong envelope"),
        (one(run=""), "wrong envelope"),
        (one(seq=2**63), "wrong envelope"),
        (one(t=1e15), "wrong envelope"),
        (one(num_samples="12"), "wrong type"),
        (one(num_samples=-1), "wrong type"),
        (one(values={"loss": "low"}), "wrong type"),
        (one(values={"loss": True}), "wrong type"),
        (one(values=[1]), "wrong type"),
        (one(values=...), "missing field"),
        (one(kind="reject", reason="no such", detail=""), "wrong type"),
        (one(values={"loss": float("nan")}), "non-finite number"),
        (one(values={"loss": float("-inf")}), "non-finite number"),
        (one().replace(b"0.5", b"1e999"), "non-finite number"),
        (one().replace(b'"seq":0', b'"seq":0,"seq":1'), "duplicate key"),
        (one().replace(b'"seq":0', b'"seq":0,"seq" :1'), "duplicate key"),
        (one().replace(b'"loss":0.5', b'"loss":0.5,"loss":0.6'), "duplicate key"),
        (one(error=...)[:-1] + b',"num_samples":10}', "duplicate key"),
        (one().replace(b'"error"', b'"\xff"'), "not UTF-8"),
        (one().replace(b'"r"', b'"\\ud800"'), "lone surrogate"),
        (one()[:-1] + b",}", "not JSON"),
        (one() + one(), "not JSON"),
        (one()[:40], "torn"),
        (b"\0" * 300, "NUL bytes"),
        (b"\0\0\0" + one(), "NUL bytes"),
        (b"", "empty line"),
        (b"  ", "empty line"),
        (b"[1,2]", "not an object"),
        (b"17", "not an object"),
        (b"{}", "wrong envelope"),
        (b"[" * 5000, "not JSON"),
        (one(error="x" * MAX_LINE_BYTES), "line too long"),
    ],
)  # fmt: skip
def test_what_is_no_event_costs_itself_alone_and_says_why(line, reason):
    before, after = one(seq=0), one(seq=1)
    events, rejects = read(before + b"\n" + line + b"\n" + after + b"\n")
    assert sorted(events) == [1, 3]
    assert [(r.line, r.offset, r.length) for r in rejects] == [(2, len(before) + 1, len(line))]
    assert rejects[0].reason == reason
    assert rejects[0].head == line[:200]


@pytest.mark.parametrize(
    "line",
    [
        one() + b"\r",
        b" " + one(),
        one().replace(b":", b" : "),
        one(error='a ":" b'),
        one(values={"a": 1, "b": 2}),
        one(values={}),
        one(overflow_path="x.json"),
        one(t=2),
        one(num_samples=2**70),
    ],
)
def test_what_is_an_event_however_it_is_spelled(line):
    events, rejects = read(line + b"\n")
    assert not rejects
    assert len(events) == 1


def test_a_byte_order_mark_is_ignored_at_the_head_alone():
    mark = b"\xef\xbb\xbf"
    events, rejects = read(mark + one() + b"\n" + mark + one(seq=1) + b"\n")
    assert sorted(events) == [1]
    assert [r.reason for r in rejects] == ["not JSON"]


def test_unknown_fields_and_kinds_are_kept_with_every_digit():
    line = one(kind="weather", sky={"a": [1]}, far=3).replace(
        b'"far":3', b'"far":123456789012345678901234567890'
    )
    events, rejects = read(line + b"\n" + one(seq=1, later=None) + b"\n")
    assert not rejects
    assert events[1]["kind"] == "weather"
    assert b'"far": 123456789012345678901234567890' in events[1]["extra"].encode()
    assert json.loads(events[1]["extra"])["sky"] == {"a": [1]}
    assert json.loads(events[2]["extra"]) == {"later": None}


def test_a_newer_version_is_read_as_far_as_it_fits():
    events, rejects = read(
        one(v=2, values={"loss": "low"}, num_samples=...) + b"\n" + one(v=3, seq="1") + b"\n"
    )
    assert json.loads(events[1]["extra"]) == {"values": {"loss": "low"}}
    assert [r.reason for r in rejects] == ["wrong envelope"]


def test_a_last_line_without_newline_is_an_event_if_whole_and_else_torn():
    assert len(read(one())[0]) == 1
    for cut in range(1, len(one())):
        assert reason_of_tail(one()[:cut]) == "torn"


def reason_of_tail(text: bytes):
    _, (reject,) = read(text)
    return reject.reason


@given(
    st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=20),
    st.integers(1, 40),
    st.booleans(),
)
def test_lines_are_cut_alike_whatever_the_size_of_the_chunks(parts, size, ended):
    text = b"\n".join(parts) + (b"\n" if ended else b"")
    want = text.split(b"\n")
    if want[-1] == b"":
        want.pop()
    got, offset = [], 0
    for chunk in lines.chunks(io.BytesIO(text), size):
        assert (chunk.first_line, chunk.offset) == (len(got) + 1, offset)
        got += chunk.lines
        offset += sum(len(line) + 1 for line in chunk.lines)
    assert got == want


@pytest.mark.parametrize("size", [1000, 70_000, 1 << 23])
def test_a_line_of_a_megabyte_is_counted_and_not_kept(size):
    text = one() + b"\n" + b"x" * 1_000_000 + b"\n" + one(seq=1) + b"\n"
    events, (reject,) = read(text, size=size)
    assert sorted(events) == [1, 3]
    assert (reject.reason, reject.length, len(reject.head)) == ("line too long", 1_000_000, 200)


@given(st.lists(st.integers(0, 8), max_size=12), st.booleans())
def test_the_longest_part_in_order_is_in_order_and_no_shorter_than_any(values, strict):
    kept = longest_in_order(values, strict=strict)
    chosen = [values[i] for i in kept]
    assert all(a < b if strict else a <= b for a, b in pairwise(chosen))
    best = [1] * len(values)
    for i, value in enumerate(values):
        for j in range(i):
            if values[j] < value or (not strict and values[j] == value):
                best[i] = max(best[i], best[j] + 1)
    assert len(kept) == max(best, default=0)


@pytest.mark.parametrize(
    ("seq", "t", "want"),
    [
        ([0, 1, 2], [0, 1, 2], {}),
        ([0, 1, 1, 2], [0, 1, 1, 2], {2: "repeated seq"}),
        ([0, 999, 2, 3], [0, 1, 2, 3], {1: "seq out of order"}),
        ([0, 1, 2, 3], [0, 99, 2, 3], {1: "time going back"}),
        ([0, 1, 2, 3], [5, 6, 1, 7], {2: "time going back"}),
    ],
)
def test_an_event_out_of_order_costs_itself_alone(seq, t, want):
    found = faults(np.array(seq), np.array(t))
    assert {i: why[0] for i, why in found.items()} == want


def load(path: Path):
    con = duckdb.connect()
    make_tables(con)
    loader = Loader(con)
    log = loader.load(path)
    loader.finish()
    return con, log


def test_gaps_are_counted_but_not_where_a_bad_line_stands_for_what_is_missing(tmp_path):
    kept = [line for i, line in enumerate(GOOD) if i not in {20, 21, 50}]
    kept[100] = kept[100][:30]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(kept) + b"\n")
    con, log = load(path)
    assert (log.events, log.rejects, log.missing) == (len(kept) - 1, 1, 3)
    assert con.execute("SELECT before_line, missing FROM store.gaps ORDER BY ALL").fetchall() == [
        (21, 2),
        (49, 1),
    ]


def test_a_repeated_line_is_rejected_and_the_event_is_there_once(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join([*GOOD[:10], GOOD[9], *GOOD[10:]]) + b"\n")
    con, log = load(path)
    assert (log.events, log.rejects, log.missing) == (len(GOOD), 1, 0)
    assert con.execute("SELECT line, reason FROM store.rejects").fetchall() == [(11, "repeated seq")]


def test_a_tail_that_a_resume_closed_is_called_torn(tmp_path):
    text = b"\n".join(GOOD[:50]) + b"\n"
    broken = GOOD[50][:10] + b"x}"
    resume = logs.Log(events=[{}] * 50, t=9.0)
    resume.add("run_resume", session=1, trusted_seq=49, broken_offset=len(text), broken_bytes=len(broken),
               reason="torn", host="h", pid=1)  # fmt: skip
    path = tmp_path / "x.jsonl"
    path.write_bytes(text + broken + b"\n" + json.dumps(resume.events[-1]).encode() + b"\n")
    con, log = load(path)
    assert (log.rejects, log.missing) == (1, 0)
    assert con.execute("SELECT reason FROM store.rejects").fetchall() == [("torn",)]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("damage")


def check_damaged(scratch: Path, text: bytes, *, least: int = 0):
    """Load a damaged log and hold the invariant against an independent count of its lines."""
    path = scratch / "d.jsonl"
    path.write_bytes(text)
    count = text.count(b"\n") + (not text.endswith(b"\n") and text != b"")
    try:
        with opened([path]) as database:
            (row,) = database.rows("SELECT lines, events, rejects FROM logs")
            assert row["lines"] == count == row["events"] + row["rejects"]
            assert database.rows("SELECT count(*) AS n FROM events")[0]["n"] == row["events"]
            assert database.rows("SELECT count(*) AS n FROM rejects")[0]["n"] == row["rejects"]
            for view in ("runs", "rounds", "segments", "losses", "phases", "workers", "round_metrics"):
                database.rows(f"SELECT * FROM {view}")
            assert row["events"] >= least
    except NothingUsableError:
        assert least == 0


@settings(max_examples=7)
@given(st.integers(0, len(logs.demo().text())))
def test_a_log_cut_at_any_byte_keeps_every_whole_line(scratch, at):
    text = logs.demo().text()[:at]
    check_damaged(scratch, text, least=text.count(b"\n"))


@settings(max_examples=8)
@given(st.data())
def test_any_damage_costs_the_damaged_lines_alone(scratch, data):
    damaged = list(GOOD[:80])
    hits = data.draw(st.integers(1, 4))
    for _ in range(hits):
        i = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["flip", "drop", "repeat", "swap", "insert", "nul", "run"])):
            case "flip":
                line = bytearray(damaged[i] or b"x")
                at = data.draw(st.integers(0, len(line) - 1))
                line[at] = data.draw(st.integers(0, 255).filter(lambda b: b != 10))
                damaged[i] = bytes(line)
            case "drop":
                del damaged[i]
            case "repeat":
                damaged.insert(i, damaged[i])
            case "swap":
                damaged[i], damaged[-1] = damaged[-1], damaged[i]
            case "insert":
                damaged.insert(i, data.draw(st.binary(max_size=50)).replace(b"\n", b""))
            case "nul":
                damaged[i] = b"\0" * 40
            case "run":
                damaged[i] = damaged[i].replace(b'"run":"', b'"run":"%d' % data.draw(st.integers(0, 9)), 1)
    # A swap takes two lines, a flip in the run's name makes an own run of its line: two a hit at most.
    check_damaged(scratch, b"\n".join(damaged) + b"\n", least=80 - 2 * hits)


@settings(max_examples=6)
@given(st.sets(st.integers(1, 79), min_size=1, max_size=40), st.booleans())
def test_events_with_damaged_runs_are_rejects_and_leave_neither_a_run_nor_a_gap(scratch, places, twice):
    damaged = list(GOOD[:80])
    for i in places:
        damaged[i] = damaged[i].replace(b'"run":"', b'"run":"%d' % i, 1)
    text = b"\n".join(damaged) + b"\n"
    if twice:  # a second run beside it, whole
        text += b"\n".join(line.replace(b'"run":"', b'"run":"other', 1) for line in GOOD[:80]) + b"\n"
    path = scratch / "d.jsonl"
    path.write_bytes(text)
    con, log = load(path)
    assert con.execute("SELECT line, reason FROM store.rejects ORDER BY line").fetchall() == [
        (i + 1, "unknown run") for i in sorted(places)
    ]
    assert (log.events, len(log.runs), log.missing) == ((160 if twice else 80) - len(places), 1 + twice, 0)


def test_the_wrong_answers_of_duckdb_itself_do_not_happen(tmp_path):
    late = logs.Log()
    late.start()
    for i in range(25_000):
        late.add("push_start", 0, 0, path="p", attempt=1)
        late.t += 0.001 * (i % 2)
    late.add("metric", 0, 0, values={"late": 1.5}, num_samples=None, error=None)
    path = late.write(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"v":1,"run":"' + b"x" * 10)
    with opened([path]) as database:
        assert database.rows("SELECT name, value FROM metrics") == [{"name": "late", "value": 1.5}]
        assert database.rows("SELECT reason, line FROM rejects") == [{"reason": "torn", "line": 25_003}]
        assert database.rows("SELECT count(*) AS n FROM events WHERE kind IS NULL") == [{"n": 0}]


def test_the_same_log_twice_counts_once_and_the_log_is_never_written(tmp_path):
    path = logs.demo().write(tmp_path)
    path.chmod(0o444)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    with opened([path, tmp_path / "." / path.name]) as database:
        assert len(database.rows("SELECT * FROM runs")) == 1
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    copy = tmp_path / "copy.jsonl"
    shutil.copyfile(path, copy)
    with opened([path, copy]) as database:
        assert [r["rounds_done"] for r in database.rows("SELECT * FROM runs")] == [8]
        assert list(database.warnings()) == [f"{copy} says the same as {path}: they count once"]
