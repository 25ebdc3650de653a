"""What travels in fewer bytes than it has: the params encoded, the weights' changes decoded.

The other end is ``scaffold/roundlog_wire.py``, which has the arithmetic for both. Weights that come back are
added to the params as they are here, not as they were when they had travelled: what the encoding of the
params loses is never in the params themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.arrays import BLOCK, ArrayFile, ArraySpec
from runner.arraywriter import ArrayWriter
from runner.errors import ArrayError
from runner.job import WIRE, Command, Wire
from runner.safetensors import dtype_of
from runner.scaffold import roundlog_wire as far
from runner.weights import max_weights_bytes

_REALS = frozenset({"float64", "float32", "float16", "bfloat16"})


def sent(name: str, wire: Wire, *, pushed: bool) -> str:
    """Return the name of a file on the wire."""
    encoded = wire.encodes_params if pushed else wire.active
    return name + far.ENDING if encoded else name


def wrapped(command: Command, wire: Wire) -> Command:
    """Return the command that runs a training command where files travel encoded."""
    if not wire.active:
        return command
    words = ("/bin/sh", "-c", command) if isinstance(command, str) else command
    return (wire.python, WIRE.name, *words)


def settings(wire: Wire) -> dict[str, str]:
    """Return what the other end must know, as an environment."""
    if not wire.active:
        return {}
    return {"ROUNDLOG_WIRE": json.dumps({"pull": wire.pull, "block": wire.block, "zstd": wire.zstd})}


def check(specs: Mapping[str, ArraySpec]) -> None:
    """See that all arrays can be sent encoded.

    Raises:
        ArrayError: one has a dtype that a .safetensors file can't have.
    """
    for spec in specs.values():
        if spec.dtype.name not in far.CODES:
            said = f"array {spec.name!r} has the dtype {spec.dtype}, which [wire] can't send"
            raise ArrayError("dtype", said)


@dataclass(frozen=True, slots=True)
class _Row:
    """What an array on the wire stands for; ``key`` is its name there."""

    key: str
    name: str
    dtype: str
    shape: list[int]
    how: str


def limit(specs: Mapping[str, ArraySpec], wire: Wire) -> int:
    """Return the size above which a file can't be honest weights for these params.

    Changes of half precision travel as float32 when they are not encoded.
    """
    return max_weights_bytes(specs) * (2 if wire.active else 1)


def encode_params(params: Path, target: Path, wire: Wire, between: Callable[[], object]) -> None:
    """Encode params for all workers.

    Args:
        params: in the runner's own form.
        target: the file to push.
        wire: how.
        between: called between blocks; may raise to stop.

    Raises:
        ArrayError: the params can't be read.
        OSError: the target can't be written.
    """
    loose = target.with_name(f".{target.name}.loose.part") if wire.zstd else target
    with ArrayFile(params) as file:
        rows = [
            _Row(str(number), spec.name, spec.dtype.name, list(spec.shape), _how(spec, wire.push))
            for number, spec in enumerate(file.specs.values())
        ]
        specs = {one.name: one for row in rows for one in _on_wire(row, file.specs[row.name], wire.block)}
        table = [[row.name, row.dtype, row.shape, row.how] for row in rows]
        metadata = {
            far.KEY: json.dumps({"change": False, "arrays": table}),
            "metadata": json.dumps(file.metadata),
        }
        with ArrayWriter(loose, "safetensors", specs, metadata=metadata) as writer:
            for row in rows:
                scales: list[NDArray[Any]] = []
                with writer.array(specs[row.key]) as put:
                    for block in file.blocks(row.name):
                        between()
                        put(_encoded(block, row.how, wire.block, scales))
                if row.how == "int8":
                    with writer.array(specs[f"{row.key}.scale"]) as put:
                        for scale in scales:
                            put(scale)
            writer.commit(durable=False)
    if wire.zstd:
        far.compress(loose, target, wire.zstd)
        loose.unlink()


def _how(spec: ArraySpec, how: str) -> str:
    return how if spec.dtype.name in _REALS else far.PLAIN


def _encoded(block: NDArray[Any], how: str, size: int, scales: list[NDArray[Any]]) -> NDArray[Any]:
    """Return a block as it is on the wire; add its scales, if it has any, to the others."""
    if how == far.PLAIN:
        return block.astype(block.dtype.newbyteorder("<"))
    data, scale = far.encode(_wide(block), how, size)
    if scale is not None:
        scales.append(scale)
    made: NDArray[Any] = data
    return made


def _on_wire(row: _Row, spec: ArraySpec, block: int) -> Iterator[ArraySpec]:
    """Yield the arrays that stand for one."""
    dtype = spec.dtype.newbyteorder("<")
    if row.how != far.PLAIN:
        code = dtype_of(far.CODES[far.LOSSY[row.how]])
        assert code is not None  # noqa: S101 - all of them are known
        dtype = code
    yield ArraySpec(row.key, dtype, spec.shape)
    if row.how == "int8":
        yield ArraySpec(f"{row.key}.scale", np.dtype("<f4"), (-(-spec.count // block),))


def decode_weights(
    source: Path, target: Path, params: Path, wire: Wire, between: Callable[[], object]
) -> None:
    """Make the file of weights that a worker's changes stand for, in the params' own form.

    Args:
        source: what was pulled; never trusted.
        target: where the weights go.
        params: what was pushed, as it is here.
        wire: how.
        between: called between blocks; may raise to stop.

    Raises:
        ArrayError: it is no such file, or its arrays are not those of the params.
        OSError: the target can't be written.
    """
    loose = source.with_name(f".{source.name}.loose.part")
    try:
        with ArrayFile(params) as old:
            packed = _is_packed(source)
            if packed:
                _decompress(source, loose, limit(old.specs, wire))
            with ArrayFile(loose if packed else source) as file:
                rows = _table(file)
                specs = {row.name: _matching(old, row) for row in rows}
                with ArrayWriter(target, old.format, specs, metadata=old.metadata) as writer:
                    for row in rows:
                        with writer.array(specs[row.name]) as put:
                            for block in _decoded(file, row, old, wire.block):
                                between()
                                put(block)
                    writer.commit(durable=False)
    finally:
        loose.unlink(missing_ok=True)


def _is_packed(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(far.ZSTD_MAGIC)) == far.ZSTD_MAGIC


def _decompress(source: Path, target: Path, most: int) -> None:
    try:
        far.decompress(source, target, most)
    except (OSError, ValueError, EOFError) as e:
        raise ArrayError("unreadable", f"{source.name} can't be decompressed: {e}") from e


def _table(file: ArrayFile) -> list[_Row]:
    """Return what the file says its arrays stand for.

    Raises:
        ArrayError: it says it badly.
    """
    try:
        given = json.loads(file.metadata[far.KEY])["arrays"]
        rows = [_Row(str(number), *row) for number, row in enumerate(given)]
        if not all(isinstance(row.name, str) and isinstance(row.how, str) for row in rows):
            raise TypeError
    except (LookupError, ValueError, TypeError, RecursionError) as e:
        raise ArrayError("unreadable", f"{file.path.name} does not say what its arrays stand for") from e
    if len({row.name for row in rows}) != len(rows):
        raise ArrayError("unreadable", f"{file.path.name} has an array twice")
    return rows


def _matching(old: ArrayFile, row: _Row) -> ArraySpec:
    """Return the params' array of a name, if it is as it is said to be."""
    spec = old.specs.get(row.name)
    if spec is None:
        raise ArrayError("unexpected", f"array {row.name!r} is not in the params")
    if row.dtype != spec.dtype.name:
        raise ArrayError("dtype", f"array {row.name!r} has dtype {row.dtype}, not {spec.dtype}")
    if row.shape != list(spec.shape):
        raise ArrayError("shape", f"array {row.name!r} has shape {row.shape}, not {spec.shape}")
    return spec


