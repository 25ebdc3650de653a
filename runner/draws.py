"""Numbers drawn from a distribution that a file states; knows nothing of what they mean."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

_NUMBER = "a number, 0 or more"
DRAW = (
    "a number, 0 or more; or a table with one of: fixed = a number, uniform = [least, most], "
    "lognormal = { median = above 0, sigma = 0 or more }, empirical = a file of numbers, one a line"
)
_MOST = 1e15


class LogNormal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Half of the numbers are below the median; the logarithm spreads by sigma."""

    median: Annotated[float, Meta(gt=0, le=_MOST, description="a number above 0")]
    sigma: Annotated[float, Meta(ge=0, le=10, description="a number from 0 to 10")]


class Draw(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distribution: exactly one of its ways is given."""

    fixed: Annotated[float | None, Meta(description=_NUMBER)] = None
    uniform: Annotated[tuple[float, float] | None, Meta(description="a list [least, most]")] = None
    lognormal: Annotated[LogNormal | None, Meta(description="a table { median=, sigma= }")] = None
    empirical: Annotated[str | None, Meta(description="the path of a file of numbers, one a line")] = None


def fault_of(given: Any, folder: Path) -> tuple[str, str] | None:
    """Return what is wrong with a distribution whose types are right, and what is allowed; None if nothing.

    Args:
        given: as the file has it: a number or a table.
        folder: where relative paths start.
    """
    if not isinstance(given, dict):
        return None if _is_sound(given) else (f"received {given!r}", _NUMBER)
    ways = [name for name in Draw.__struct_fields__ if name in given]
    if len(ways) != 1:
        return (" and ".join(ways) if ways else "no distribution", f"exactly one; {DRAW}")
    (way,) = ways
    value = given[way]
    if way == "fixed" and not _is_sound(value):
        return f"received {value!r}", _NUMBER
    if way == "uniform" and not (_is_sound(value[0]) and _is_sound(value[1]) and value[0] <= value[1]):
        return f"received {value!r}", "a list [least, most] of numbers, 0 or more"
    if way == "empirical":
        try:
            numbers_in(folder / value)
        except (OSError, ValueError) as e:
            return f"{value!r}: {getattr(e, 'strerror', None) or e}", "a file of numbers, one a line"
    return None


def _is_sound(value: float) -> bool:
    return 0 <= value <= _MOST  # false for what is no number


def numbers_in(file: Path) -> list[float]:
    """Return the numbers of a file, one a line.

    Raises:
        OSError: it can't be read.
        ValueError: it has none, or a line is no finite number, 0 or more.
    """
    numbers: list[float] = []
    for line_number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            number = float(line)
        except ValueError:
            number = math.nan
        if not _is_sound(number):
            raise ValueError(f"line {line_number} is no number from 0 to {_MOST:g}: {line.strip()[:40]!r}")
        numbers.append(number)
    if not numbers:
        raise ValueError("no numbers in it")
    return numbers


class Sampler:
    """Draws from one distribution.

    Args:
        given: a number that is always drawn, or a distribution.
        folder: where a relative path of its starts.

    Raises:
        OSError: the file of numbers can't be read.
        ValueError: it has something else in it.
    """

    def __init__(self, given: Draw | float, folder: Path) -> None:
        self._given = given if isinstance(given, Draw) else Draw(fixed=given)
        file = self._given.empirical
        self._numbers = [] if file is None else numbers_in(folder / file)

    def draw(self, rng: Random) -> float:
        """Return the next number."""
        given = self._given
        if given.fixed is not None:
            return given.fixed
        if given.uniform is not None:
            return rng.uniform(*given.uniform)
        if given.lognormal is not None:
            return given.lognormal.median * math.exp(rng.gauss(0.0, given.lognormal.sigma))
        return rng.choice(self._numbers)


def told(given: Draw | float) -> str:
    """Say a distribution in a few words."""
    if not isinstance(given, Draw):
        return f"{given:g}"
    if given.lognormal is not None:
        return f"lognormal, median {given.lognormal.median:g}, sigma {given.lognormal.sigma:g}"
    way, value = next((k, v) for k, v in structs.asdict(given).items() if v is not None)
    if way == "uniform":
        return f"uniform from {value[0]:g} to {value[1]:g}"
    return f"{value:g}" if way == "fixed" else f"drawn from {value}"
