"""The options that commands share, and what is meant by them; reads no log and prints nothing."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import click

from analyze import cache
from analyze.database import DEFAULT_FOLDER
from analyze.glyphs import SETS, choose
from analyze.terminal import Paper
from schemas.text import encoding

_UNKEPT = "analyze.unkept"


def kept_in() -> Path | None:
    """Return where what is loaded may be kept; None for nowhere."""
    return None if click.get_current_context().meta.get(_UNKEPT) else cache.folder()


def paper(width: int | None = None, glyphs: str = "auto") -> Paper:
    """Return what stdout shows on: the terminal, or columns and glyphs as they were asked for."""
    terminal = sys.stdout.isatty()
    # click drops colours by itself where stdout is no terminal; NO_COLOR is ours to heed.
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    columns = width or shutil.get_terminal_size((80, 24)).columns
    return Paper(
        columns, choose(glyphs, encoding(sys.stdout)), colour=colour, wrap=terminal or width is not None
    )


def rounds(values: tuple[str, ...]) -> set[int] | None:
    """Return the rounds named as ``3`` or ``2-5``."""
    wanted: set[int] = set()
    for value in values:
        if not (found := re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", value)):
            raise click.BadParameter(
                f"{value!r} is neither a round nor a range such as 2-5", param_hint="--round"
            )
        first = int(found[1])
        last = int(found[2] or first)
        if last < first or last - first > 100_000:
            raise click.BadParameter(f"{value!r} is no range", param_hint="--round")
        wanted.update(range(first, last + 1))
    return wanted or None


def parameters(given: tuple[str, ...]) -> dict[str, str]:
    """Return the parameters given as ``NAME=VALUE``."""
    pairs = [one.partition("=") for one in given]
    for name, equals, _ in pairs:
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{name!r} is not of the form NAME=VALUE", param_hint="--param")
    return {name: value for name, _, value in pairs}


LOG = click.argument("log", type=click.Path(path_type=Path))
WIDTH = click.option(
    "--width", type=click.IntRange(20, 10_000), help="Columns to use; default: the terminal's, or 80."
)
GLYPHS = click.option(
    "--glyphs", type=click.Choice(["auto", *SETS]), default="auto", help="Characters to draw with."
)
WORKERS = click.option(
    "--workers",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Workers to draw; the rest is counted.",
)
RUNS = click.option(
    "--runs", "folder", default=DEFAULT_FOLDER, show_default=True, help="Folder with logs, if none is named."
)


def _unkept(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_UNKEPT] = value


NO_CACHE = click.option(
    "--no-cache",
    is_flag=True,
    expose_value=False,
    callback=_unkept,
    help="Read the logs anew, and keep nothing for the next look.",
)
