"""Turns the rows of the view ``segments`` into lanes and cells; pure, knows no glyph, colour or terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STATES = ("push", "train", "pull", "aggregate", "eval", "dead", "rejected", "wait")
"""Every state, in the order of the legend."""
IDLE = frozenset({"rejected", "wait"})
"""Nothing is done; drawn thin, and gives way to what is."""
_SELDOM = frozenset({"eval", "rejected"})


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a lane."""

    state: str
    start_us: int
    end_us: int
    open: bool = False
    phase: str | None = None
    """What it was while it lived; null for waiting."""


@dataclass(slots=True)
class Lane:
    """The pieces of one worker, or of the scheduler (rank None), by time."""

    rank: int | None
    bars: list[Bar] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Return how the lane is called."""
        return "scheduler" if self.rank is None else f"w{self.rank}"


@dataclass(slots=True)
class Chart:
    """One try of a round."""

    nth: int
    round: int
    attempt: int
    tries: int
    start_us: int
    end_us: int
    survivors: int | None
    total_nodes: int
    outcome: str
    lanes: list[Lane]

    @property
    def label(self) -> str:
        """Return the round, and the try where there were several."""
        return round_label(self.round, self.attempt, self.tries)


def round_label(number: int | None, attempt: int | None, tries: int = 1) -> str:
    """Return ``4``, or ``4 try 2`` where a round was tried more than once."""
    if number is None:
        return "-"
    return f"{number} try {attempt}" if tries > 1 or (attempt or 1) > 1 else f"{number}"


def charts(rounds: Iterable[Mapping[str, Any]], segments: Iterable[Mapping[str, Any]]) -> list[Chart]:
    """Return a chart for each row of ``rounds``, in order."""
    made: dict[int, Chart] = {}
    lanes: dict[int, dict[int | None, Lane]] = {}
    for row in sorted(rounds, key=lambda r: r["nth"]):
        nth = row["nth"]
        lanes[nth] = {None: Lane(None)}
        made[nth] = Chart(
            nth=nth,
            round=row["round"],
            attempt=row["attempt"],
            tries=row["tries"],
            start_us=row["start_us"],
            end_us=row["end_us"],
            survivors=row["survivors"],
            total_nodes=row["total_nodes"],
            outcome=row["outcome"],
            lanes=[],
        )
    for row in segments:
        if row["nth"] in lanes:
            lane = lanes[row["nth"]].setdefault(row["rank"], Lane(row["rank"]))
            bar = Bar(row["state"], row["start_us"], row["end_us"], open=row["open"], phase=row["phase"])
            lane.bars.append(bar)
    for nth, chart in made.items():
        chart.lanes = sorted(lanes[nth].values(), key=lambda lane: -1 if lane.rank is None else lane.rank)
        for lane in chart.lanes:
            lane.bars.sort(key=lambda bar: (bar.start_us, bar.end_us))
    return list(made.values())


def states_of(made: Iterable[Chart]) -> list[str]:
    """Return the states of a legend: all, but evaluation and rejected only where there was some."""
    seen = {bar.state for chart in made for lane in chart.lanes for bar in lane.bars}
    return [state for state in STATES if state not in _SELDOM or state in seen]


def cells(bars: Sequence[Bar], start_us: int, end_us: int, width: int) -> list[str | None]:
    """Return the state of each of `width` cells; None where there is nothing.

    A cell shows what took most of it. A span too short for that takes the nearest cell that shows
    waiting, nothing, or a span with cells to spare, so that nothing that happened is hidden. The order is
    that of the bars, which are sorted by time.
    """
    owner: list[int | None] = [None] * width
    total = max(end_us - start_us, 1)
    most = [0.0] * width
    for i, bar in enumerate(bars):
        left = (bar.start_us - start_us) * width / total
        right = (bar.end_us - start_us) * width / total
        for cell in range(max(int(left), 0), min(int(right) + 1, width)):
            share = min(right, cell + 1) - max(left, cell)
            if share > most[cell]:
                most[cell], owner[cell] = share, i
    count: Counter[int | None] = Counter(owner)
    for i, bar in enumerate(bars):
        if bar.state in IDLE or count[i]:
            continue
        middle = int(((bar.start_us + bar.end_us) / 2 - start_us) * width / total)
        free = _nearest_free(owner, count, bars, min(max(middle, 0), width - 1))
        if free is not None:
            count[owner[free]] -= 1
            owner[free] = i
            count[i] += 1
    in_order = iter(sorted(i for i in owner if i is not None))  # who took another's cell may be too early
    return [None if i is None else bars[next(in_order)].state for i in owner]


def _nearest_free(
    owner: Sequence[int | None], count: Mapping[int | None, int], bars: Sequence[Bar], middle: int
) -> int | None:
    for away in range(min(len(owner), 8)):
        for cell in (middle - away, middle + away):
            if not 0 <= cell < len(owner):
                continue
            i = owner[cell]
            if i is None or bars[i].state in IDLE or count[i] > 1:
                return cell
    return None


def ticks(seconds: float, most: int) -> tuple[list[float], int]:
    """Return up to `most` round times from 0 to `seconds`, and how many decimals they need."""
    if seconds <= 0 or most < 1:
        return [0.0], 0
    step, decimals = 1e-6, 6
    while True:
        for factor in (1, 2, 5):
            if seconds / (step * factor) <= most:
                count = int(seconds / (step * factor) + 1e-9)
                return [round(i * step * factor, 9) for i in range(count + 1)], max(decimals, 0)
        step, decimals = step * 10, decimals - 1
