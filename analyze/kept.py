"""Keeps the tables of many or large logs, so that the next look at them needs no loading; asks no question.

For each list of logs there are ``<key>.json``, which says what the logs were, and
``<key>-<hash>.duckdb`` with their tables. Neither is ever changed: both are written under another name
and moved into place, so nobody waits for a lock. What is attached is a private hard link, gone from the
folder as soon as it is open: no query can reach it as a file. Whatever is not as it should be (a file's
mark, its content, the hash of the tables) is loaded anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import duckdb
import msgspec

from analyze import cache
from analyze.fingerprint import Hashed, mark, settled
from analyze.load import MEMORY_LIMIT, Loader
from analyze.log import ChangedError, Log
from analyze.source import is_locked
from analyze.tables import EVENT_TABLES, make_tables, make_view

FEWEST_LOGS = 8
FEWEST_BYTES = 8 << 20
"""Fewer and smaller logs are loaded as quickly as they are looked up."""


class Entry(msgspec.Struct):
    """What is kept of a list of logs."""

    code: str
    folder: str
    """Where the names of the logs begin."""
    digest: str
    """SHA-256 of the file with the tables."""
    logs: list[Log]

    def tables(self, place: Path, key: str) -> Path:
        """Return the file with the tables."""
        return place / f"{key}-{self.digest[:16]}.duckdb"


class Kept:
    """Tables in a file of one's own, and what its logs are."""

    def __init__(self, link: Path, logs: list[Log]) -> None:
        self._link = link
        self.logs = logs

    def attach(self, con: duckdb.DuckDBPyConnection) -> None:
        """Make the schema ``store`` as `load.make_tables` does, with these tables in it."""
        name = str(self._link).replace("'", "''")
        try:
            con.execute(f"ATTACH '{name}' AS kept (READ_ONLY)")
        finally:
            self._link.unlink(missing_ok=True)
        con.execute("CREATE SCHEMA store")
        for table in (*EVENT_TABLES, "store.runs", "store.rejects", "store.gaps"):
            con.execute(f"CREATE VIEW {table} AS FROM kept.{table}")
        make_view(con)
        # Whether a run is alive changes while its log stays as it is.
        con.execute("CREATE TABLE store.logs AS FROM kept.store.logs")
        running = [log.log_no for log in self.logs if log.running]
        con.execute("UPDATE store.logs SET running = list_contains(?::INTEGER[], log_no)", [running])


def look(place: Path, paths: Sequence[Path]) -> Kept | None:
    """Return the tables of these logs, kept or made and kept; None where that can't be or isn't worth it."""
    link = place / f".{uuid.uuid4().hex}.duckdb"
    try:
        if not _worth_it(paths):
            return None
        return Kept(link, _look(place, paths, link))
    except BaseException as e:
        with suppress(OSError):
            link.unlink(missing_ok=True)
        # Loading without us says what is wrong, if it is the logs.
        if isinstance(e, OSError | UnicodeError | duckdb.Error):
            return None
        raise


def _worth_it(paths: Sequence[Path]) -> bool:
    found = [path.stat() for path in paths]
    if not all(stat.S_ISREG(status.st_mode) for status in found):
        return False
    return len(found) >= FEWEST_LOGS or sum(status.st_size for status in found) >= FEWEST_BYTES


def _key(paths: Sequence[Path]) -> str:
    return hashlib.sha256("\0".join([cache.code(), str(Path.cwd()), *map(str, paths)]).encode()).hexdigest()


def _look(place: Path, paths: Sequence[Path], link: Path) -> list[Log]:
    key = _key(paths)
    name = place / f"{key}.json"
    entry = cache.read(name, Entry)
    if entry is not None and [log.path for log in entry.logs] == list(paths):
        again = [_again(log) for log in entry.logs]
        logs = [log for log in again if log is not None]
        if len(logs) == len(paths) and _linked(entry, place, key, link):
            cache.used(name, entry.tables(place, key))
            if [log.mark for log in logs] != [log.mark for log in entry.logs]:
                cache.write(name, msgspec.structs.replace(entry, logs=logs))
            return logs
    logs = _made(place, paths, link, *_base(place, paths))
    with link.open("rb") as file:
        digest = Hashed(file.fileno()).digest(link.stat().st_size)
    made = Entry(cache.code(), str(Path.cwd()), digest, logs)
    with suppress(FileExistsError):
        os.link(link, made.tables(place, key))
    cache.write(name, made)
    for old in place.glob(f"{key}-*.duckdb"):
        if old != made.tables(place, key):
            old.unlink(missing_ok=True)
    cache.prune(place)
    return logs


