"""Brings an event of an older version up to today's, one step a version; knows no file.

Version 0 was ``{"time", "kind", "rank", "data": {...}}`` with the kinds push, pull, exec, round_start,
round_end and aggregate, their fields inside ``data`` (``round`` was called ``round_num`` there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from schemas.events import VERSION

EPOCH_FROM = 1e8
"""A version 0 ``time`` above this is seconds since 1970, below it seconds since the run began."""


@dataclass(frozen=True, slots=True)
class Place:
    """What an old event does not say itself."""

    run: str
    """Id of the run, for versions without one: the file's name."""
    seq: int
    """Number of the event in its log, from 0."""
    first_time: float
    """``time`` of the first event of its log."""


def version_of(raw: Mapping[str, Any]) -> int | None:
    """Return the version of a decoded line, or None where it shows none."""
    v = raw.get("v")
    if isinstance(v, int) and not isinstance(v, bool):
        return v
    if v is None and "time" in raw and "kind" in raw and isinstance(raw.get("data"), Mapping):
        return 0
    return None


def _from_0(raw: Mapping[str, Any], place: Place) -> dict[str, Any]:
    data = dict(raw["data"])
    time = float(raw["time"])
    absolute = place.first_time >= EPOCH_FROM
    began = place.first_time if absolute else 0.0
    event: dict[str, Any] = {
        "v": 1,
        "run": place.run,
        "seq": place.seq,
        "t": round(max(time - began, 0.0), 6),
        "ts": datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if absolute else None,
        "kind": raw["kind"],
        "round": data.pop("round_num", data.pop("round", None)),
        "rank": raw.get("rank", data.pop("rank", None)),
    }
    unknown = {name: value for name, value in raw.items() if name not in {"time", "kind", "rank", "data"}}
    return {**unknown, **data, **event}


STEPS: dict[int, Callable[[Mapping[str, Any], Place], dict[str, Any]]] = {0: _from_0}
"""From each old version to the next."""


def steps(raw: Mapping[str, Any], place: Place) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the event in each version between its own and today's, with that version; none for a newer one.

    Raises:
        ValueError: it shows no version, or its version's own fields are not what they must be.
    """
    event, version = dict(raw), version_of(raw)
    if version is None or version < 0:
        raise ValueError("no event: neither 'v' nor the fields of version 0")
    while version < VERSION:
        try:
            event = STEPS[version](event, place)
        except (KeyError, TypeError, ValueError, OverflowError, OSError) as e:
            raise ValueError(f"no event of version {version}: {type(e).__name__}: {e}") from e
        version += 1
        yield version, event


def upcast(raw: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Return the event in today's version; one of a newer version comes back as it is.

    Raises:
        ValueError: as `steps` does.
    """
    event = dict(raw)
    for _, event in steps(raw, place):  # noqa: B007 - the last is what is wanted
        pass
    return event
