"""What is kept between looks changes no answer, whatever becomes of the logs and of what is kept."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import logs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyze import cache, fingerprint, glance, kept
from analyze.cli import run
from analyze.database import opened
from analyze.load import Loader
from analyze.tables import EVENT_TABLES, make_tables

LINES = [json.dumps(event).encode() + b"\n" for event in logs.demo().events]
TABLES = (*EVENT_TABLES, "store.logs", "store.runs", "store.rejects", "store.gaps")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep few logs too, of files that came to rest a moment ago; a file system's clock ticks oftener."""
    monkeypatch.setattr(kept, "FEWEST_LOGS", 1)
    monkeypatch.setattr(glance, "_FEWEST", 1)
    monkeypatch.setattr(fingerprint, "_SETTLED_NS", 30_000_000)
    monkeypatch.setenv("ROUNDLOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def rest(*paths: Path) -> None:
    """Wait until changes of the files would show in their times."""
    for path in paths:
        with path.open("rb") as file:
            while fingerprint.settled(file.fileno()) is None:
                pass


def rows(con: duckdb.DuckDBPyConnection) -> dict[str, list[Any]]:
    return {table: con.execute(f"FROM {table} ORDER BY ALL").fetchall() for table in TABLES}


def loaded(paths: list[Path]) -> dict[str, list[Any]]:
    with duckdb.connect() as con:
        make_tables(con)
        loader = Loader(con)
        for path in paths:
            loader.load(path)
        loader.finish()
        return rows(con)


def looked(place: Path, paths: list[Path]) -> dict[str, list[Any]]:
    found = kept.look(place, paths)
    assert found is not None
    with duckdb.connect() as con:
        found.attach(con)
        return rows(con)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note each log that is loaded, and from which line."""
    seen: list[str] = []
    load = Loader._load

    def noted(self: Loader, log: Any) -> None:
        begun = log.lines
        load(self, log)
        seen.append(f"{log.path.name} {begun}-{log.lines}")

    monkeypatch.setattr(Loader, "_load", noted)
    return seen


def test_an_unchanged_log_is_not_read_again_and_one_that_grew_from_where_it_ended(tmp_path, reads):
    place = cache.folder()
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, count in zip(paths, (50, 49), strict=True):
        path.write_bytes(b"".join(LINES[:count]))
    rest(*paths)
    first = looked(place, paths)
    assert looked(place, paths) == first
    assert reads == ["a.jsonl 0-50", "b.jsonl 0-49"]
    with paths[0].open("ab") as file:
        file.write(b"garbage\n" + b"".join(LINES[51:]))
    paths.append(tmp_path / "c.jsonl")
    paths[2].write_bytes(b"".join(LINES[:10]))
    reads.clear()
    assert looked(place, paths) == loaded(paths)
    assert reads[:2] == [f"a.jsonl 50-{len(LINES)}", "c.jsonl 0-10"]
    # Changed a moment ago: only its content says that it is the same.
    reads.clear()
    looked(place, paths)
    assert reads == []


def test_of_a_list_that_changed_in_the_middle_only_what_changed_is_read(tmp_path, reads):
    place = cache.folder()
    paths = [tmp_path / f"{name}.jsonl" for name in "abcd"]
    for path, count in zip(paths, (50, 40, 60, 55), strict=True):
        path.write_bytes(b"".join(LINES[:count]))
    looked(place, paths)
    new = tmp_path / "new.jsonl"
    new.write_bytes(b"".join(LINES[:10]).replace(b"demo", b"other") + b"bad\n")
    for now in (
        [paths[0], new, *paths[2:]],  # one is gone, another in its place
        [paths[3], new, paths[2]],  # in another order
        [new, *paths],
    ):
        want = loaded(now)
        reads.clear()
        assert looked(place, now) == want
        assert len(reads) < 2
    paths[1].write_bytes(b"bad\n" + b"".join(LINES[1:30]))  # not what it was, and not longer
    want = loaded(now)
    reads.clear()
    assert looked(place, now) == want
    assert reads == ["b.jsonl 0-30"]


def test_a_log_that_becomes_a_copy_of_another_counts_once(tmp_path):
    place = cache.folder()
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for count in (40, 60):
        paths[0].write_bytes(b"".join(LINES[:60]))
        paths[1].write_bytes(b"".join(LINES[:count]))
        assert looked(place, paths) == loaded(paths)
    with paths[0].open("ab") as file:
        file.write(LINES[60])
    assert looked(place, paths) == loaded(paths)


EDITS = (
    "grow",
    "cut",
    "flip",
    "flip quietly",
    "insert",
    "swap",
    "pack",
    "rewrite",
    "add",
    "remove",
    "reverse",
)


def edit(data: st.DataObject, paths: list[Path], new: Path) -> None:
    path = paths[data.draw(st.integers(0, len(paths) - 1))]
    text, status = path.read_bytes(), path.stat()
    at = data.draw(st.integers(0, max(len(text) - 1, 0)))
    match data.draw(st.sampled_from(EDITS)):
        case "grow":
            done = text.count(b"\n")
            more = b"".join(LINES[done : done + data.draw(st.integers(1, 30))])
            with path.open("ab") as file:
                file.write(more[: len(more) - data.draw(st.sampled_from([0, 0, 1, 40]))])
        case "cut":
            os.truncate(path, at)
        case "flip" if text:
            path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        case "flip quietly" if text:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([text[at] ^ 2]))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        case "insert":
            path.write_bytes(
                text[:at] + data.draw(st.sampled_from([b"x\n", LINES[3], b"\0" * 9])) + text[at:]
            )
        case "swap":
            path.write_bytes(b"".join(sorted(text.splitlines(keepends=True))))
        case "pack":
            path.write_bytes(gzip.compress(text))
        case "rewrite":
            path.write_bytes(b"".join(LINES[: data.draw(st.integers(0, 60))]).replace(b"demo", b"more"))
        case "add" if new not in paths:
            new.write_bytes(b"".join(LINES[:20]))
            paths.insert(data.draw(st.integers(0, len(paths))), new)
        case "reverse":
            paths.reverse()
        case "remove" if len(paths) > 1:
            paths.remove(path)


def spoil(data: st.DataObject, place: Path) -> None:
    files = sorted(place.iterdir())
    path = files[data.draw(st.integers(0, len(files) - 1))]
    text = path.read_bytes()
    at = data.draw(st.integers(0, len(text) - 1))
    match data.draw(st.sampled_from(["remove", "cut", "flip"])):
        case "remove":
            path.unlink()
        case "cut":
            os.truncate(path, at)
        case "flip":
            path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])


@settings(max_examples=3)
@given(st.data())
def test_whatever_happens_between_looks_the_answer_is_that_of_a_first_look(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("looks")
    place = folder / "cache"
    place.mkdir()
    paths = [folder / "a.jsonl", folder / "b.jsonl", folder / "d.jsonl"]
    for path, count in zip(paths, (40, 80, 30), strict=True):
        path.write_bytes(b"".join(LINES[:count]))
    for _ in range(3):
        if data.draw(st.booleans()):
            rest(*paths)
        assert looked(place, paths) == loaded(paths)
        told, left = glance.glanced(paths, place)
        assert (told, left) == glance.glanced(paths)
        for _ in range(data.draw(st.integers(0, 2))):
            edit(data, paths, folder / "c.jsonl")
        if data.draw(st.integers(0, 3)) == 0:
            spoil(data, place)


def test_commands_answer_alike_with_and_without_it(tmp_path, capsys):
    paths = [logs.demo().write(tmp_path), logs.big(3, 2).write(tmp_path)]
    rest(*paths)
    for command in (
        ["sql", "FROM segments ORDER BY ALL", *map(str, paths)],
        ["runs", *map(str, paths)],
        ["compare", *map(str, paths)],
    ):
        answers = []
        for options in ([], [], ["--no-cache"]):
            assert run([*command, *options]) == 0
            answers.append(capsys.readouterr())
        assert answers[0] == answers[1] == answers[2]
    assert (tmp_path / "cache" / "glances.json").exists()
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith(".")]


def test_without_it_nothing_is_kept(tmp_path):
    path = logs.demo().write(tmp_path)
    assert run(["sql", "SELECT 1", str(path), "--no-cache"]) == 0
    assert run(["runs", str(path), "--no-cache"]) == 0
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_had_is_done_without(tmp_path, monkeypatch):
    path = logs.demo().write(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROUNDLOG_CACHE", str(tmp_path / "file" / "cache"))
    assert cache.folder() is None
    assert run(["sql", "SELECT 1", str(path)]) == 0
    assert kept.look(tmp_path / "file", [path]) is None


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("ROUNDLOG_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache.folder() == tmp_path / ".cache" / "roundlog"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "roundlog"


def test_what_was_not_used_for_longest_goes_first(tmp_path, monkeypatch):
    for age, name in enumerate(["new", "old", "oldest", ".left-behind"]):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, ns=(0, 10**18 - age * 10**14))
    monkeypatch.setattr(cache, "LIMIT_BYTES", 250)
    cache.prune(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"]


def test_a_query_reaches_no_file_of_it(tmp_path):
    path = logs.demo().write(tmp_path)
    with opened([path], cache=cache.folder()) as database:
        database.fence()
        (name,) = database.rows("SELECT path FROM duckdb_databases() WHERE database_name = 'kept'")
        assert database.rows(f"FROM read_blob('{name['path']}')") == []
        with pytest.raises(duckdb.Error):
            database.rows(f"COPY (SELECT 1) TO '{name['path']}'")
        assert database.rows("SELECT count(*) AS n FROM events") == [{"n": len(LINES)}]


def test_whether_a_run_is_alive_is_not_kept(tmp_path):
    path = logs.demo(crash=True).write(tmp_path)
    rest(path)
    place = cache.folder()
    for alive in (False, True):
        with path.open("rb") as file:
            if alive:
                fcntl.flock(file, fcntl.LOCK_EX)
            with opened([path], cache=place) as database:
                (row,) = database.rows("SELECT status FROM runs")
        assert row["status"] == ("running" if alive else "crashed")


def test_two_analyzers_and_a_live_run_never_wait_for_each_other(tmp_path):
    place = cache.folder()
    path = tmp_path / "live.jsonl"
    path.write_bytes(LINES[0])
    seen: list[list[int]] = [[], []]

    def watch(mine: list[int]) -> None:
        while not mine or mine[-1] < len(LINES):
            with opened([path], cache=place) as database:
                (row,) = database.rows("SELECT lines, rejects, running FROM logs")
                (count,) = database.rows("SELECT count(*) AS n, max(seq) AS last FROM events")
            assert (row["rejects"], row["running"]) == (0, True)
            assert count == {"n": row["lines"], "last": row["lines"] - 1}
            mine.append(row["lines"])

    with path.open("ab", buffering=0) as log, ThreadPoolExecutor(2) as pool:
        fcntl.flock(log, fcntl.LOCK_EX)
        watching = [pool.submit(watch, mine) for mine in seen]
        for at in range(1, len(LINES), 60):
            log.write(b"".join(LINES[at : at + 60]))
            before = len(seen[0])
            while len(seen[0]) == before and not watching[0].done():
                os.sched_yield()
        for watcher in watching:
            watcher.result()
    assert all(mine == sorted(mine) for mine in seen)
