"""Draws the pictures of a run as SVG and PNG from one figure each; takes rows and charts, knows no database.

The same rows give the same SVG, byte for byte.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator

from analyze.gantt import IDLE, Chart, states_of
from analyze.told import metric_names
from schemas.text import printable

COLOURS = {
    "push": "#56b4e9",
    "train": "#0072b2",
    "pull": "#009e73",
    "aggregate": "#e69f00",
    "eval": "#cc79a7",
    "dead": "#d55e00",
    "rejected": "#d55e00",
    "wait": "#d9d9d9",
}
"""Told apart by people who see colours differently (Okabe and Ito)."""

HATCHES = {"dead": "xxxx"}


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of paper and ink."""

    paper: str
    ink: str
    faint: str
    wait: str


LIGHT = Theme(paper="#ffffff", ink="#1f2328", faint="#d0d7de", wait="#d9d9d9")
DARK = Theme(paper="#161b22", ink="#e6edf3", faint="#3d444d", wait="#4a515a")

_RC: Any = {
    "svg.hashsalt": "roundlog",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,
    "axes.formatter.useoffset": False,
}


def _colour(state: str, theme: Theme) -> str:
    return theme.wait if state == "wait" else COLOURS[state]


def _new(theme: Theme, title: str, width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _ink(axes, theme)
    axes.set_title(printable(title), loc="left", color=theme.ink, fontsize=10, fontweight="bold", pad=22)
    return figure, axes


def _ink(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.ink, which="both")
    for spine in axes.spines.values():
        spine.set_color(theme.faint)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)


def _legend(axes: Axes, theme: Theme) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=7,
        frameon=False,
        labelcolor=theme.ink,
        fontsize=8,
        borderaxespad=0.1,
        handlelength=1.3,
        columnspacing=1.2,
    )


def _handles(states: Sequence[str], theme: Theme) -> list[Patch]:
    return [
        Patch(facecolor=_colour(s, theme), hatch=HATCHES.get(s), edgecolor=theme.paper, linewidth=0, label=s)
        for s in states
    ]


