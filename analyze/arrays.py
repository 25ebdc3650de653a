"""Makes values of a field into arrays that DuckDB takes over whole; knows no line and no table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.json import encode

from analyze.shapes import NULL, Field

MICRO = 1_000_000


def micro(seconds: npt.NDArray[np.float64]) -> Any:
    """Return whole microseconds."""
    return np.rint(seconds * MICRO).astype(np.int64)


def column_of(shape: Field, column: Sequence[Any]) -> Any:
    """Return the values as NumPy or Arrow has them; None where all are null."""
    import pyarrow as pa  # noqa: PLC0415 - nothing that loads nothing needs it

    seen = set(map(type, column))
    if seen == {NULL}:
        return None
    if shape.base is dict:
        return pa.array([None if v is None else encode(v).decode() for v in column], pa.string())
    if shape.base is list:
        item = int if shape.whole_items else float
        lists = [None if v is None else [None if i is None else item(i) for i in v] for v in column]
        return pa.array(lists, pa.list_(pa.int64() if item is int else pa.float64()))
    if shape.base is str:
        return pa.array(column, pa.string())
    dtype = {int: np.int64, float: np.float64, bool: np.bool_}[shape.base]
    if NULL not in seen:
        return np.array(column, dtype=dtype)
    mask = [value is None for value in column]
    return np.ma.masked_array(np.array([value or 0 for value in column], dtype=dtype), mask=mask)
