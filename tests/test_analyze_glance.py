"""``analyze runs`` by heads and tails says what a full reading says, or leaves it to that."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import logs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import Log, play_round

from analyze import glance
from analyze.database import opened


def _lines(log: Log) -> list[bytes]:
    return [json.dumps(event).encode() + b"\n" for event in log.events]


LINES = _lines(logs.demo())


def _agrees(path: Path) -> bool:
    """Compare with a full reading; say whether a glance was enough."""
    rows, left = glance.glanced([path])
    if left:
        assert (rows, left) == ([], [path])
        return False
    (row,) = rows
    with opened([path]) as database:
        (full,) = database.rows("SELECT * FROM runs")
    assert {name: full[name] for name in row if name != "run_no"} == {
        name: value for name, value in row.items() if name != "run_no"
    }
    return True


@pytest.mark.parametrize("count", [*range(1, len(LINES), 17), len(LINES) - 1, len(LINES)])
def test_a_log_as_far_as_it_goes(tmp_path: Path, count: int):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(LINES[:count]))
    assert _agrees(path) or any(b'"metric"' in line for line in LINES[:count])


def test_a_long_log_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = Log(rounds=200)
    log.start(evaluate={"command": "x"})
    for number in range(200):
        play_round(log, number, {})
    log.end(200)
    path = log.write(tmp_path)
    assert path.stat().st_size > 2 * (glance._HEAD_BYTES + glance._TAIL_BYTES)
    assert _agrees(path)
    text = path.read_bytes()
    middle = len(text) // 2
    path.write_bytes(text[:middle] + b"\0" * 1000 + text[middle + 1000 :])
    (row,), left = glance.glanced([path])
    assert (row["rounds_done"], row["status"], left) == (200, "completed", [])


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_whatever_is_damaged_is_left_or_told_alike(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    lines = list(LINES)
    place = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["cut", "garbage", "removed", "twice", "swapped", "nul"])):
        case "cut":
            lines[place:] = [lines[place][: data.draw(st.integers(0, len(lines[place]) - 1))]]
        case "garbage":
            lines[place] = data.draw(st.binary(max_size=20)) + b"\n"
        case "removed":
            del lines[place]
        case "twice":
            lines.insert(place, lines[place])
        case "swapped":
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[place], lines[other] = lines[other], lines[place]
        case "nul":
            lines[place] = b"\0" * 50 + lines[place]
    path = tmp_path_factory.mktemp("damaged") / "x.jsonl"
    path.write_bytes(b"".join(lines))
    rows, left = glance.glanced([path])
    assert len(rows) + len(left) == 1
    if rows:
        _agrees(path)


def test_what_is_out_of_the_ordinary_is_left_to_a_full_reading(tmp_path: Path):
    (tmp_path / "packed.jsonl").write_bytes(gzip.compress(b"".join(LINES)))
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "old.jsonl").write_bytes(b'{"time": 1.0, "kind": "round_start", "rank": null, "data": {}}\n')
    (tmp_path / "new.jsonl").write_bytes(b"".join(LINES).replace(b'{"v": 1,', b'{"v": 2,'))
    paths = sorted([*tmp_path.iterdir(), tmp_path / "missing.jsonl"])
    assert glance.glanced(paths) == ([], paths)


def test_a_run_that_was_gone_on_with_has_not_ended(tmp_path: Path):
    log = Log(rounds=3)
    log.start()
    play_round(log, 0, {})
    log.end(1, status="interrupted", reason="Ctrl-C")
    log.add(
        "run_resume",
        session=2,
        trusted_seq=log.events[-1]["seq"],
        reason="interrupted",
        host="h",
        pid=1,
        broken_offset=None,
        broken_bytes=0,
    )
    play_round(log, 1, {})
    path = log.write(tmp_path)
    with opened([path]) as database:
        (row,) = database.rows("SELECT status, reason FROM runs")
    assert row == {"status": "crashed", "reason": None}
    assert _agrees(path)
