"""What a live log doesn't say yet: that what is open has gone on since its last event; knows no output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from analyze.database import parsed
from analyze.gantt import Bar, Chart

Row = MutableMapping[str, Any]
_IDLE = ("wait", "dead", "rejected")


def silent_us(run: Mapping[str, Any], now: datetime) -> int:
    """Return for how many microseconds a running run has written nothing; 0 for others.

    A simulated one has a clock of its own, and so may have the machine that runs it: never below 0.
    """
    if run["status"] != "running" or run["last_event"] is None:
        return 0
    job = parsed(run["job"])
    if isinstance(job, dict) and job.get("sim"):
        return 0
    try:
        last = datetime.fromisoformat(run["last_event"])
    except ValueError:
        return 0
    last = last if last.tzinfo else last.replace(tzinfo=UTC)
    return max(round((now - last).total_seconds() * 1e6), 0)


def extend(run: Row, rounds: Iterable[Row], open_work: Iterable[Row], by_us: int) -> None:
    """Let the run, the round that is open and what is open in it last so much longer."""
    if not by_us:
        return
    longest_us: dict[tuple[int, int], int] = {}
    for work in open_work:
        work["so_far_s"] += by_us / 1e6
        if work["phase"] == "train":
            tried = work["round"], work["attempt"]
            longest_us[tried] = max(longest_us.get(tried, 0), round(work["so_far_s"] * 1e6))
    for row in rounds:
        if row["outcome"] == "open":
            row["end_us"] += by_us
            _longer(row, "duration", by_us)
            _longer(run, "rounds", by_us)
            more_us = longest_us.get((row["round"], row["attempt"]), 0) - (row["longest_train_us"] or 0)
            _longer(row, "longest_train", max(more_us, 0))
            _longer(run, "train", max(more_us, 0))
    _longer(run, "duration", by_us)


def extend_charts(charts: Iterable[Chart], by_us: int) -> None:
    """Let the bars that reach to the last event of an open round reach on; its chart was extended before."""
    for chart in charts:
        if chart.outcome != "open" or not by_us:
            continue
        last_us = chart.end_us - by_us
        for lane in chart.lanes:
            goes_on = [bar for bar in lane.bars if bar.open]
            if not goes_on and lane.rank is not None:
                idle = [bar for bar in lane.bars if bar.end_us >= last_us and bar.state in _IDLE]
                goes_on = idle or [Bar("wait", last_us, last_us)]
            others = [bar for bar in lane.bars if bar not in goes_on]
            lane.bars = [*others, *(replace(bar, end_us=chart.end_us) for bar in goes_on)]


def _longer(row: Row, name: str, by_us: int) -> None:
    row[f"{name}_us"] = (row[f"{name}_us"] or 0) + by_us
    row[f"{name}_s"] = row[f"{name}_us"] / 1e6
