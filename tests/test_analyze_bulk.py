"""What is read in bulk is what the strict reader reads: the same events, the same rejects, on any input."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path

import duckdb
import logs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analyze import bulk, lines, load, reader
from analyze.load import Loader
from analyze.tables import make_tables
from schemas.events import BY_KIND, MAX_LINE_BYTES

GOOD = logs.demo().lines()
FLAT = [line for line in GOOD if json.loads(line)["kind"] in bulk._kinds()]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("bulk") / "x.jsonl"


@pytest.fixture(scope="module")
def con():
    with duckdb.connect() as con:
        make_tables(con)
        yield con


def stored(path: Path, con, text: bytes, *, in_bulk: bool, samples: int):
    """Return all that loading a text leaves in the database."""
    path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "BULK_LINES", 1 if in_bulk else 1 << 60)
        patch.setattr(bulk, "_FEWEST", 1)
        patch.setattr(bulk, "_SAMPLES", samples)
        loader = Loader(con)
        log = loader.load(path)
        loader.finish()
    # Runs are numbered as they are come upon, which is no part of what is read.
    named = "SELECT r.run AS of, t.* EXCLUDE (run_no) FROM store.{} t JOIN store.runs r USING (run_no)"
    events = con.execute(named.format("events") + " ORDER BY line").fetchall()
    rejects = con.execute("SELECT * FROM store.rejects ORDER BY line").fetchall()
    gaps = con.execute(named.format("gaps") + " ORDER BY ALL").fetchall()
    tables = con.execute("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'store'").fetchall()
    con.execute(";".join(f"DELETE FROM store.{table}" for (table,) in tables))
    return repr((events, rejects, gaps)), log.events, log.rejects, log.lines


def same(path: Path, con, text: bytes, samples: int = 8):
    """See that both ways of reading agree; the fewer samples, the more values are taken for unchanging."""
    found = stored(path, con, text, in_bulk=True, samples=samples)
    assert found == stored(path, con, text, in_bulk=False, samples=samples)


def test_the_writers_lines_are_taken_in_bulk():
    (chunk,) = lines.chunks(io.BytesIO(b"\n".join(FLAT) + b"\n"))
    taken = sum(len(places) for _, _, places in bulk.read(chunk.text, chunk.starts, chunk.ends))
    assert taken == len(FLAT)


def test_eight_letters_tell_all_kinds_apart():
    assert len(set(bulk._kinds().values())) == len(bulk._kinds())
    assert {"push_start", "push", "exec", "pull", "reject"} <= set(bulk._kinds()) <= set(BY_KIND)


def test_a_whole_log_is_the_same_either_way(path, con):
    same(path, con, logs.demo().text())


VALUES = (
    *("null", "true", "false", "0", "-0", "-1", "1", "01", "+1", "1.0", "2.7", "1e3", "1E999", "-1e999"),
    *("1e-999", "1e308", "9e15", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("123456789012345678901234567890", "0x10", "NaN", "Infinity", "-Infinity", '""', '"12"', '"ok"'),
    *(
        '"x\\u0000y"',
        '"\\ud800"',
        '"é"',
        '"a\\nb"',
        '"a":1',
        "[]",
        "[1]",
        "[1.5]",
        "[null]",
        "[true]",
        '["1"]',
    ),
    *("[1,]", "{}", '{"rank":null}', '{"a":{"error":null}}', "", " 1", "1 "),
)


AROUND = (b"@ @", b"\xef\xbb\xbf@", b"@\r", b" @", b"@,", b"\0\0\0", b"", b"{}", b"[1]", b"{@}", b"@{}")


@st.composite
def damaged(draw):
    """Return a line of a log with one thing wrong that a hand or a disk may do, or with nothing wrong."""
    line = draw(st.sampled_from(FLAT[:60]))
    event = json.loads(line)
    name = draw(st.sampled_from(list(event)))
    own = json.dumps(event[name], separators=(",", ":"), ensure_ascii=False).encode()
    said = b'"' + name.encode() + b'":' + own
    other = draw(st.sampled_from(FLAT[:60]))
    match draw(st.integers(0, 9)):
        case 0:
            return line.replace(said, b'"' + name.encode() + b'":' + draw(st.sampled_from(VALUES)).encode())
        case 1:
            return line.replace(said + b",", b"").replace(b"," + said, b"")
        case 2:
            return line.replace(said, said + b"," + said)
        case 3:
            more = draw(
                st.sampled_from(["later", "error", "rank", "overflow_path", "size_bytes", "kind", "v"])
            )
            value = draw(st.sampled_from(VALUES))
            return line[:-1] + f',"{more}":{value}'.encode() + b"}"
        case 4:
            at = draw(st.integers(0, len(line) - 1))
            return line[:at] + bytes([draw(st.integers(0, 255).filter(lambda b: b != 10))]) + line[at + 1 :]
        case 5:
            return line[: draw(st.integers(0, len(line)))]
        case 6:
            return draw(st.sampled_from(AROUND) | st.just(line + other)).replace(b"@", line)
        case 7:
            return line.replace(
                b'":', draw(st.sampled_from([b'" :', b'": ', b'"\t:'])), draw(st.integers(1, 3))
            )
        case 8:
            # One line without a field, so that another with a field too many could make up for it.
            return line.replace(b',"error":null', b"") + draw(st.sampled_from([b"", b"\n"])) + other
        case _:
            return line


@settings(max_examples=15, deadline=None)
@given(st.lists(damaged(), min_size=1, max_size=12), st.booleans(), st.sampled_from([1, 2, 8]))
@example([b"x" * MAX_LINE_BYTES, *FLAT[:3]], True, 8)
@example([FLAT[0].replace(b'"t":', b'"t":9e15,"u":')], True, 8)
@example([b"{}"] * 40, True, 8)
def test_any_damage_is_judged_alike(path, con, parts, ended, samples):
    same(path, con, b"\n".join(parts) + (b"\n" if ended else b""), samples)


def test_values_that_seem_not_to_change_do(path, con):
    """Lines that differ where the samples don't are read as what they say."""
    pushes = [line for line in FLAT if b'"kind":"push"' in line]
    lines_ = [pushes[i % len(pushes)] for i in range(40)]
    for at, (old, new) in enumerate(
        [
            (b'"error":null', b'"error":"cut"'),
            (b'"error":null', b'"error":"a, b"'),
            (b'"error":null', b'"error":"a\\"b"'),
            (b'"error":null', b'"error":"":"'),
            (b'"attempt":1', b'"attempt":11'),
            (b'"attempt":1', b'"attempt":"1"'),
            (b'"attempt":1', b'"attempt":1.0'),
            (b'"v":1', b'"v":2'),
            (b'"v":1', b'"v":true'),
            (b'"kind":"push"', b'"kind":"pull"'),
            (b'"kind":"push"', b'"kind":"push","kind":"push"'),
            (b"}", b" }"),
            (b"}", b',"later":1}'),
        ]
    ):
        assert old in lines_[at + 20], (old, lines_[at + 20])
        lines_[at + 20] = lines_[at + 20].replace(old, new)
    for samples in (1, 2, 8):
        same(path, con, b"\n".join(lines_), samples)


def test_a_file_that_can_not_be_read_to_its_end_leaves_nothing(con, tmp_path, monkeypatch):
    bad, good = tmp_path / "bad.jsonl", tmp_path / "good.jsonl"
    bad.write_bytes(logs.demo().text())
    good.write_bytes(logs.demo().text())
    monkeypatch.setattr(load, "PILE_ROWS", 5)

    def broken(file, **where):
        for chunk in lines.chunks(file, 4096, **where):
            yield chunk
            if chunk.first_line > 100:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    loader = Loader(con)
    with monkeypatch.context() as patch:
        patch.setattr(load, "chunks", broken)
        with pytest.raises(OSError, match="Input/output"):
            loader.load(bad)
    assert con.execute("SELECT count(*) FROM store.events").fetchone() == (0,)
    log = loader.load(good)
    loader.finish()
    found = con.execute("SELECT count(*), count(DISTINCT run_no) FROM store.events").fetchone()
    assert found == (log.events, 1)
    assert con.execute("SELECT log_no FROM store.runs").fetchall() == [(log.log_no,)]
