"""The header of a .safetensors file: read with suspicion, written so that PyTorch reads it; no I/O.

The format is eight bytes with the header's length (little-endian), the header (JSON), and the data of all
arrays without a gap: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.errors import ArrayError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 << 20
"""The format allows 100 MB, which JSON of nothing but brackets makes a hundred times as much in memory."""
_ALIGNMENT = 8
_METADATA = "__metadata__"
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "C64": np.dtype("<c8"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_SHORT = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""Those that NumPy doesn't have, by their names in ml_dtypes."""
DTYPES = (*_DTYPES, *_SHORT)
"""Names of all dtypes that can be read and written."""
_NAMES = {dtype.name: name for name, dtype in _DTYPES.items()} | {
    dtype: name for name, dtype in _SHORT.items()
}


def dtype_of(name: str) -> np.dtype[Any] | None:
    """Return NumPy's dtype for a name of the format, or None if there is none."""
    if name in _SHORT:
        import ml_dtypes  # noqa: PLC0415 - takes longer to import than all the rest

        short: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _SHORT[name]))
        return short
    return _DTYPES.get(name)


@dataclass(frozen=True, slots=True)
class Entry:
    """One array: where its data begin, counted from the end of the header."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int


def parse(text: bytes, data_bytes: int) -> tuple[list[Entry], dict[str, str]]:
    """Read a header.

    Args:
        text: the JSON.
        data_bytes: how many bytes follow it in the file.

    Returns:
        The arrays in the header's order, and the file's metadata.

    Raises:
        ArrayError: an array has a dtype that can't be averaged.
        ValueError: it is no sound header for so much data.
    """
    header = json.loads(text.decode(), object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise ValueError("the header is no object")  # noqa: TRY004 - as for all that is wrong in it
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ is no table of strings")
    entries = []
    spans = []
    for name, given in header.items():
        if not isinstance(given, dict) or set(given) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"array {name!r} has no dtype, shape and data_offsets")
        shape, offsets = given["shape"], given["data_offsets"]
        if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
            raise ValueError(f"array {name!r} has an odd shape or odd data_offsets")
        dtype = dtype_of(given["dtype"]) if isinstance(given["dtype"], str) else None
        if dtype is None:
            said = f"array {name!r} has the dtype {given['dtype']}, which can't be averaged"
            raise ArrayError("dtype", said)
        if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"array {name!r} needs another number of bytes than its data_offsets span")
        entries.append(Entry(name, dtype, tuple(shape), offsets[0]))
        spans.append(tuple(offsets))
    end = 0
    for begin, stop in sorted(spans):
        if begin != end:
            raise ValueError("its data overlap or have gaps")
        end = stop
    if end != data_bytes:
        raise ValueError(f"{data_bytes} bytes of data follow the header, which speaks of {end}")
    return entries, metadata


def make(arrays: Iterable[tuple[str, np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """Return the header, its length before it, for arrays whose data follow in this order."""
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, dtype, shape in arrays:
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype.name], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _naturals(given: Any) -> bool:
    return isinstance(given, list) and all(type(n) is int and n >= 0 for n in given)
