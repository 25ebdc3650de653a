"""Reads what a command reported about itself; trusts nothing of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.text import printable

MAX_BYTES = 1 << 20
MAX_SAMPLES = 1e18
TOO_LARGE = f"more than {MAX_BYTES} bytes"
_MAX_NAMES = 1000
_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class Report:
    """Finite numbers by name, the number of samples, and what could not be used."""

    values: dict[str, float] = field(default_factory=dict)
    num_samples: float | None = None
    error: str | None = None


def read(path: Path) -> Report:
    """Read a metrics file: a JSON object of numbers, ``num_samples`` among them where there is one."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as e:
        return Report(error=f"can't be read: {e.strerror}")
    if len(text) > MAX_BYTES:
        return Report(error=TOO_LARGE)
    try:
        return taken(json.loads(text))
    except (ValueError, RecursionError) as e:
        return Report(error=f"not JSON: {e}")


def taken(raw: Any) -> Report:
    """Take what should be an object of numbers, ``num_samples`` among them where there is one."""
    if not isinstance(raw, dict):
        return Report(error="not a JSON object of numbers")
    values: dict[str, float] = {}
    wrong: list[str] = []
    for name, value in raw.items():
        number = _number(value)
        if number is None:
            wrong.append(f"{printable(name)[:_MAX_NAME]} is no finite number")
        elif name == "num_samples" and number < 0:
            wrong.append(f"{name} is negative")
        elif name == "num_samples" and number > MAX_SAMPLES:
            wrong.append(f"{name} is above {MAX_SAMPLES:g}")
        elif len(values) == _MAX_NAMES:
            wrong.append(f"only the first {_MAX_NAMES} numbers are kept")
            break
        else:
            values[printable(name)[:_MAX_NAME]] = number
    samples = values.pop("num_samples", None)
    return Report(values, samples, "; ".join(wrong)[:1000] or None)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
