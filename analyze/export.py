"""Writes the result of a query as table, csv, json, jsonl, markdown or parquet; knows no log."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from analyze import lazy
from analyze.terminal import Column, fitted, joined
from schemas.text import printable

FORMATS = ("table", "csv", "json", "jsonl", "markdown", "parquet")


class NoResultError(Exception):
    """A statement gave nothing that could be written."""


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list | tuple):
        return json.dumps(_plain(value), ensure_ascii=False)
    return str(value)


def _json(value: Any) -> str:
    """Return JSON on one line; what a terminal may obey is escaped, which means the same to who reads it."""
    made = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return (
        made if made.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in made)
    )


def _markdown(row: Sequence[Any]) -> str:
    cells = (printable(_cell(value)).replace("\\", "\\\\").replace("|", "\\|") for value in row)
    return "| " + " | ".join(cell.replace("<", "&lt;") for cell in cells) + " |\n"


def text(
    names: Sequence[str],
    types: Sequence[Any],
    rows: Sequence[Sequence[Any]],
    form: str,
    *,
    width: int | None = None,
) -> str:
    """Return rows as text; `width`: that of the terminal which shows it, None for a pipe or a file."""
    if form in {"json", "jsonl"}:
        lines = [_json(dict(zip(names, map(_plain, row), strict=True))) for row in rows]
        return "".join(f"{line}\n" for line in lines) if form == "jsonl" else "[" + ",\n ".join(lines) + "]\n"
    if form == "markdown":
        return "".join(_markdown(row) for row in (names, ["---"] * len(names), *rows))
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(value) for value in row] for row in rows)
        made = out.getvalue()
        return made if width is None else "\n".join(map(printable, made.split("\n")))
    numeric = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UBIGINT", "FLOAT", "DOUBLE"}
    columns = [Column(n, right=str(t) in numeric) for n, t in zip(names, types, strict=True)]
    return joined(fitted(columns, [[_cell(value) for value in row] for row in rows], width))


@contextmanager
def parquet_room(con: duckdb.DuckDBPyConnection) -> Iterator[Path]:
    """Give a private folder that a fenced database may write into, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="roundlog-") as folder:
        con.execute("SET allowed_directories = ?", [[folder]])
        yield Path(folder) / "result.parquet"


def write_parquet(
    con: duckdb.DuckDBPyConnection, query: str, path: Path, parameters: dict[str, str] | None = None
) -> None:
    """Write the result of a query; it can reach no other file.

    Raises:
        NoResultError: the statement has no result.
    """
    lazy.Tables(con).need(query)
    relation = con.sql(query, params=parameters) if parameters else con.sql(query)
    if relation is None:
        raise NoResultError("the statement has no result to write as parquet")
    relation.write_parquet(str(path))


def move_into_place(made: Path, target: Path) -> None:
    """Put a finished file at its place, whole or not at all."""
    near = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(made, near)
        near.replace(target)
    finally:
        near.unlink(missing_ok=True)


def write_whole(target: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    near = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        near.write_bytes(content)
        near.replace(target)
    finally:
        near.unlink(missing_ok=True)
