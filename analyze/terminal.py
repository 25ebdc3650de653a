"""Draws charts and tables as lines of text; knows no database and no command line."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import click

from analyze.gantt import Chart, cells, states_of, ticks
from analyze.glyphs import COLOURS
from schemas.text import duration, printable

SHORTEST = 12
"""Text is not shortened to fewer cells than this to make a table fit."""


@dataclass(frozen=True, slots=True)
class Paper:
    """What is written on."""

    width: int
    glyphs: Mapping[str, str]
    colour: bool = False
    wrap: bool = False
    """Long sentences are folded to the width; in a pipe a line stays a line."""

    @property
    def limit(self) -> int | None:
        """Width that a table must fit; none in a pipe, where it is whole."""
        return self.width if self.wrap else None

    def paint(self, text: str, **style: bool | str) -> str:
        """Return the text in colour where there is colour."""
        return click.style(text, **style) if self.colour else text  # type: ignore[arg-type]


def shown_width(text: str) -> int:
    """Return how many cells a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return the text with blanks to the width, on its left where `right`."""
    blanks = " " * max(width - shown_width(text), 0)
    return blanks + text if right else text + blanks


def legend(states: Sequence[str], paper: Paper) -> Iterator[str]:
    """Yield the lines of the legend."""
    line, taken = "", 0
    for state in states:
        size = len(state) + 2
        if taken and taken + 2 + size > paper.width:
            yield line
            line, taken = "", 0
        if taken:
            line, taken = line + "  ", taken + 2
        line += f"{paper.paint(paper.glyphs[state], fg=COLOURS[state])} {state}"
        taken += size
    yield line


def gantt(charts: Sequence[Chart], paper: Paper, *, workers: int) -> Iterator[str]:
    """Yield the lines of all charts with one legend in front."""
    yield from legend(states_of(charts), paper)
    label = max((len(lane.label) for chart in charts for lane in chart.lanes[: workers + 1]), default=9)
    for chart in charts:
        yield ""
        yield from _chart(chart, paper, label, workers)


def _heading(chart: Chart) -> str:
    survivors = "?" if chart.survivors is None else chart.survivors
    ended = "" if chart.outcome == "ok" else f"  {chart.outcome}"
    seconds = duration((chart.end_us - chart.start_us) / 1e6)
    return f"round {chart.label}  {survivors}/{chart.total_nodes} survivors  {seconds}{ended}"


def _chart(chart: Chart, paper: Paper, label: int, workers: int) -> Iterator[str]:
    heading = textwrap.wrap(_heading(chart), paper.width)
    yield from (paper.paint(line, bold=True) for line in heading)
    width = max(paper.width - label - 1, 1)
    for lane in chart.lanes[: workers + 1]:
        row = cells(lane.bars, chart.start_us, chart.end_us, width)
        painted = "".join(
            " " * len(list(run))
            if state is None
            else paper.paint(paper.glyphs[state] * len(list(run)), fg=COLOURS[state])
            for state, run in groupby(row)
        )
        yield f"{lane.label:<{label}} {painted}".rstrip()
    if (left_out := len(chart.lanes) - workers - 1) > 0:
        yield from textwrap.wrap(f"and {left_out} more workers, not shown", paper.width)
    yield from (" " * (label + 1) + line for line in _axis(chart, paper, width))


def _axis(chart: Chart, paper: Paper, width: int) -> Iterator[str]:
    seconds = (chart.end_us - chart.start_us) / 1e6
    at, decimals = ticks(seconds, max(width // 12, 1))
    rule = [paper.glyphs["axis"]] * width
    text = [" "] * width
    free = 0
    for tick in at:
        place = min(round(tick / seconds * width), width - 1) if seconds else 0
        rule[place] = paper.glyphs["tick"]
        name = f"{tick:.{decimals}f} s"
        begin = max(min(place, width - len(name)), 0)
        if begin >= free and begin + len(name) <= width:
            text[begin : begin + len(name)] = name
            free = begin + len(name) + 2
    yield paper.paint("".join(rule), fg="bright_black")
    yield "".join(text).rstrip()


@dataclass(slots=True)
class Column:
    """A column of a table."""

    head: str
    """Its lines are separated by newlines."""
    right: bool = False
    wrap: bool = False
    """Its values may be folded where the table is wider than the paper."""


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    footer: Sequence[str] | None = None,
) -> Iterator[str]:
    """Yield the lines of a table; no value is ever cut off, wide ones are folded."""
    body = [[printable(value) for value in row] for row in (*rows, *([footer] if footer else []))]
    heads = [column.head.split("\n") for column in columns]
    widths = [
        max([shown_width(line) for line in head] + [shown_width(row[i]) for row in body])
        for i, head in enumerate(heads)
    ]
    if width is not None:
        _squeeze(columns, heads, widths, width)
    tall = max((len(head) for head in heads), default=0)
    for i in range(tall):
        yield _row([head[i] if i < len(head) else "" for head in heads], columns, widths)
    yield "  ".join("-" * size for size in widths)
    for n, row in enumerate(body):
        if footer and n == len(body) - 1:
            yield "  ".join("-" * size for size in widths)
        folded = [_fold(value, widths[i]) for i, value in enumerate(row)]
        for k in range(max(map(len, folded), default=0)):
            yield _row([lines[k] if k < len(lines) else "" for lines in folded], columns, widths)


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Yield the lines of a table; where even folded it is wider than `width`, cut, with a line that says so.

    Text is shortened, the longest most, but no number, nor a first column within half the width; then columns
    are left out from the right.
    """
    if width is None or max(map(shown_width, table(columns, rows, width=width)), default=0) <= width:
        yield from table(columns, rows, width=width)
        return
    body = [[printable(value) for value in row] for row in rows]
    cells = [max((shown_width(row[i]) for row in body), default=0) for i in range(len(columns))]
    heads = [max(map(shown_width, column.head.split("\n"))) for column in columns]
    full = [max(pair) for pair in zip(cells, heads, strict=True)]
    least = [min(f, max(SHORTEST, c if k.right else 0)) for f, c, k in zip(full, cells, columns, strict=True)]
    if full and full[0] <= width // 2:
        least[0] = full[0]
    kept = len(columns)
    while kept > 1 and sum(least[:kept]) + 2 * (kept - 1) > width:
        kept -= 1
    cap = max(
        (c for c in range(width + 1) if sum(_capped(full, least, c)[:kept]) + 2 * (kept - 1) <= width),
        default=SHORTEST,
    )
    widths = _capped(full, least, cap)[:kept]
    shown = [[_cut(value, size) for value, size in zip(row, widths, strict=False)] for row in body]
    names = [
        Column("\n".join(_cut(line, size) for line in column.head.split("\n")), right=column.right)
        for column, size in zip(columns, widths, strict=False)
    ]
    yield from table(names, shown)
    short = sum(a != b for was, row in zip(body, shown, strict=True) for a, b in zip(was, row, strict=False))
    left_out = ", ".join(printable(column.head.replace("\n", " ")) for column in columns[kept:])
    told = [f"values shortened: {short}"] if short else []
    told += [f"columns left out: {_cut(left_out, 200)}"] if left_out else []
    said = f"(cut to fit {width} columns; {'; '.join(told) or 'names shortened'}; a pipe gets all)"
    yield from textwrap.wrap(said, width)