def _again(log: Log) -> Log | None:
    """Return a log that is what it was, as it is now."""
    with log.path.open("rb", buffering=0) as file:
        fd = file.fileno()
        running = is_locked(fd)
        if log.mark is not None and mark(fd) == log.mark:
            return replace(log, running=running)
        found = settled(fd)
        same = os.fstat(fd).st_size == log.size_bytes and Hashed(fd).digest(log.size_bytes) == log.digest
        return replace(log, running=running, mark=found) if same else None


def _linked(entry: Entry, place: Path, key: str, link: Path) -> bool:
    """Take a private link to the tables; say whether they are whole."""
    try:
        os.link(entry.tables(place, key), link)
        with link.open("rb") as file:
            if Hashed(file.fileno()).digest(link.stat().st_size) == entry.digest:
                return True
    except OSError:
        return False
    link.unlink(missing_ok=True)
    entry.tables(place, key).unlink(missing_ok=True)
    return False


def _base(place: Path, paths: Sequence[Path]) -> tuple[list[Log], Path | None]:
    """Return what is kept of a list of logs that shares the most with this one, and their tables."""
    wanted = set(paths)
    best: list[Log] = []
    most, tables, digest = 0, None, ""
    for name in place.glob("*.json"):
        entry = cache.read(name, Entry)
        if entry is None or (entry.code, entry.folder) != (cache.code(), str(Path.cwd())):
            continue
        logs = entry.logs
        if any(log.twin for log in logs):  # one of two that grows is a twin no more
            continue
        shared = sum(log.size_bytes for log in logs if log.path in wanted)
        # Taking out more than is left takes longer than loading that.
        if shared > most and 2 * shared >= sum(log.size_bytes for log in logs):
            best, most, tables, digest = logs, shared, entry.tables(place, name.stem), entry.digest
    if tables is None:
        return [], None
    try:
        with tables.open("rb") as file:
            whole = Hashed(file.fileno()).digest(tables.stat().st_size) == digest
    except OSError:
        whole = False
    return (best, tables) if whole else ([], None)


def _made(place: Path, paths: Sequence[Path], link: Path, base: list[Log], tables: Path | None) -> list[Log]:
    """Load the logs into a new file: what is new in them, if `base` are what is in the tables."""
    try:
        if tables is not None:
            shutil.copyfile(tables, link)
        with duckdb.connect(str(link)) as con:
            con.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
            if tables is None:
                make_tables(con)
            wanted = set(paths)
            again = {log.path: _again(log) for log in base if log.path in wanted}
            before = {log.path: again.get(log.path) or log for log in base}
            loader = Loader(con, list(before.values()), hashing=True)
            for path, log in before.items():
                if path not in again:
                    loader.forget(log)
            logs = [again.get(path) or _loaded(loader, path, before.get(path)) for path in paths]
            if base and any(log.twin for log in logs):
                raise ChangedError  # which of two is the twin depends on which is loaded first
            loader.finish(paths)
        return logs
    except BaseException as e:
        link.unlink(missing_ok=True)
        link.with_name(f"{link.name}.wal").unlink(missing_ok=True)
        # A log that is not what it was, or tables that are not what they should be: once more, from nothing.
        if tables is None or not isinstance(e, ChangedError | duckdb.Error):
            raise
    return _made(place, paths, link, [], None)


def _loaded(loader: Loader, path: Path, before: Log | None) -> Log:
    """Load a log, or what it has gained, or if it is not what it was but longer, all of it anew."""
    if before is None:
        return loader.load(path)
    try:
        return loader.go_on(before)
    except ChangedError:
        loader.forget(before)
        return loader.load(path)
