"""Which character shows which state, by what the output can encode; knows no chart."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

SETS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "blocks": MappingProxyType(
            {
                "push": "▒",
                "train": "█",
                "pull": "▚",
                "aggregate": "◆",
                "eval": "◇",
                "dead": "╳",  # noqa: RUF001 - a line drawing, as meant
                "rejected": "!",
                "wait": "·",
                "axis": "─",
                "tick": "┬",
            }
        ),
        "braille": MappingProxyType(
            {
                "push": "⠒",
                "train": "⣿",
                "pull": "⠶",
                "aggregate": "⢾",
                "eval": "⠭",
                "dead": "x",
                "rejected": "!",
                "wait": ".",
                "axis": "-",
                "tick": "+",
            }
        ),
        "shades": MappingProxyType(
            {
                "push": "▒",
                "train": "█",
                "pull": "▓",
                "aggregate": "■",
                "eval": "E",
                "dead": "x",
                "rejected": "!",
                "wait": "·",
                "axis": "─",
                "tick": "┬",
            }
        ),
        "ascii": MappingProxyType(
            {
                "push": ">",
                "train": "#",
                "pull": "<",
                "aggregate": "A",
                "eval": "E",
                "dead": "x",
                "rejected": "!",
                "wait": ".",
                "axis": "-",
                "tick": "+",
            }
        ),
    }
)
"""Every set of glyphs; braille is as wide everywhere, blocks may be two wide in East Asian terminals."""

COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "push": "cyan",
        "train": "blue",
        "pull": "green",
        "aggregate": "yellow",
        "eval": "magenta",
        "dead": "red",
        "rejected": "red",
        "wait": "bright_black",
    }
)


def choose(wanted: str, encoding: str | None) -> Mapping[str, str]:
    """Return the set that was asked for, or the first that `encoding` has."""
    if wanted != "auto":
        return SETS[wanted]
    language = (os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "")[:2]
    first = ["braille", "blocks"] if language in {"zh", "ja", "ko"} else ["blocks"]
    for name in (*first, "shades", "ascii"):
        try:
            "".join(SETS[name].values()).encode(encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            continue
        return SETS[name]
    return SETS["ascii"]