def _capped(full: Sequence[int], least: Sequence[int], cap: int) -> list[int]:
    return [min(f, max(cap, low)) for f, low in zip(full, least, strict=True)]


def _cut(text: str, width: int) -> str:
    """Return the text, shortened with an ellipsis where it takes more cells than `width`."""
    if shown_width(text) <= width:
        return text
    text = text[:width]
    while text and shown_width(text) > width - 3:
        text = text[:-1]
    return text + "..."


def _row(values: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = (pad(v, w, right=c.right) for v, c, w in zip(values, columns, widths, strict=True))
    return "  ".join(padded).rstrip()


def _squeeze(
    columns: Sequence[Column], heads: Sequence[Sequence[str]], widths: list[int], width: int
) -> None:
    """Make the columns that may be folded narrower, the widest first, until the table fits."""
    least = [max(8, *map(shown_width, head)) for head in heads]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        able = [i for i, c in enumerate(columns) if c.wrap and widths[i] > least[i]]
        if not able:
            return
        widest = max(able, key=lambda i: widths[i])
        widths[widest] -= 1


def _fold(text: str, width: int) -> list[str]:
    if shown_width(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 1)) or [""]


def sentence(text: str, paper: Paper, *, indent: str = "  ") -> Iterator[str]:
    """Yield a sentence, folded where the paper folds."""
    text = printable(text)
    if paper.wrap:
        yield from textwrap.wrap(text, paper.width, initial_indent=indent, subsequent_indent=indent * 2) or [
            indent
        ]
    else:
        yield indent + text


def joined(lines: Iterable[str]) -> str:
    """Return the lines as one text."""
    return "".join(line + "\n" for line in lines)
