"""Finds the events whose number or time does not fit those around them; knows no event but these numbers.

A wrong number must cost its own line alone. So what is kept is the longest part that is in order, and
what is given up is as little as can be: one event with a wildly large number does not make all later
ones go back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.int64]


def longest_in_order(values: Sequence[float], *, strict: bool) -> list[int]:
    """Return the places of a longest rising part; `strict` allows no equal neighbours.

    Of two equal values that shut each other out the first is kept.
    """
    tails: list[float] = []
    last: list[int] = []
    before: list[int] = []
    for i, value in enumerate(values):
        at = bisect_left(tails, value) if strict else bisect_right(tails, value)
        before.append(last[at - 1] if at else -1)
        if at == len(tails):
            tails.append(value)
            last.append(i)
        elif tails[at] != value:
            tails[at] = value
            last[at] = i
    kept: list[int] = []
    i = last[-1] if last else -1
    while i >= 0:
        kept.append(i)
        i = before[i]
    return kept[::-1]


def is_shuffled(seq: npt.NDArray[np.int64]) -> int:
    """Return how many events are out of place if so many are that the lines were sorted or shuffled, else 0.

    A tenth of at least 20 events; fewer are single lines that were moved.
    """
    # A line's place is wrong where a number that came before is greater; a log in order has none.
    out = int(np.count_nonzero(seq < np.maximum.accumulate(seq)))
    if len(seq) < 20 or out * 10 < len(seq):
        return 0
    # One number that is far too great puts all after it out of place: take what can't be kept in order.
    lost = len(seq) - len(longest_in_order(seq.tolist(), strict=False))
    return out if lost * 10 >= len(seq) and len(np.unique(seq)) > len(seq) * 0.6 else 0


def faults(seq: npt.NDArray[np.int64], t_us: npt.NDArray[np.int64]) -> dict[int, tuple[str, str]]:
    """Return reason and detail for each event of one run, in the order of lines, that is out of order."""
    found: dict[int, tuple[str, str]] = {}
    places = np.arange(len(seq))
    if not bool(np.all(np.diff(seq) > 0)):
        numbers: list[int] = seq.tolist()
        kept = longest_in_order(numbers, strict=True)
        taken = {numbers[i] for i in kept}
        for i in sorted(set(range(len(seq))) - set(kept)):
            repeated = numbers[i] in taken
            found[i] = (
                ("repeated seq", f"{numbers[i]} was there already")
                if repeated
                else ("seq out of order", f"{numbers[i]} among other numbers")
            )
        places = np.array(kept, dtype=np.int64)
    if not bool(np.all(np.diff(t_us[places]) >= 0)):
        times: list[int] = t_us[places].tolist()
        kept = longest_in_order(times, strict=False)
        for i in sorted(set(range(len(places))) - set(kept)):
            found[int(places[i])] = (
                "time going back",
                f"t is {times[i] / 1e6}, later or earlier than its neighbours",
            )
    return found


class InOrder:
    """Sees chunk by chunk whether all numbers of all runs rise; keeps no more of them than the last.

    That is so in nearly every log, however long; all numbers are needed only where it is not.
    """

    def __init__(self, last: Mapping[int, tuple[int, int, int]] | None = None) -> None:
        self.in_order = True
        self.last: dict[int, tuple[int, int, int]] = dict(last or {})
        """Line, number and time of the last event of each run."""
        self.skips: list[tuple[int, int, int, int]] = []
        """Run, line before, line, and how many numbers are skipped between the two."""
        self._parts: list[tuple[_Numbers, _Numbers, _Numbers, _Numbers]] = []

    def add(self, run_no: _Numbers, line: _Numbers, seq: _Numbers, t_us: _Numbers) -> None:
        """Take events of a chunk, in any order."""
        if self.in_order:
            self._parts.append((run_no, line, seq, t_us))

    def close_chunk(self) -> None:
        """Judge the events of a chunk; those of the next come after them."""
        if self._parts and self.in_order:
            run_no, line, seq, t_us = map(np.concatenate, zip(*self._parts, strict=True))
            places = np.full(int(line.max()) - int(line.min()) + 1, -1)
            places[line - line.min()] = np.arange(len(line))
            in_order = places[places >= 0]
            for run in np.unique(run_no).tolist():
                at = in_order[run_no[in_order] == run]
                self._judge(run, line[at], seq[at], t_us[at])
        self._parts = []

    def _judge(self, run: int, line: _Numbers, seq: _Numbers, t_us: _Numbers) -> None:
        last_line, last_seq, last_us = self.last.get(run, (0, -1, int(t_us[0])))
        steps = np.diff(seq, prepend=last_seq)
        self.in_order &= bool(np.all(steps > 0) and np.all(np.diff(t_us, prepend=last_us) >= 0))
        before = np.append(last_line, line[:-1])
        self.skips += [
            (run, int(before[i]), int(line[i]), int(steps[i]) - 1) for i in np.flatnonzero(steps > 1)
        ]
        self.last[run] = int(line[-1]), int(seq[-1]), int(t_us[-1])