def timeline(charts: Sequence[Chart], title: str, theme: Theme = LIGHT) -> Figure:
    """Draw every worker's time over the run."""
    ranks = sorted({lane.rank for chart in charts for lane in chart.lanes if lane.rank is not None})
    rows = {None: 0} | {rank: i + 1 for i, rank in enumerate(ranks)}
    seconds = max((chart.end_us for chart in charts), default=1) / 1e6
    step = 0.34 if len(rows) <= 24 else 0.16 if len(rows) <= 80 else 12.8 / len(rows)
    figure, axes = _new(theme, title, 11, 1.5 + step * len(rows))
    _draw_bars(axes, charts, rows, theme, seconds / (11 * 72))
    axes.set_ylim(len(rows) - 0.45, -0.55)
    every = max(1, -(-len(rows) // 40))
    shown = [rank for i, rank in enumerate(rows) if i == 0 or (i - 1) % every == 0]
    axes.set_yticks([rows[rank] for rank in shown], ["scheduler" if r is None else f"w{r}" for r in shown])
    began = min((chart.start_us for chart in charts), default=0) / 1e6
    axes.set_xlim(min(began, seconds), seconds if seconds > began else began + 1)
    axes.set_xlabel("seconds since the run began")
    _mark_rounds(axes, charts, theme)
    figure.legend(
        handles=_handles(states_of(charts), theme),
        loc="outside lower left",
        ncols=7,
        frameon=False,
        labelcolor=theme.ink,
        fontsize=8,
        handlelength=1.3,
        columnspacing=1.2,
    )
    return figure


def _draw_bars(
    axes: Axes, charts: Sequence[Chart], rows: Mapping[int | None, int], theme: Theme, least: float
) -> None:
    """Draw all bars of a state as one outline, so that a large run stays a small file."""
    boxes: dict[str, list[tuple[float, float, float]]] = {}
    for chart in charts:
        for lane in chart.lanes:
            for bar in lane.bars:
                wide = max((bar.end_us - bar.start_us) / 1e6, least if bar.state not in IDLE else 0)
                boxes.setdefault(bar.state, []).append((bar.start_us / 1e6, rows[lane.rank], wide))
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    for state in ("wait", "rejected", "train", "dead", "push", "pull", "eval", "aggregate"):
        half = 0.16 if state in IDLE else 0.38
        points = [
            corner
            for x, y, w in boxes.get(state, ())
            for corner in ((x, y - half), (x + w, y - half), (x + w, y + half), (x, y + half), (x, y - half))
        ]
        if points:
            outline = Outline(points, codes * (len(points) // 5))
            axes.add_patch(
                PathPatch(
                    outline,
                    facecolor=_colour(state, theme),
                    edgecolor=theme.paper if state in HATCHES else "none",
                    hatch=HATCHES.get(state),
                    linewidth=0,
                )
            )


def _mark_rounds(axes: Axes, charts: Sequence[Chart], theme: Theme) -> None:
    every = max(1, -(-len(charts) // 20))
    for chart in charts:
        axes.axvline(chart.start_us / 1e6, color=theme.faint, linewidth=0.6, zorder=0)
    top = axes.secondary_xaxis("top")
    some = charts[::every]
    top.set_xticks(
        [(chart.start_us + chart.end_us) / 2e6 for chart in some],
        [
            f"{'' if i else 'round '}{chart.round}" + (f".{chart.attempt}" if chart.tries > 1 else "")
            for i, chart in enumerate(some)
        ],
    )
    top.tick_params(colors=theme.ink, length=0, pad=0, labelsize=7)
    top.spines["top"].set_visible(False)
    axes.set_title(
        axes.get_title(loc="left"), loc="left", color=theme.ink, fontsize=10, fontweight="bold", pad=20
    )


def _by_round(rounds: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[str]]:
    places = [r["nth"] for r in rounds]
    names = [f"{r['round']}" + (f".{r['attempt']}" if r["tries"] > 1 else "") for r in rounds]
    return places, names


def _round_axis(axes: Axes, rounds: Sequence[Mapping[str, Any]]) -> None:
    places, names = _by_round(rounds)
    every = max(1, -(-len(places) // 25))
    axes.set_xticks(places[::every], names[::every])
    axes.set_xlabel("round")
    if places:
        axes.set_xlim(places[0] - 0.6, places[-1] + 0.6)


def metrics(
    rounds: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Any]], title: str, theme: Theme = LIGHT
) -> Figure:
    """Draw each metric over the rounds, one below the other; the evaluation's drawn through."""
    names = list(dict.fromkeys(name for _, name in metric_names(values)))[:8]
    figure = Figure(figsize=(8, 1.0 + 2.2 * max(len(names), 1)), layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    grid = figure.subplots(max(len(names), 1), 1, squeeze=False)
    for axes, name in zip(grid[:, 0], names or ["no metric was reported"], strict=True):
        _ink(axes, theme)
        axes.set_title(printable(name), loc="left", color=theme.ink, fontsize=10, fontweight="bold", pad=18)
        for source, colour, style in (("evaluation", "#0072b2", "-"), ("workers", "#e69f00", "--")):
            mine = sorted(
                (m["nth"], m["value"]) for m in values if m["name"] == name and m["source"] == source
            )
            if mine:
                said = source if source == "evaluation" else "mean of the workers"
                x, y = zip(*mine, strict=True)
                mark = "o" if len(mine) <= 40 else None
                axes.plot(x, y, style, color=colour, label=said, marker=mark, markersize=4, linewidth=1.5)
        axes.grid(visible=True, color=theme.faint, linewidth=0.5)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        _round_axis(axes, rounds)
        if names:
            _legend(axes, theme)
    figure.suptitle(printable(title), color=theme.ink, fontsize=10, x=0.01, ha="left")
    return figure


def where_time_went(
    phases: Sequence[Mapping[str, Any]],
    rounds: Sequence[Mapping[str, Any]],
    title: str,
    theme: Theme = LIGHT,
) -> Figure:
    """Draw a bar a round: the mean worker's time by what it did, adding up to the round's duration."""
    figure, axes = _new(theme, title, 8, 3.6)
    places = [p["nth"] for p in phases]
    bottom = [0.0] * len(places)
    states = ("push", "train", "pull", "wait", "aggregate", "eval", "dead")
    for state in states:
        heights = [p[f"{state}_us"] / 1e6 / max(p["total_nodes"], 1) for p in phases]
        if state == "eval" and not any(heights):
            continue
        axes.bar(
            places,
            heights,
            width=0.8,
            bottom=bottom,
            color=_colour(state, theme),
            hatch=HATCHES.get(state),
            edgecolor=theme.paper,
            linewidth=0,
            label=state,
        )
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    axes.set_ylabel("seconds (mean over workers)")
    axes.grid(visible=True, axis="y", color=theme.faint, linewidth=0.5)
    axes.set_axisbelow(True)
    _round_axis(axes, rounds)
    _legend(axes, theme)
    return figure


def noted(make: Callable[[Theme], Figure], note: str) -> Callable[[Theme], Figure]:
    """Return what draws the same figure with a note above it."""

    def draw(theme: Theme) -> Figure:
        figure = make(theme)
        lines = textwrap.wrap(printable(note), int(figure.get_figwidth() * 14))
        width, height = figure.get_size_inches()
        room = 0.18 * len(lines) + 0.08
        figure.set_size_inches(width, height + room)
        if title := figure.get_suptitle():  # makes its own room
            text = "\n".join([*lines, title])
            figure.suptitle(text, color=theme.ink, fontsize=10, x=0.01, ha="left")
            return figure
        figure.set_layout_engine("constrained", rect=(0, 0, 1, height / (height + room)))
        figure.text(
            0.01,
            1 - 0.05 / height,
            "\n".join(lines),
            va="top",
            fontsize=8,
            color=theme.ink,
            fontweight="bold",
        )
        return figure

    return draw


def rendered(figure: Figure, form: str) -> bytes:
    """Return the figure as ``svg`` or ``png``."""
    out = io.BytesIO()
    with mpl.rc_context(_RC), warnings.catch_warnings():
        # A name in a script the font lacks is drawn as boxes; that is no news to the reader of a picture.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        if form == "svg":
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "roundlog"})
        else:
            figure.savefig(out, format="png", dpi=150, metadata={"Software": "roundlog"})
    return out.getvalue()


def in_style(draw: Any, *arguments: Any) -> Any:
    """Call a function of this module with our settings in force."""
    with mpl.rc_context(_RC):
        return draw(*arguments)
