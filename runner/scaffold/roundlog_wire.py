"""Stands before a training command whose params and weights travel in fewer bytes than they have.

    python roundlog_wire.py COMMAND [ARGUMENT ...]

Put there by the runner where a job has a ``[wire]`` table. It decodes the params that came, runs the command,
or keeps it running, with the names of plain files, and encodes what its weights have changed. What the
encoding loses is kept in the worker's folder and added to the next round's change (error feedback; Seide et
al. 2014, "1-bit stochastic gradient descent"; Karimireddy et al. 2019, https://arxiv.org/abs/1901.09847).

A file on the wire is a .safetensors file, as a whole perhaps compressed with zstd. Its arrays are called by
their number, "0", "1", ..., with "0.scale" for the scales of whole numbers; the metadata names them.
Needs Python 3.8 and NumPy; zstd needs the package zstandard, or Python 3.14.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple

try:
    import numpy as np
except ImportError:
    sys.exit(f"roundlog_wire: [wire] needs NumPy on the worker, for {sys.executable}")

ENDING = ".wire"
"""What a file on the wire has at the end of its name, after that of the plain file."""
KEY = "roundlog_wire"
"""Of the metadata: ``{"change": whether floats are changes, "arrays": [[name, dtype, shape, how], ...]}``."""
PLAIN = "plain"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ANSWER = b"roundlog:"
_LONGEST = 1 << 20
"""Bytes of an answer: the other end takes no more."""
_MOST = 127
CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""The names of dtypes in a .safetensors file."""
_RAW = {"bfloat16": "<u2", "float8_e4m3fn": "u1", "float8_e5m2": "u1"}
"""What stands for those that NumPy doesn't have."""
_NAMES = {code: name for name, code in CODES.items()}
LOSSY = {"float16": "float16", "bfloat16": "bfloat16", "int8": "int8"}
"""The ways to encode real numbers, and the dtype each has on the wire."""
_BROKEN = (OSError, ValueError, LookupError, EOFError, SyntaxError, TypeError, zipfile.BadZipFile)
_REAL = ("float64", "float32", "float16", "bfloat16")


class Array(NamedTuple):
    """An array: its name, the name of its dtype, and its data (bfloat16 and float8: their bits)."""

    name: str
    dtype: str
    data: Any


# -- numbers: used on both ends, so that they agree


def encode(numbers: Any, how: str, block: int) -> tuple[Any, Any]:
    """Encode real numbers.

    Args:
        numbers: 1-D, float32 or float64.
        how: ``float16`` (too large ones become the largest it has), ``bfloat16`` (to the nearest, ties to
            even) or ``int8`` (a scale for each block, so that its largest number becomes 127).
        block: numbers that share a scale; the last block may be shorter.

    Returns:
        The data (bfloat16: its bits as uint16) and the scales (float32), or None where there are none. What
        is not finite stays so, at least where it was.
    """
    with np.errstate(all="ignore"):
        if how == "float16":
            top = np.finfo(np.float16).max
            clipped = np.where(np.isfinite(numbers), np.clip(numbers, -top, top), numbers)
            return clipped.astype("<f2"), None
        if how == "bfloat16":
            bits = numbers.astype("<f4").view("<u4")
            rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype("<u4")) >> 16
            cut = bits >> 16
            rounded = np.where((rounded & 0x7FFF) == 0x7F80, cut, rounded)  # what is finite stays so
            rounded = np.where(np.isfinite(numbers), rounded, cut | np.isnan(numbers))
            return rounded.astype("<u2"), None
        narrow = numbers.astype("<f4")
        starts = np.arange(0, narrow.size, block)
        largest = np.maximum.reduceat(np.abs(narrow), starts) if narrow.size else narrow
        scales = (largest / np.float32(_MOST)).astype("<f4")
        most = np.nextafter(np.finfo(np.float32).max / np.float32(_MOST), np.float32(0))
        scales = np.where(np.isfinite(scales), np.minimum(scales, most), scales)
        each = _spread(scales, block, narrow.size)
        shares = np.divide(narrow, each, out=np.zeros_like(narrow), where=each > 0)
        return np.clip(np.nan_to_num(np.rint(shares)), -_MOST, _MOST).astype("i1"), scales


