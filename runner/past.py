"""What a log says about a run that is to go on: reads it and replays it, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from runner.arrays import sha256_of
from runner.course import Begin, Course
from runner.decide import Verdict
from runner.errors import RunError
from schemas.events import VERSION

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(slots=True)
class Try:
    """One try of one round as the log has it; ``end`` is None for one that was cut short."""

    number: int
    session: int
    start: dict[str, Any]
    aggregate: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    evaluated: bool = False
    not_waited_for: set[int] = field(default_factory=set)

    @property
    def cut_short(self) -> bool:
        """Whether it came to no end, so that it is repeated and counts for nothing."""
        return self.aggregate is None and (self.end is None or self.end["outcome"] == "interrupted")


@dataclass(slots=True)
class Past:
    """A run so far.

    Attributes:
        run: its id.
        job: as run_start has it.
        params_path: the newest params, relative to the log.
        params_sha256: their hash.
        state_sha256: files of the optimizer's state, relative to the log, and their hashes.
        tries: of rounds, in order.
        seq: of the last event.
        t_us: its time.
        ts: when that was.
        session: how often the run was resumed.
        status: how it ended, if it says so.
        broken_offset: byte at which a broken tail begins; None where there is none.
        broken_bytes: its length.
        has_newline: whether the file ends in one.
    """

    run: str
    job: dict[str, Any]
    params_path: str | None
    params_sha256: str | None
    state_sha256: dict[str, str] = field(default_factory=dict)
    tries: list[Try] = field(default_factory=list)
    seq: int = -1
    t_us: int = 0
    ts: datetime = _EPOCH
    session: int = 0
    status: str | None = None
    broken_offset: int | None = None
    broken_bytes: int | None = None
    has_newline: bool = True


def verify(past: Past, log: Path) -> None:
    """See that the files a run goes on with are those the log tells of.

    Raises:
        RunError: one is not, or can't be read.
    """
    for name, expected in {str(past.params_path): past.params_sha256, **past.state_sha256}.items():
        path = log.parent / name
        try:
            sha256 = sha256_of(path)
        except OSError as e:
            raise RunError(f"{path}: can't read the params to go on with: {e.strerror}") from e
        if sha256 != expected:
            raise RunError(f"{path}: this is not the file the log tells of (its SHA-256 differs)")


def replay(course: Course, tries: list[Try]) -> tuple[Try, Verdict] | None:
    """Take a course through the rounds of a log.

    Returns:
        The last try and how it ended, if it was aggregated and then cut short; else None.

    Raises:
        RunError: the rounds are not those the course would have taken.
    """
    session, last = 0, None
    for tried in tries:
        if tried.session != session:
            session = tried.session
            course.resumed()
        begin = course.next()
        if not isinstance(begin, Begin) or begin.number != tried.number:
            raise RunError(f"the log's round {tried.number} doesn't follow from what it has before")
        last = None
        if tried.cut_short:
            course.interrupted += 1
            continue
        verdict = _verdict(tried, begin, course.quorum)
        reason = None if tried.aggregate is not None else str(tried.end and tried.end["reason"])
        end = tried.end or {}
        course.ended(verdict, reason, end.get("delivered_s", end.get("workers_s")))
        last = (tried, verdict) if tried.end is None else None
    course.resumed()
    return last


def _verdict(tried: Try, begin: Begin, quorum: int) -> Verdict:
    ranks = set(begin.shards)
    if tried.end is not None:
        failed, late = set(tried.end["failed"]), set(tried.end["late"])
    else:
        late = tried.not_waited_for
        failed = ranks - late - set(tried.aggregate["ranks"] if tried.aggregate else ())
    survivors = ranks - failed - late
    return Verdict(tuple(sorted(survivors)), tuple(sorted(failed)), tuple(sorted(late)), quorum)


def read(log: Path) -> Past:
    """Read a log that is to be gone on with.

    A broken tail, as a crash leaves it, is passed over; damage before the last good event is not.

    Raises:
        RunError: it can't be read, isn't a log of this version, or is damaged in its middle.
    """
    try:
        data = log.read_bytes()
    except OSError as e:
        raise RunError(f"{log}: can't read the log: {e.strerror}") from e
    past: Past | None = None
    offset, broken, line_number = 0, None, 0
    for line_number, line in enumerate(data.splitlines(keepends=True), start=1):
        event = _event(line)
        follows = event is not None and event["seq"] == (0 if past is None else past.seq + 1)
        if event is not None and follows and event.get("broken_offset") == broken:
            broken = None  # a torn tail that an earlier resume has closed and told of
        if event is None:
            broken = offset if broken is None else broken
        elif broken is not None or not follows:
            raise RunError(
                f"{log}: the log is damaged before line {line_number}, not only at its end; "
                f"look at it with: analyze sql 'FROM rejects' {log}"
            )
        elif past is None:
            past = _begin(log, event)
            _take(past, event)
        else:
            _take(past, _whole(log, event))
        offset += len(line)
    if past is None:
        raise RunError(f"{log}: nothing to resume: no whole event is in it; start the job anew")
    if broken is not None:
        past.broken_offset, past.broken_bytes = broken, len(data) - broken
    past.has_newline = data.endswith(b"\n")
    return past


def _event(line: bytes) -> dict[str, Any] | None:
    """Return a whole event, or None for a broken line."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    whole = isinstance(event, dict) and isinstance(event.get("seq"), int)
    timed = whole and isinstance(event.get("t"), int | float) and isinstance(event.get("ts"), str)
    return event if timed else None


def _begin(log: Path, event: dict[str, Any]) -> Past:
    if event.get("v") != VERSION or event.get("kind") != "run_start":
        raise RunError(f"{log}: not a log this version can resume: it has to begin with a run_start of v 1")
    job = _whole(log, event)["job"]
    return Past(event["run"], job, event["params_path"], event["params_sha256"])


def _whole(log: Path, event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as it was before it was shortened to fit a line."""
    if not event.get("overflow_path"):
        return event
    try:
        whole = orjson.loads((log.parent / event["overflow_path"]).read_bytes())
    except (OSError, orjson.JSONDecodeError) as e:
        raise RunError(f"{log}: can't read the rest of an event in {event['overflow_path']}") from e
    return {**event, **whole}


def _take(past: Past, event: dict[str, Any]) -> None:
    past.seq, past.t_us = event["seq"], round(event["t"] * 1e6)
    past.ts = datetime.fromisoformat(event["ts"])
    past.status = None
    match event["kind"]:
        case "run_end":
            past.status = event["status"]
        case "run_resume":
            past.session = event["session"]
        case "round_start":
            past.tries.append(Try(event["round"], past.session, event))
        case "round_end":
            past.tries[-1].end = event
        case "aggregate" if event["error"] is None:
            past.tries[-1].aggregate = event
            past.params_path, past.params_sha256 = event["params_path"], event["params_sha256"]
            past.state_sha256 = event.get("state_sha256") or {}
        case "metric" if event["rank"] is None:
            past.tries[-1].evaluated = True
        case "reject" if event["reason"] == "late":
            past.tries[-1].not_waited_for.add(event["rank"])
