"""Puts runs side by side, measured against the first; takes rows, knows no database and no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analyze.terminal import Column
from analyze.told import Table
from schemas.text import number, size

MEASURES = (
    ("push", "push_s"),
    ("train", "train_s"),
    ("pull", "pull_s"),
    ("aggregate", "aggregate_s"),
    ("eval", "eval_s"),
    ("total", "total_s"),
    ("bytes up", "bytes_up"),
    ("bytes down", "bytes_down"),
    ("survivors", "survivors"),
)


def letter(i: int) -> str:
    """Return A, B, ... Z, AA, AB, ..."""
    return ("" if i < 26 else letter(i // 26 - 1)) + chr(ord("A") + i % 26)


def comparison(
    medians: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Mapping[str, Any]]]
) -> Table:
    """Return a row a measure; for each run after the first its value and the difference to the first.

    Args:
        medians: a row of ``run_medians`` for each run.
        metrics: for each run its rows of ``last_metrics`` by name.
    """
    columns = [Column("median of rounds"), Column("A", right=True)]
    for i in range(1, len(medians)):
        name = letter(i)
        columns += [
            Column(name, right=True),
            Column(f"{name}-A", right=True),
            Column(f"{name}-A %", right=True),
        ]
    rows = []
    for label, key in MEASURES:
        values = [m[key] for m in medians]
        if any(value is not None for value in values):
            unit = " (s)" if key.endswith("_s") else ""
            rows.append([label + unit, *_cells(values, key)])
    names = dict.fromkeys(name for run in metrics for name in run)
    for name in names:
        values = [run[name]["value"] if name in run else None for run in metrics]
        rows.append([f"last {name}", *_cells(values, "metric")])
    return Table(columns, rows)


def _cells(values: Sequence[float | None], key: str) -> list[str]:
    first = values[0]
    shown = [_show(first, key)]
    for value in values[1:]:
        shown.append(_show(value, key))
        if value is None or first is None:
            shown += ["-", "-"]
            continue
        difference = value - first
        sign = "-" if difference < 0 else "+"
        shown.append(sign + _show(abs(difference), key))
        shown.append(f"{100 * difference / abs(first):+.1f}" if first else ("0.0" if not difference else "-"))
    return shown


def _show(value: float | None, key: str) -> str:
    if value is None:
        return "-"
    if key.endswith("_s"):
        return f"{value:.3f}"
    return size(value) if key.startswith("bytes") else number(value)
