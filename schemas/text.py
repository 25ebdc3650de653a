"""The one-line text form of an event, and of the numbers in it; knows no colour and no terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, TextIO

TAIL_CHARACTERS = 80


def printable(text: str) -> str:
    """Return `text` without control, formatting and unassigned characters; white space becomes a blank."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)


def encoding(stream: TextIO) -> str:
    """Return what a stream's reader can take: its encoding, but ASCII where the locale was set to C.

    Python takes the C locale for UTF-8; whoever sets it by name means ASCII.
    """
    name = next((os.environ[v] for v in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(v)), "")
    if name in {"C", "POSIX"} and not os.environ.get("PYTHONIOENCODING"):
        return "ascii"
    return stream.encoding or "ascii"


def tail(text: str, characters: int = TAIL_CHARACTERS) -> str:
    """Return the last line of `text` that is not empty, printable, at most `characters` long."""
    for line in reversed(text.splitlines()):
        shown = printable(line).strip()
        if shown:
            return shown if len(shown) <= characters else shown[: characters - 1] + "\u2026"
    return ""


def size(count: float | None) -> str:
    """Return bytes for people: ``9.4 KB``; ``?`` where not known."""
    if count is None:
        return "?"
    if count < 999.5:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5 or unit == "TB":
            break
    return f"{count:.{1 if count < 99.95 else 0}f} {unit}"


def duration(seconds: float | None) -> str:
    """Return seconds for people: ``312 ms``, ``12.3 s``, ``5m12s``, ``3h07m``; ``?`` where not known."""
    if seconds is None:
        return "?"
    if seconds < 0.9995:
        return f"{seconds * 1000:.{1 if seconds < 0.00995 else 0}f} ms"
    if seconds < 99.95:
        return f"{seconds:.{2 if seconds < 9.995 else 1}f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def number(value: float | None) -> str:
    """Return a number with four significant digits; ``?`` where not known."""
    if value is None:
        return "?"
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e6):
        return str(int(value))
    return f"{value:.4g}"


def _plural(count: Any, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def failed(event: Mapping[str, Any]) -> bool:
    """Say whether the event tells of something that went wrong."""
    kind = event.get("kind")
    return (
        kind in {"reject", "worker_down"}
        or bool(event.get("error"))
        or (kind == "round_end" and event.get("outcome") != "ok")
        or (kind == "run_end" and event.get("status") != "completed")
    )


def why(event: Mapping[str, Any]) -> str:
    """Say what went wrong, if something did."""
    if not failed(event):
        return ""
    if event.get("kind") in {"reject", "worker_down"}:
        return f"{event.get('reason')}: {event.get('detail')}"
    return str(event.get("error") or event.get("reason") or "")


def _transfer(event: Mapping[str, Any]) -> str:
    if str(event["kind"]).endswith("_start"):
        return f"{event.get('path')} begins"
    reused = f", {size(event['reused'])} reused" if event.get("reused") else ""
    stands = f" for {size(event['plain_bytes'])}" if event.get("plain_bytes") else ""
    sent = f"{size(event.get('size_bytes'))}{stands}{reused}"
    return f"{event.get('path')}  {sent}  {duration(event.get('duration_s'))}"


def _exec(event: Mapping[str, Any]) -> str:
    code = event.get("exit_code")
    ended = ("no exit code" if event.get("error") else "stays") if code is None else f"exit {code}"
    said = event.get("output_tail")
    return f"{ended}  {duration(event.get('duration_s'))}" + (f"  {said}" if said else "")


def _metric(event: Mapping[str, Any]) -> str:
    values = [f"{name} {number(value)}" for name, value in (event.get("values") or {}).items()]
    if event.get("num_samples") is not None:
        values.append(f"{number(event['num_samples'])} samples")
    return ", ".join(values)


def _aggregate(event: Mapping[str, Any]) -> str:
    return (
        f"{_plural(event.get('num_workers'), 'worker')}  |W| {number(event.get('weight_norm'))}"
        f"  delta {number(event.get('delta_norm'))}  {duration(event.get('duration_s'))}"
    )


def what(event: Mapping[str, Any]) -> str:
    """Say what the event tells, without its failure."""
    match event.get("kind"):
        case "run_start":
            job = event.get("job") or {}
            return (
                f"{job.get('name', '?')}: {_plural(job.get('rounds', '?'), 'round')}, "
                f"{_plural(event.get('total_nodes'), 'worker')}, params {size(event.get('params_bytes'))}"
            )
        case "run_resume":
            return f"session {event.get('session')} goes on after event {event.get('trusted_seq')}"
        case "run_end":
            return (
                f"{event.get('status')}, {_plural(event.get('rounds'), 'round')}, "
                f"{duration(event.get('duration_s'))}"
            )
        case "worker_up":
            return str(event.get("address"))
        case "worker_down":
            return "left for good" if event.get("for_good") else "left"
        case "round_start":
            again = f", attempt {event['attempt']}" if (event.get("attempt") or 1) > 1 else ""
            active, total = event.get("active_nodes"), event.get("total_nodes")
            # Spares that stand by, and who is left out for good, are workers of the job all the same.
            some = f"{active} of " if None not in {active, total} and active != total else ""
            listed = active if total is None else total
            return f"round {event.get('round')}: {some}{_plural(listed, 'worker')}{again}"
        case "round_end":
            return (
                f"round {event.get('round')}: {event.get('survivors')}/{event.get('total_nodes')} survivors, "
                f"{duration(event.get('duration_s'))}"
            )
        case "push" | "pull" | "push_start" | "pull_start":
            return _transfer(event)
        case "exec_start":
            return f"{event.get('command')}"
        case "exec":
            return _exec(event)
        case "metric":
            return _metric(event)
        case "aggregate":
            return _aggregate(event)
        case "reject":
            in_time = event.get("reason") not in {"late", "deadline"}
            return "weights kept out" if in_time else ""
        case _:
            return ""


def event_line(event: Mapping[str, Any]) -> str:
    """Return one printable line: ``!!`` where it failed, elapsed seconds, worker, kind, what and why."""
    rank = event.get("rank")
    who = "" if rank is None else f"w{rank}"
    mark = "!!" if failed(event) else "  "
    said, because = what(event), why(event)
    attempt = event.get("attempt") or 1
    if attempt > 1 and event.get("kind") != "round_start":
        said += f"  (attempt {attempt})"
    text = f"{said}: {because}" if said and because else said or because
    return printable(f"{mark} {event.get('t') or 0:9.3f}  {who:<4} {event.get('kind'):<10} {text}").rstrip()
