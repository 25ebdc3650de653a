"""Shows a run on stderr while it goes on, from the events alone; a closed stderr never stops the run."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from schemas.text import encoding, event_line, failed, number, printable, what, why

Listener = Callable[[dict[str, Any]], None]
_BEGINNINGS = frozenset({"push_start", "exec_start", "pull_start"})
_WAITING = 10_000
_LAST_S = 2.0
_STYLES = {"metric": "bold", "aggregate": "green", "run_end": "bold"}


class Background:
    """Shows events from a thread of its own, so that a reader that doesn't read holds up nothing.

    Args:
        show: what shows an event; what it can't keep up with is left out.
    """

    def __init__(self, show: Listener) -> None:
        self._show = show
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(_WAITING)
        self.stuck = False
        """Whether, once closed, it still waits for the reader, and holds the stream meanwhile."""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event soon."""
        with suppress(queue.Full):
            self._waiting.put_nowait(event)

    def close(self) -> None:
        """Show what is waiting, as far as the reader takes it within a moment."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=_LAST_S)
            self._thread.join(_LAST_S)
        self.stuck = self._thread.is_alive()

    def _work(self) -> None:
        while (event := self._waiting.get()) is not None:
            self._show(event)


class Lines:
    """One line an event; beginnings only when asked for.

    Args:
        stream: where to.
        beginnings: whether the ``*_start`` events of workers are shown, too.
    """

    def __init__(self, stream: TextIO, *, beginnings: bool = False) -> None:
        self._stream = stream
        plain = bool(os.environ.get("NO_COLOR"))
        self._console = Console(
            file=stream, highlight=False, soft_wrap=True, color_system=None if plain else "auto"
        )
        self._width = min(self._console.width, 100)
        self._dash = "\u2500" if _encodes(stream, "\u2500") else "-"
        self._beginnings = beginnings
        self._closed = False

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event."""
        if self._closed or (event["kind"] in _BEGINNINGS and not self._beginnings):
            return
        ruled = event["kind"] in {"round_start", "round_end"}
        line = self._rule(event) if ruled else event_line(event)
        if not _encodes(self._stream, line):
            line = line.encode("ascii", "replace").decode()
        try:
            if self._console.is_terminal:
                style = "bold red" if failed(event) else "cyan" if ruled else _STYLES.get(event["kind"], "")
                self._console.print(Text(line, style=style))
            else:
                self._stream.write(line + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            self._closed = True

    def _rule(self, event: dict[str, Any]) -> str:
        """Return a line across with what the round begins or ends with."""
        because = why(event)
        text = printable(f"{what(event)}: {because}" if because else what(event))
        lead = f"{'!!' if because else self._dash * 2} {event['t']:9.3f}  {text} "
        return lead + self._dash * max(self._width - len(lead), 2)


def _encodes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(encoding(stream))
    except (UnicodeEncodeError, LookupError):
        return False
    return True


_CAUSES = frozenset({"push", "exec", "pull", "reject", "aggregate", "worker_down", "metric"})
_FOLLOW = frozenset({"late", "deadline", "failures"})
"""Reasons that only follow from what went wrong elsewhere."""


class Recent:
    """Keeps what last went wrong with each worker, for those who saw no events."""

    def __init__(self) -> None:
        self._failed: dict[int | None, dict[str, Any]] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event."""
        if event["kind"] not in _CAUSES or not failed(event):
            return
        if str(event.get("error")).startswith(("ended: ", "cancelled")) or event.get("reason") in _FOLLOW:
            return
        self._failed.pop(event["rank"], None)
        self._failed[event["rank"]] = event

    def close(self) -> None:
        """Do nothing: it holds nothing open."""

    def lines(self, most: int = 5) -> list[str]:
        """Return a line for each of the last ones."""
        return [event_line(event) for event in list(self._failed.values())[-most:]]


class Bar:
    """A progress bar of rounds, for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[said]}"),
            console=Console(file=stream),
        )
        self._task = self._progress.add_task("", total=None, said="")

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event."""
        match event["kind"]:
            case "run_start":
                job = event["job"]
                self._progress.start()
                self._progress.update(self._task, description=job["name"], total=job["rounds"])
            case "round_end":
                self._progress.update(
                    self._task,
                    completed=event["round"] + (event["outcome"] == "ok"),
                    said=f"{event['survivors']}/{event['total_nodes']} survivors",
                )
            case "metric" if event["rank"] is None and event["values"]:
                name, value = next(iter(event["values"].items()))
                self._progress.update(self._task, said=f"{name} {number(value)}")
            case "run_end":
                self._progress.stop()
            case _ if failed(event):
                self._progress.console.print(Text(event_line(event), style="bold red"))