def decode(data: Any, scales: Any, how: str, block: int) -> Any:
    """Return the numbers, 1-D float32, that :func:`encode` made the data and scales of."""
    if how == "float16":
        return data.astype(np.float32)
    if how == "bfloat16":
        return (data.astype("<u4") << 16).view("<f4").astype(np.float32)
    with np.errstate(all="ignore"):
        return data.astype(np.float32) * _spread(scales, block, data.size).astype(np.float32)


def _spread(scales: Any, block: int, count: int) -> Any:
    return np.repeat(scales, block)[:count]


def wide(array: Array) -> Any:
    """Return real numbers, 1-D, as float64 if they are, else as float32."""
    flat = array.data.reshape(-1)
    if array.dtype == "bfloat16":
        return decode(flat, None, "bfloat16", 0)
    return flat.astype(np.float64 if array.dtype == "float64" else np.float32)


def _narrow(numbers: Any, like: Array) -> Any:
    """Return numbers as the data of an array like another."""
    made = encode(numbers, "bfloat16", 0)[0] if like.dtype == "bfloat16" else numbers.astype(like.dtype)
    return made.reshape(like.data.shape)


# -- files of arrays


def read(path: Path, form: str) -> list[Array]:
    """Read a plain file: ``npz``, ``npy`` or ``safetensors``. Nothing is unpickled."""
    if form == "npy":
        return [_array("array", np.load(str(path), allow_pickle=False))]
    if form == "npz":
        with np.load(str(path), allow_pickle=False) as file:
            return [_array(name, file[name]) for name in file.files]
    with path.open("rb") as stream:
        return read_safetensors(stream)[0]


def _array(name: str, data: Any) -> Array:
    return Array(name, data.dtype.name, np.ascontiguousarray(data).reshape(data.shape))


