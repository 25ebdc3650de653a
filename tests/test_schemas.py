"""The contract: the schema that is checked in, one type a field name, the text forms, and version 0."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from typing import Any, get_type_hints

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import jsonschema as contract
from schemas.events import BODIES, BY_KIND, Envelope, Finished, field_names
from schemas.text import duration, encoding, event_line, failed, number, printable, size, tail
from schemas.upcast import Place, upcast, version_of

PLACE = Place(run="old", seq=3, first_time=100.0)


def test_the_schema_that_is_checked_in_is_the_generated_one():
    assert contract.PATH.read_text(encoding="utf-8") == contract.text(), "run: python -m schemas.jsonschema"


def test_the_schema_is_one_and_tells_right_from_wrong():
    schema = json.loads(contract.PATH.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    good = {
        "v": 1,
        "run": "r",
        "seq": 0,
        "t": 0.0,
        "ts": "x",
        "kind": "worker_down",
        "round": None,
        "rank": 1,
    }
    good |= {"reason": "lost", "detail": "", "for_good": False}
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(good)
    assert validator.is_valid({**good, "new_optional_field": 1})
    wrong: list[dict[str, Any]] = [{"seq": -1}, {"t": -0.1}, {"kind": "push"}, {"v": 2}, {"rank": "1"}]
    for change in wrong:
        assert not validator.is_valid({**good, **change}), change
    for name in good:
        assert not validator.is_valid({k: v for k, v in good.items() if k != name}), name


def test_every_kind_is_described():
    for kind, event in contract.generate()["$defs"].items():
        assert event["description"], kind
        for name in field_names(kind):
            # what needs no words: a choice between literals
            assert {"description", "enum", "const"} & set(event["properties"][name]), (kind, name)


def test_one_field_name_has_one_type_everywhere():
    types: dict[str, set[str]] = {}
    for kind, event in contract.generate()["$defs"].items():
        for name, field in event["properties"].items():
            if name == "kind":
                continue
            shape = {k: v for k, v in field.items() if k not in {"description", "default", "enum"}}
            text = json.dumps(shape, sort_keys=True).replace(', {"type": "null"}', "")
            text = text.replace('{"anyOf": [', "").replace("]}", "") if "anyOf" in text else text
            types.setdefault(name, set()).add(f"{text}" if name != "reason" else "text")
            assert kind
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


def test_finished_spans_say_how_long_they_took():
    for body in BODIES:
        hints = get_type_hints(body)
        assert issubclass(body, Finished) == ("duration_s" in hints)
        assert BY_KIND[body.kind] is body
        assert not {f.name for f in fields(body)} & {f.name for f in fields(Envelope)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("plain", "plain"),
        ("a\tb\nc\u2003d", "a b c d"),
        ("\x1b[31mred\x1b[0m\x00\x7f\x9b", "[31mred[0m"),
        ("\u202eevil\u200b", "evil"),
        ("\u00fc \u5b57 \U0001f600", "\u00fc \u5b57 \U0001f600"),
        ("\ud800x", "x"),
    ],
)
def test_printable(given: str, expected: str):
    assert printable(given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ""),
        ("\n \r\n\t\n", ""),
        ("one\ntwo\n\n  \n", "two"),
        ("10%\r50%\r100%\r", "100%"),
        ("x" * 200, "x" * 79 + "\u2026"),
        ("last\n\x1b\x00\n", "last"),
        ("  padded  ", "padded"),
    ],
)
def test_tail(given: str, expected: str):
    assert tail(given) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (None, "?"),
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1.0 KB"),
        (1000, "1.0 KB"),
        (9400, "9.4 KB"),
        (99_949, "99.9 KB"),
        (99_950, "100 KB"),
        (999_499, "999 KB"),
        (999_500, "1.0 MB"),
        (1_234_567_890, "1.2 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_size(count: float | None, expected: str):
    assert size(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "?"),
        (0, "0.0 ms"),
        (0.00042, "0.4 ms"),
        (0.312, "312 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (9.994, "9.99 s"),
        (12.34, "12.3 s"),
        (59.97, "60.0 s"),
        (99.96, "1m40s"),
        (312.4, "5m12s"),
        (3599.4, "59m59s"),
        (3599.6, "1h00m"),
        (11_220, "3h07m"),
        (400_000, "111h06m"),
    ],
)
def test_duration(seconds: float | None, expected: str):
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "?"),
        (3, "3"),
        (3.0, "3"),
        (-0.0, "0"),
        (0.123456, "0.1235"),
        (1234567.0, "1.235e+06"),
        (1234567, "1234567"),
        (1e300, "1e+300"),
        (float("inf"), "inf"),
    ],
)
def test_number(value: float | None, expected: str):
    assert number(value) == expected


LINES = [
    (
        {"kind": "run_start", "job": {"name": "digits", "rounds": 8}, "total_nodes": 4, "params_bytes": 9400},
        "       1.500       run_start  digits: 8 rounds, 4 workers, params 9.4 KB",
    ),
    ({"kind": "run_resume", "session": 1, "trusted_seq": 9}, "session 1 goes on after event 9"),
    ({"kind": "worker_up", "rank": 2, "address": "local:/w/2"}, "       1.500  w2   worker_up  local:/w/2"),
    (
        {"kind": "worker_down", "rank": 2, "reason": "lost", "detail": "gone", "for_good": True},
        "!!     1.500  w2   worker_down left for good: lost: gone",
    ),
    (
        {"kind": "round_start", "round": 3, "active_nodes": 3, "total_nodes": 4, "attempt": 2},
        "round 3: 3 of 4 workers, attempt 2",
    ),
    ({"kind": "round_start", "round": 3, "active_nodes": 4, "total_nodes": 4}, "round 3: 4 workers"),
    ({"kind": "push_start", "rank": 0, "path": "p.npz", "attempt": 1}, "p.npz begins"),
    (
        {"kind": "push", "rank": 0, "path": "p", "size_bytes": 9400, "reused": 400, "duration_s": 0.3},
        "       1.500  w0   push       p  9.4 KB, 400 B reused  300 ms",
    ),
    (
        {"kind": "pull", "rank": 0, "path": "w", "size_bytes": None, "duration_s": 2.0, "error": "cut\noff"},
        "!!     1.500  w0   pull       w  ?  2.00 s: cut off",
    ),
    ({"kind": "exec_start", "command": "python train.py", "attempt": 3}, "python train.py  (attempt 3)"),
    (
        {"kind": "exec", "rank": 1, "exit_code": 0, "duration_s": 12.34, "output_tail": "loss 0.1"},
        "       1.500  w1   exec       exit 0  12.3 s  loss 0.1",
    ),
    (
        {"kind": "exec", "rank": 1, "exit_code": None, "duration_s": 90, "error": "timed out after 1m30s"},
        "!!     1.500  w1   exec       no exit code  90.0 s: timed out after 1m30s",
    ),
    (
        {"kind": "reject", "rank": 1, "reason": "shape", "detail": "(1,) not (2,)"},
        "!!     1.500  w1   reject     weights kept out: shape: (1,) not (2,)",
    ),
    (
        {"kind": "reject", "rank": 1, "reason": "late", "detail": "not waited for"},
        "!!     1.500  w1   reject     late: not waited for",
    ),
    (
        {"kind": "metric", "values": {"loss": 0.123456, "n": 3.0}, "num_samples": 200.0},
        "       1.500       metric     loss 0.1235, n 3, 200 samples",
    ),
    ({"kind": "metric", "values": {}, "num_samples": None, "error": "not JSON"}, "metric     not JSON"),
    (
        {
            "kind": "aggregate",
            "num_workers": 3,
            "weight_norm": 9.87654,
            "delta_norm": 0.5,
            "duration_s": 0.01,
        },
        "       1.500       aggregate  3 workers  |W| 9.877  delta 0.5  10 ms",
    ),
    (
        {"kind": "round_end", "round": 3, "survivors": 3, "total_nodes": 4, "duration_s": 1, "outcome": "ok"},
        "       1.500       round_end  round 3: 3/4 survivors, 1.00 s",
    ),
    (
        {
            "kind": "round_end",
            "round": 3,
            "survivors": 0,
            "total_nodes": 4,
            "duration_s": 1,
            "outcome": "failed",
        }
        | {"reason": "0 survivors, quorum is 2"},
        "!!     1.500       round_end  round 3: 0/4 survivors, 1.00 s: 0 survivors, quorum is 2",
    ),
    (
        {"kind": "run_end", "status": "interrupted", "rounds": 1, "duration_s": 61, "reason": "by SIGINT"},
        "!!     1.500       run_end    interrupted, 1 round, 61.0 s: by SIGINT",
    ),
    ({"kind": "from_the_future", "rank": 1}, "       1.500  w1   from_the_future"),
]


@pytest.mark.parametrize(("event", "expected"), LINES, ids=[event["kind"] for event, _ in LINES])
def test_event_line(event: dict[str, Any], expected: str):
    line = event_line({"t": 1.5, **event})
    assert line == expected if expected[:6].strip() in {"", "!!"} else line.endswith(expected)
    assert line.startswith("!!") == failed(event)


def test_every_kind_has_a_text_form_in_the_table():
    assert {event["kind"] for event, _ in LINES} - {"from_the_future"} | {"pull_start"} == set(BY_KIND)


@settings(max_examples=40)
@given(st.sampled_from(sorted(BY_KIND)), st.data())
def test_event_line_never_fails_and_stays_one_line(kind: str, data: st.DataObject):
    event: dict[str, Any] = {
        "kind": kind,
        "t": 1.0,
        "detail": data.draw(st.text()),
        "path": data.draw(st.text()),
    }
    event |= {name: None for name in field_names(kind) if name not in event}
    line = event_line(event | {"kind": kind, "error": data.draw(st.none() | st.text())})
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def old(kind: str = "exec", time: Any = 101.5, **data: Any) -> dict[str, Any]:
    return {"time": time, "kind": kind, "rank": 2, "data": data}


def test_version_0_is_brought_up():
    raw = old(round_num=4, exit_code=0, duration_s=1.0)
    assert version_of(raw) == 0
    assert upcast(raw, PLACE) == {
        "v": 1,
        "run": "old",
        "seq": 3,
        "t": 101.5,
        "ts": None,
        "kind": "exec",
        "round": 4,
        "rank": 2,
        "exit_code": 0,
        "duration_s": 1.0,
    }
    assert raw["data"] == {"round_num": 4, "exit_code": 0, "duration_s": 1.0}, "what was given is left alone"


def test_version_0_with_times_since_1970():
    place = Place(run="old", seq=0, first_time=1.7e9)
    event = upcast(old(time=1.7e9 + 2.5), place)
    assert (event["t"], event["ts"]) == (2.5, "2023-11-14T22:13:22.500000Z")
    assert upcast(old(time=1.7e9 - 5), place)["t"] == 0


def test_version_0_keeps_what_it_does_not_know():
    event = upcast({**old(extra=1, kind_="x"), "host": "h"}, PLACE)
    assert (event["extra"], event["kind_"], event["host"]) == (1, "x", "h")
    forged = upcast(old(seq=99, v=7, run="other", t=-1), PLACE)
    assert (forged["seq"], forged["v"], forged["run"], forged["t"]) == (3, 1, "old", 101.5)


def test_today_s_and_newer_events_come_back_as_they_are():
    for v in (1, 2, 99):
        raw = {"v": v, "kind": "push", "anything": [1]}
        assert upcast(raw, PLACE) == raw


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"v": -1},
        {"v": True, "kind": "push"},
        {"v": "1", "kind": "push"},
        {"v": 0, "kind": "push"},
        {"time": 1, "kind": "push"},
        {"time": 1, "kind": "push", "data": [1]},
        old(time="soon"),
        old(time=None),
        old(time=1e300),
        old(time=float("nan")),
        old(time=float("inf")),
    ],
    ids=repr,
)
def test_what_is_no_event_is_refused(raw: dict[str, Any]):
    with pytest.raises(ValueError, match="no event"):
        upcast(raw, Place(run="old", seq=0, first_time=1.7e9))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "utf-8"),
        ({"LC_ALL": "C"}, "ascii"),
        ({"LANG": "POSIX"}, "ascii"),
        ({"LC_ALL": "C.UTF-8"}, "utf-8"),
    ],
)
def test_a_locale_named_c_means_ascii(monkeypatch, environ, expected):
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert encoding(stream) == expected