def _decoded(file: ArrayFile, row: _Row, old: ArrayFile, block: int) -> Iterator[NDArray[Any]]:
    """Yield one array's weights, block by block."""
    spec = old.specs[row.name]
    lossy = row.how in far.LOSSY and _how(spec, row.how) == row.how
    for one in _on_wire(row, spec, block) if lossy else [_change(row, spec)]:
        found = file.specs.get(one.name)
        if found is None or found.dtype != one.dtype or found.shape != one.shape:
            raise ArrayError("unreadable", f"{file.path.name} has no sound data of the array {row.name!r}")
    scales = _whole(file, f"{row.key}.scale") if row.how == "int8" else None
    start = 0
    for data, before in zip(file.blocks(row.key), old.blocks(row.name), strict=True):
        if spec.dtype.name not in _REALS:
            yield data.astype(spec.dtype)
            continue
        change = data
        if lossy:
            part = None if scales is None else scales[start // block : -(-(start + data.size) // block)]
            bits = data.view("<u2") if row.how == "bfloat16" else data
            change = far.decode(bits, part, row.how, block)
        with np.errstate(all="ignore"):
            yield (_wide(before) + change).astype(spec.dtype)
        start += data.size


def _change(row: _Row, spec: ArraySpec) -> ArraySpec:
    """Return the array that stands for one that is not encoded: its change, or itself."""
    dtype = _wide(np.empty(0, spec.dtype)).dtype if spec.dtype.name in _REALS else spec.dtype
    return ArraySpec(row.key, dtype.newbyteorder("<"), spec.shape)


def _whole(file: ArrayFile, name: str) -> NDArray[Any]:
    return np.concatenate([np.empty(0, "<f4"), *file.blocks(name)])


def _wide(block: NDArray[Any]) -> NDArray[Any]:
    """Return real numbers as float64 if they are, else as float32."""
    return block.astype(np.float64 if block.dtype.itemsize == 8 else np.float32)


assert BLOCK % 4096 == 0  # noqa: S101 - blocks of scales must not lie across blocks of a file