def write(path: Path, form: str, arrays: list[Array], metadata: dict[str, str] | None = None) -> None:
    """Write a plain file whole, or not at all."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as stream:
        if form == "npy":
            np.save(stream, arrays[0].data, allow_pickle=False)
        elif form == "npz":
            with zipfile.ZipFile(stream, "w") as archive:
                for array in arrays:
                    with archive.open(array.name + ".npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, np.asanyarray(array.data), allow_pickle=False)
        else:
            write_safetensors(stream, arrays, metadata or {})
    part.replace(path)


def read_safetensors(stream: IO[bytes]) -> tuple[list[Array], dict[str, str]]:
    """Read a .safetensors file from its beginning to its end."""
    header = json.loads(_exactly(stream, int.from_bytes(_exactly(stream, 8), "little")))
    metadata = header.pop("__metadata__", {})
    arrays = []
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype = _NAMES[entry["dtype"]]
        raw = np.dtype(_RAW.get(dtype, dtype)).newbyteorder("<")
        data = np.frombuffer(_exactly(stream, math.prod(entry["shape"]) * raw.itemsize), raw)
        arrays.append(Array(name, dtype, data.reshape(entry["shape"])))
    return arrays, metadata


def write_safetensors(stream: IO[bytes], arrays: list[Array], metadata: dict[str, str]) -> None:
    """Write a .safetensors file."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for array in arrays:
        if array.dtype not in CODES:
            raise ValueError(f"array {array.name!r} has the dtype {array.dtype}, which can't be sent encoded")
        begin, end = end, end + array.data.nbytes
        shape = list(array.data.shape)
        header[array.name] = {"dtype": CODES[array.dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for array in arrays:
        data = np.ascontiguousarray(array.data)
        stream.write(data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes())


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.read(count - len(data))
        if not more:
            raise EOFError("cut off")
        data += more
    return data


# -- zstd: whatever there is


def compress(source: Path, target: Path, level: int) -> None:
    """Compress a file."""
    zstd = _zstd()
    given = {"cctx": zstd.ZstdCompressor(level)} if zstd.__name__ == "zstandard" else {"level": level}
    with source.open("rb") as plain, zstd.open(str(target), "wb", **given) as stream:
        shutil.copyfileobj(plain, stream, 1 << 20)


def decompress(source: Path, target: Path, most: int) -> None:
    """Decompress a file, unless it becomes larger than `most` bytes.

    Raises:
        ValueError: it would, or it is no sound zstd file.
    """
    zstd = _zstd()
    try:
        with target.open("wb") as plain, zstd.open(str(source), "rb") as stream:
            for chunk in iter(lambda: stream.read(1 << 20), b""):
                most -= len(chunk)
                if most < 0:
                    raise ValueError("it becomes larger than it may")
                plain.write(chunk)
    except zstd.ZstdError as e:
        raise ValueError(f"it is no sound zstd file ({e})") from e


def _zstd() -> Any:
    for name in ("compression.zstd", "zstandard"):  # the first is Python's own from 3.14 on
        with suppress(ImportError):
            return import_module(name)
    raise OSError("zstd needs the package zstandard, or Python 3.14")


# -- what the worker does


class Files:
    """The files of the rounds of one worker: from the wire, and to it.

    Args:
        settings: ``pull``, ``block`` and ``zstd`` of the job.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.how = settings["pull"]
        self.block = settings["block"]
        self.level = settings["zstd"]

    def unpack(self, params: Path) -> Path:
        """Decode the params of a round; return the plain file, which is the one given if it is plain."""
        if params.suffix != ENDING:
            return params
        with params.open("rb") as file:
            packed = file.read(4) == ZSTD_MAGIC
        source = params
        if packed:
            source = params.with_name(f".{params.name}.unpacked")
            decompress(params, source, 1 << 62)
        with source.open("rb") as stream:
            given, metadata = read_safetensors(stream)
        if packed:
            source.unlink()
        by_name = {array.name: array for array in given}
        arrays = []
        for number, (name, dtype, _, how) in enumerate(json.loads(metadata[KEY])["arrays"]):
            array = by_name[str(number)]._replace(name=name, dtype=dtype)
            if how != PLAIN:
                scales = by_name.get(f"{number}.scale")
                flat = array.data.reshape(-1)
                numbers = decode(flat, scales and scales.data, how, self.block)
                array = array._replace(data=_narrow(numbers, array))
            arrays.append(array)
        plain = params.with_suffix("")
        write(plain, plain.suffix[1:], arrays, json.loads(metadata.get("metadata", "{}")))
        return plain

    def pack(self, number: int, params: Path, weights: Path) -> None:
        """Encode what the weights of a round have changed; `weights` is the file for the wire."""
        plain = weights.with_suffix("")
        form = plain.suffix[1:]
        before = {array.name: array for array in read(params, form)}
        kept = self._kept(number)
        keep: dict[str, Any] = {}
        made: list[Array] = []
        table = []
        for index, array in enumerate(read(plain, form)):
            old = before.get(array.name)
            fits = old is not None and (old.dtype, old.data.shape) == (array.dtype, array.data.shape)
            if array.dtype not in _REAL or old is None or not fits:  # the other end says what is wrong
                table.append([array.name, array.dtype, list(array.data.shape), PLAIN])
                made.append(array._replace(name=str(index)))
                continue
            change = wide(array) - wide(old)
            table.append([array.name, array.dtype, list(array.data.shape), self.how])
            if self.how == PLAIN:
                made.append(Array(str(index), change.dtype.name, change.reshape(array.data.shape)))
                continue
            change += kept.get(array.name, 0)
            data, scales = encode(change, self.how, self.block)
            lost = change - decode(data, scales, self.how, self.block)
            keep[array.name] = np.where(np.isfinite(lost), lost, 0).astype(change.dtype)
            made.append(Array(str(index), LOSSY[self.how], data.reshape(array.data.shape)))
            if scales is not None:
                made.append(Array(f"{index}.scale", "float32", scales))
        metadata = {KEY: json.dumps({"change": True, "arrays": table})}
        if self.level:
            loose = weights.with_name(f".{weights.name}.loose")
            write(loose, "safetensors", made, metadata)
            compress(loose, weights, self.level)
            loose.unlink()
        else:
            write(weights, "safetensors", made, metadata)
        plain.unlink()
        self._keep(number, keep)

    def _kept(self, number: int) -> dict[str, Any]:
        """Return what the encoding lost in the last round before this one; a retried round asks twice."""
        earlier = [path for path in sorted(Path().glob("wire-lost-*.npz")) if _number(path) < number]
        for path in earlier[:-1]:
            path.unlink()
        if not earlier:
            return {}
        with np.load(str(earlier[-1]), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    def _keep(self, number: int, lost: dict[str, Any]) -> None:
        if lost:
            arrays = [Array(name, data.dtype.name, data) for name, data in lost.items()]
            write(Path(f"wire-lost-{number:04}.npz"), "npz", arrays)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def once(files: Files, command: list[str]) -> int:
    """Run a command for one round; return how it ended."""
    params, weights = Path(os.environ["ROUNDLOG_PARAMS"]), Path(os.environ["ROUNDLOG_WEIGHTS"])
    plain = files.unpack(params)
    names = {"ROUNDLOG_PARAMS": str(plain), "ROUNDLOG_WEIGHTS": str(weights.with_suffix(""))}
    code = subprocess.call(command, env={**os.environ, **names})
    if code == 0 and weights.with_suffix("").exists():
        files.pack(int(os.environ["ROUNDLOG_ROUND"]), plain, weights)
    return code


class Stays:
    """A command that stays: passes on what it is asked and what it prints, with its files decoded."""

    def __init__(self, files: Files, command: list[str]) -> None:
        self._files = files
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._input: Any = self._process.stdin
        self._output: Any = self._process.stdout
        self._asked: tuple[int, Path, Path] | None = None

    def run(self) -> int:
        """Go on until the command ends; return how."""
        threading.Thread(target=self._ask, daemon=True).start()
        fd = self._output.fileno()
        held, at_start = b"", True
        for chunk in iter(lambda: os.read(fd, 1 << 16), b""):
            held += chunk
            while held:
                line, newline, rest = held.partition(b"\n")
                mine = at_start and line.startswith(_ANSWER)
                whole = newline or len(line) > _LONGEST
                if not whole and at_start and (mine or _ANSWER.startswith(line)):
                    break
                _print(self._answer(line) + newline if mine and newline else line + newline)
                at_start, held = bool(newline), rest
        _print(held)
        return self._process.wait()

    def _ask(self) -> None:
        stdin = self._input
        with suppress(OSError):
            for line in iter(sys.stdin.buffer.readline, b""):
                request = json.loads(line)
                weights = Path(request["weights"])
                for name in request["remove"]:
                    with suppress(OSError):
                        Path(name).unlink()
                try:
                    params = self._files.unpack(Path(request["params"]))
                except _BROKEN as e:
                    _print(_error(request["round"], f"can't decode the params: {e}"))
                    continue
                self._asked = (request["round"], params, weights)
                request.update(remove=[], params=str(params), weights=str(weights.with_suffix("")))
                stdin.write(json.dumps(request).encode() + b"\n")
                stdin.flush()
            stdin.close()

    def _answer(self, line: bytes) -> bytes:
        """Return the answer to pass on, after the weights it speaks of are encoded."""
        asked, self._asked = self._asked, None
        try:
            answer = json.loads(line[len(_ANSWER) :])
        except (ValueError, RecursionError):
            return line  # the other end says what is wrong with it
        sane = asked is not None and isinstance(answer, dict) and answer.get("round") == asked[0]
        if asked is None or not sane or answer.get("error") is not None:
            return line
        try:
            self._files.pack(*asked)
        except FileNotFoundError:
            pass  # the pull will say so
        except _BROKEN as e:
            return _error(asked[0], f"can't encode the weights: {e}").strip(b"\n")
        return line


def _error(number: int, text: str) -> bytes:
    return b"\n" + _ANSWER + json.dumps({"round": number, "error": f"roundlog_wire: {text}"}).encode() + b"\n"


def _print(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def main(command: list[str]) -> int:
    """Run the command; return its exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the command has got it, too, and decides
    files = Files(json.loads(os.environ["ROUNDLOG_WIRE"]))
    try:
        code = Stays(files, command).run() if "ROUNDLOG_RESIDENT" in os.environ else once(files, command)
    except FileNotFoundError as e:
        sys.stderr.write(f"roundlog_wire: no such file: {e.filename}\n")
        return 1  # 127 would be said of this program
    except _BROKEN as e:
        sys.stderr.write(f"roundlog_wire: {e}\n")
        return 1
    if code < 0:
        with suppress(OSError):  # SIGKILL always is
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # at once: a thread may be waiting for stdin, and an orderly end would fail over that
