"""A folder of files that may be lost at any time: written whole, read only if whole; knows no log."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgspec

LIMIT_BYTES = 2 << 30
"""What all files may take; those that were not used for longest go first."""
_ABANDONED_S = 24 * 3600
T = TypeVar("T")


def folder() -> Path | None:
    """Return the user's cache folder, made if need be; None where there can be none.

    `ROUNDLOG_CACHE` names it; else it is where the XDG base directory specification says.
    """
    said = os.environ.get("XDG_CACHE_HOME", "")
    try:
        under = Path(said) if said.startswith("/") else Path.home() / ".cache"
        place = Path(os.environ.get("ROUNDLOG_CACHE") or under / "roundlog")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return place.absolute()


@cache
def code() -> str:
    """Return what changes with whatever decides what a log says: our sources, and DuckDB."""
    made = hashlib.sha256(duckdb.__version__.encode())
    for package in ("analyze", "schemas"):
        for file in sorted(files(package).iterdir(), key=lambda f: f.name):
            if file.name.endswith((".py", ".sql")):
                made.update(file.read_bytes())
    return made.hexdigest()


def read(path: Path, kind: type[T]) -> T | None:
    """Return what was written; None if it is not there or not whole."""
    try:
        digest, _, text = path.read_bytes().partition(b"\n")
        if digest != hashlib.sha256(text).hexdigest().encode():
            return None
        return msgspec.json.decode(text, type=kind, dec_hook=lambda made, value: made(value))
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def write(path: Path, made: Any) -> None:
    """Replace a file whole.

    Raises:
        OSError: it can't be written.
        UnicodeError: what is to be written is no text.
    """
    text = msgspec.json.encode(made, enc_hook=str)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def used(*paths: Path) -> None:
    """Note that files were of use."""
    for path in paths:
        with suppress(OSError):
            os.utime(path)


def prune(place: Path) -> None:
    """Remove what was not used for longest until the folder is within its limit, and what was left behind."""
    found = []
    for path in place.iterdir():
        with suppress(OSError):
            status = path.stat()
            if path.name.startswith(".") and time.time() - status.st_mtime > _ABANDONED_S:
                path.unlink(missing_ok=True)
            elif not path.name.startswith("."):
                found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= LIMIT_BYTES:
            return
        with suppress(OSError):
            path.unlink(missing_ok=True)
        total -= size
