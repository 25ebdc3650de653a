"""Makes the self-contained page of a run: no script, no network, everything from the log escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from analyze.gantt import IDLE, Chart, ticks
from analyze.terminal import Column
from analyze.told import Table
from schemas.text import duration, number, printable, size

MOST_BARS = 6000
"""More pieces than this are drawn as one path a lane and state, without a title each."""
LABEL_WIDTH = 70
NARROWEST = 1180
"""Width of the timeline in pixels, where the page can shrink it to fit."""


def _shown(text: Any, *, lines: bool = False) -> str:
    """Return text of a log without control and direction characters."""
    if lines:
        return "\n".join(printable(line) for line in str(text).split("\n"))
    return printable(str(text))


def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["p"] = _shown
    return environment


def page(context: Mapping[str, Any]) -> str:
    """Return the page."""
    here = files("analyze")
    style = (here / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = _environment().from_string((here / "page.html.jinja").read_text(encoding="utf-8"))
    return template.render(**context, style=style, style_sha256=digest)


def data_uri(svg: bytes) -> str:
    """Return an SVG as an address of itself."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def timeline(charts: Sequence[Chart]) -> dict[str, Any]:
    """Return what the template draws the timeline from."""
    ranks = sorted({lane.rank for chart in charts for lane in chart.lanes if lane.rank is not None})
    rows: dict[int | None, int] = {None: 0} | {rank: i + 1 for i, rank in enumerate(ranks)}
    pitch = 22 if len(rows) <= 40 else 12 if len(rows) <= 200 else 5
    began = min((chart.start_us for chart in charts), default=0)
    ended = max((chart.end_us for chart in charts), default=1)
    width = min(max(NARROWEST, LABEL_WIDTH + 55 * len(charts)), 12000)
    scale = (width - LABEL_WIDTH - 4) / max(ended - began, 1)

    def x(us: int) -> float:
        return round(LABEL_WIDTH + (us - began) * scale, 2)

    bottom = 20 + pitch * len(rows)
    every_label = 1 if pitch >= 12 else 4
    many = sum(len(lane.bars) for chart in charts for lane in chart.lanes) > MOST_BARS
    at, decimals = ticks(ended / 1e6, max((width - LABEL_WIDTH) // 90, 1))
    return {
        "width": width,
        "fits": width == NARROWEST,
        "height": bottom + 22,
        "left": LABEL_WIDTH,
        "bottom": bottom,
        "rounds": _round_marks(charts, x),
        "labels": [
            (20 + pitch * row + pitch * 0.68, "scheduler" if rank is None else f"w{rank}")
            for rank, row in rows.items()
            if row == 0 or (row - 1) % every_label == 0
        ],
        "ticks": [(x(round(tick * 1e6)), f"{tick:.{decimals}f} s") for tick in at if tick * 1e6 >= began],
        "bars": [] if many else _bars(charts, rows, pitch, x),
        "paths": _paths(charts, rows, pitch, x) if many else [],
    }


def _round_marks(charts: Sequence[Chart], x: Any) -> list[tuple[float, str]]:
    marks = []
    free = 0.0
    for chart in charts:
        at = x(chart.start_us)
        name = f"round {chart.label}"
        short = name if x(chart.end_us) - at > 7 * len(name) else f"{chart.round}"
        fits = at >= free
        marks.append((at, short if fits else ""))
        if fits:
            free = at + 7 * len(short) + 6
    return marks


def _place(bar: Any, row: int, pitch: int, x: Any) -> tuple[float, float, float, float]:
    thin = bar.state in IDLE
    height = pitch * (0.3 if thin else 0.8)
    left = x(bar.start_us)
    wide = max(round(x(bar.end_us) - left, 2), 0 if thin else 0.8)
    return left, round(20 + pitch * row + (pitch - height) / 2, 2), wide, round(height, 2)


def _bars(
    charts: Sequence[Chart], rows: Mapping[int | None, int], pitch: int, x: Any
) -> list[dict[str, Any]]:
    made = []
    for chart in charts:
        for lane in chart.lanes:
            for bar in lane.bars:
                left, top, wide, high = _place(bar, rows[lane.rank], pitch, x)
                what = bar.state if bar.phase in (None, bar.state) else f"{bar.phase} ({bar.state})"
                seconds = duration((bar.end_us - bar.start_us) / 1e6)
                title = (
                    f"{lane.label}, round {chart.label}: {what}{' (open)' if bar.open else ''} {seconds}, "
                    f"from {bar.start_us / 1e6:.3f} s to {bar.end_us / 1e6:.3f} s"
                )
                made.append(
                    {
                        "state": bar.state,
                        "open": bar.open,
                        "x": left,
                        "y": top,
                        "w": wide,
                        "h": high,
                        "title": title,
                    }
                )
    return made


def _paths(
    charts: Sequence[Chart], rows: Mapping[int | None, int], pitch: int, x: Any
) -> list[dict[str, Any]]:
    drawn: dict[tuple[int | None, str], list[str]] = {}
    for chart in charts:
        for lane in chart.lanes:
            for bar in lane.bars:
                left, top, wide, high = _place(bar, rows[lane.rank], pitch, x)
                path = f"M{left:g} {top:g}h{wide:g}v{high:g}h-{wide:g}z"
                drawn.setdefault((lane.rank, bar.state), []).append(path)
    return [
        {
            "state": state,
            "d": "".join(paths),
            "title": f"{'scheduler' if rank is None else f'w{rank}'}: {state}",
        }
        for (rank, state), paths in drawn.items()
    ]


def figures(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures at the head of the page: value and what it is."""
    planned = run["rounds_planned"]
    made = [
        (f"{run['rounds_done']}" + ("" if planned is None else f"/{planned}"), "rounds done"),
        (str(run["total_nodes"] if run["total_nodes"] is not None else "?"), "workers"),
        (duration(run["duration_s"]), "in all"),
        (size(run["bytes_up"] or 0), "bytes up"),
        (size(run["bytes_down"] or 0), "bytes down"),
        (f"{(run['failures'] or 0)} / {(run['rejected'] or 0)}", "failed spans / rejected weights"),
    ]
    if run["last_metric"] is not None:
        made.insert(1, (number(run["last_value"]), f"last {run['last_metric']}"))
    return made


def workers_table(workers: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row a worker."""
    columns = [
        Column("worker"),
        Column("address"),
        Column("state"),
        Column("survived", right=True),
        Column("failed", right=True),
        Column("rejected", right=True),
        Column("absent", right=True),
        *(Column(f"{name} s", right=True) for name in ("push", "train", "pull", "wait", "dead")),
        Column("bytes up", right=True),
        Column("bytes down", right=True),
    ]
    rows = [
        [
            f"w{w['rank']}",
            w["address"] or "-",
            w["state"],
            f"{w['survived']}/{w['rounds']}",
            *(str(w[name]) for name in ("failed", "rejected", "absent")),
            *(
                "-" if w[f"{n}_s"] is None else f"{w[f'{n}_s']:.3f}"
                for n in ("push", "train", "pull", "wait", "dead")
            ),
            size(w["bytes_up"]),
            size(w["bytes_down"]),
        ]
        for w in workers
    ]
    return Table(columns, rows)


def pretty(job: Any) -> str:
    """Return JSON for people."""
    return "" if job is None else json.dumps(job, indent=2, ensure_ascii=False)
