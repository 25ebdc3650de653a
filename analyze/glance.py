"""Tells a run from the head and the tail of its log, where those are as they should be; knows no database.

What a row says is what the view ``runs`` says of a log whose middle is whole. Whatever is out of the ordinary
(an older version, a line that is no event, a gap, a compressed file, metrics of the workers alone) is left to
a full reading.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import orjson

from analyze import cache
from analyze.fingerprint import Mark, settled
from analyze.lines import chunk_of
from analyze.reader import Reader
from analyze.source import STDIN, head, is_locked, stem
from schemas.events import VERSION

Row = dict[str, Any]
_HEAD_BYTES = 80 * 1024
_TAIL_BYTES = 192 * 1024
_FEWEST = 8
"""Fewer logs are glanced at as quickly as they are looked up."""
_MOST = 20_000
"""Logs that are remembered."""


class _Told(msgspec.Struct):
    """What a glance told of a log."""

    mark: Mark
    running: bool
    row: Row


class _Memory(msgspec.Struct):
    """What glances told, by the name of the log."""

    code: str
    told: dict[str, _Told]


def glanced(paths: Sequence[Path], place: Path | None = None) -> tuple[list[Row], list[Path]]:
    """Return a row for each log that a glance tells of, and the logs that have to be read.

    `place`: a folder where what glances told may be kept and found again.
    """
    if place is None or len(paths) < _FEWEST:
        return _glanced(paths, {})
    name = place / "glances.json"
    memory = cache.read(name, _Memory)
    told = memory.told if memory is not None and memory.code == cache.code() else {}
    before = dict(told)
    found = _glanced(paths, told)
    if told != before:
        newest = dict(list(told.items())[-_MOST:])
        with suppress(OSError, ValueError):
            cache.write(name, _Memory(cache.code(), newest))
    return found


def _glanced(paths: Sequence[Path], told: dict[str, _Told]) -> tuple[list[Row], list[Path]]:
    rows: list[Row] = []
    left: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for path in paths:
        try:
            row = None if path == STDIN else _glance(path, seen, told)
        except (OSError, ValueError, LookupError, TypeError):
            row = None
        if row is None:
            left.append(path)
        elif row:
            rows.append(row)
    # Two logs of one run may be one log, under two names or packed: whoever reads both sees.
    counted = Counter([*(row["run"] for row in rows), *map(_run, left)])
    again = {row["file"] for row in rows if counted[row["run"]] > 1}
    if again:
        rows = [row for row in rows if row["file"] not in again]
        unread = {*left, *map(Path, again)}
        left = [path for path in paths if path in unread]
    return rows, left


def _run(path: Path) -> str | None:
    """Return the run that the first line of a log names."""
    try:
        named = orjson.loads(head(path).partition(b"\n")[0])["run"]
    except (OSError, ValueError, LookupError, TypeError, zlib.error):
        return None
    return named if type(named) is str else None


def _glance(path: Path, seen: set[tuple[int, int]], told: dict[str, _Told]) -> Row | None:
    """Return what a log says; an empty row if it has been looked at under another name."""
    # What is read from a pipe that is opened and closed is gone.
    if not stat.S_ISREG(path.stat().st_mode):
        return None
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if (which := (status.st_dev, status.st_ino)) in seen:
            return {}
        running = is_locked(file.fileno())
        marked = settled(file.fileno())
        known = told.get(name := str(path.absolute()))
        if known and (known.mark, known.running) == (marked, running):
            seen.add(which)
            return {"file": str(path), "run_no": 0, **known.row}
        whole = status.st_size <= _HEAD_BYTES + _TAIL_BYTES
        if whole:
            pieces = [file.read(status.st_size)]
        else:
            begun = os.pread(file.fileno(), _HEAD_BYTES, 0).rpartition(b"\n")[0] + b"\n"
            tail = os.pread(file.fileno(), _TAIL_BYTES, status.st_size - _TAIL_BYTES).partition(b"\n")[2]
            pieces = [begun, tail]
    parts = [_events(piece, stem(path)) for piece in pieces]
    if not all(parts) or parts[0][0]["kind"] != "run_start" or parts[0][0]["seq"] != 0:
        return None
    if not _orderly(parts):
        return None
    row = _row(parts[0][0], parts[-1], running=running, whole=whole)
    if row is None:
        return None
    seen.add(which)
    if marked is not None:
        told.pop(name, None)
        told[name] = _Told(marked, running, row)
    return {"file": str(path), "run_no": 0, **row}


def _events(text: bytes, run: str) -> list[Row]:
    """Return the events of whole lines; none if one of them is no event of the version we write."""
    if not text.endswith(b"\n"):
        return []
    reader = Reader(run)
    _, rejects = reader.read(chunk_of(text[:-1]))
    if rejects or reader.newest_version != VERSION or reader.oldest_version != VERSION:
        return []
    return [orjson.loads(line) for line in text.splitlines()]


def _orderly(parts: Sequence[list[Row]]) -> bool:
    """Say whether all is of one run, nothing is missing within a part, and time never goes back."""
    run, t = parts[0][0]["run"], 0.0
    for part in parts:
        first = part[0]["seq"]
        for number, event in enumerate(part):
            if event["run"] != run or event["seq"] != first + number or event["t"] < t:
                return False
            t = event["t"]
    return True


def _row(start: Row, last: list[Row], *, running: bool, whole: bool) -> Row | None:
    """Return the row, or None where these events don't tell."""
    ends = [event for event in last if event["kind"] == "round_end"]
    done = [event["round"] for event in ends if event["outcome"] == "ok"]
    measured = [event for event in last if event["kind"] == "metric" and event["values"]]
    evaluated = [event for event in measured if event["rank"] is None]
    job = start["job"]
    if not whole and not (done and (evaluated or not job.get("evaluate"))):
        return None
    if measured and not evaluated:  # the mean over the workers is the views' to make
        return None
    name, value = next(iter(evaluated[-1]["values"].items())) if evaluated else (None, None)
    sessions = [event for event in last if event["kind"] in {"run_end", "run_resume"}]
    status = sessions[-1]["status"] if sessions and sessions[-1]["kind"] == "run_end" else None
    planned = job.get("rounds")
    return {
        "run": start["run"],
        "job_name": job.get("name"),
        "began": start["ts"],
        "status": status or ("running" if running else "crashed"),
        "rounds_done": max(done) + 1 if done else 0,
        "rounds_planned": planned if type(planned) is int else None,
        "total_nodes": (ends[-1] if ends else start)["total_nodes"],
        "last_survivors": ends[-1]["survivors"] if ends else None,
        "last_metric": name,
        "last_value": value,
    }
