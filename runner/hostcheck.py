"""Tries every host of a job at once and tells of each what it is like, or what is wrong with it."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import trio

from runner.connection import Connection
from runner.errors import WorkerError
from runner.fleet import Connect
from runner.job import PYTHON, Command, Job, LoadedJob
from runner.output import Output
from schemas.text import duration, size

_PROBE_BYTES = 4 << 20
_TIMEOUT_S = 60.0
_PRINTED_BYTES = 10_000
_LOOK_UP = ("sh", "-c", 'command -v "$1" >/dev/null || exit 1', "sh")
_NUMPY = "import numpy\n"
_ZSTD = "try: import compression.zstd\nexcept ImportError: import zstandard\n"


@dataclass(slots=True)
class Tried:
    """What came of one host: its figures in words, and what is wrong, if anything is."""

    rank: int
    host: str
    figures: dict[str, str] = field(default_factory=dict)
    wrong: str | None = None


COLUMNS = ("rtt", "cpus", "memory", "disk free", "gpus", "python", "clock", "up", "down")


async def try_all(loaded: LoadedJob) -> list[Tried]:
    """Connect to all hosts at once; return what came of each, by rank."""
    from runner.transports.ssh import Machines, session  # noqa: PLC0415 - asyncssh is slow to import

    hosts = loaded.machines()
    tried = [Tried(rank, host.shown) for rank, host in enumerate(hosts)]
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe"
        probe.write_bytes(os.urandom(_PROBE_BYTES))
        async with session():
            machines = Machines(
                loaded.job.ssh, hosts, f"check-{secrets.token_hex(4)}", Path(folder) / "host_keys"
            )
            async with trio.open_nursery() as nursery:
                for one in tried:
                    nursery.start_soon(_try, machines.connect, one, probe, loaded.job)
    return tried


async def _try(connect: Connect, tried: Tried, probe: Path, job: Job) -> None:
    connection: Connection | None = None
    try:
        with trio.fail_after(_TIMEOUT_S):
            connection = await connect(tried.rank)
            tried.figures = _figures(connection)
            began = time.perf_counter()
            await connection.push(probe, "probe")
            sent = time.perf_counter()
            await connection.pull("probe", probe.with_name(f"back-{tried.rank}"), max_bytes=_PROBE_BYTES)
            back = time.perf_counter()
            tried.figures["up"] = f"{size(_PROBE_BYTES / (sent - began))}/s"
            tried.figures["down"] = f"{size(_PROBE_BYTES / (back - sent))}/s"
            tried.wrong = await _lacking(connection, job, probe.with_name(f"printed-{tried.rank}"))
    except WorkerError as e:
        tried.wrong = str(e)
    except trio.TooSlowError:
        tried.wrong = f"nothing within {_TIMEOUT_S:g} s"
    finally:
        if connection is not None:
            await connection.close(done=True)


async def _lacking(connection: Connection, job: Job, printed: Path) -> str | None:
    """Return what a machine lacks of what the job's commands need, in words."""
    command, python = job.train.command or "", job.wire.python
    found = isinstance(command, str) or command[0] == PYTHON or "/" in command[0] or "PATH" in job.train.env
    if not found and await _fails(connection, (*_LOOK_UP, command[0]), printed) is not None:
        return f"train.command: it has no program {command[0]!r} on its PATH"
    if not job.wire.active or ("/" in python and not PurePosixPath(python).is_absolute()):
        return None  # found from a folder that isn't filled yet
    code, needed = _NUMPY, "NumPy"
    if job.wire.zstd:
        code, needed = _NUMPY + _ZSTD, "NumPy and the package zstandard (or Python 3.14)"
    said = await _fails(connection, (python, "-c", code), printed)
    return None if said is None else f"wire.python: {python} needs {needed} there: {said}"


async def _fails(connection: Connection, command: Command, printed: Path) -> str | None:
    """Return the last thing a command prints that fails; None if it doesn't."""
    with Output(printed, _PRINTED_BYTES) as output:
        ended = await connection.exec(command, env={}, output=output)
        return (output.tail() or f"exit code {ended.exit_code}") if ended.exit_code else None


def _figures(connection: Connection) -> dict[str, str]:
    facts = connection.facts
    told = {
        "rtt": duration(float(facts.get("round_trip_s", 0))),
        "cpus": str(facts.get("cpus", "?")),
        "memory": _bytes(facts.get("memory_bytes")),
        "disk free": _bytes(facts.get("disk_free_bytes")),
        "gpus": str(facts.get("gpus", "?")),
        "python": str(facts.get("python", "?")),
    }
    offset = facts.get("clock_offset_s", 0)
    told["clock"] = f"{offset:+d} s" if isinstance(offset, int) and offset else "right"
    return told


def _bytes(given: str | float | None) -> str:
    return size(given) if isinstance(given, int | float) else "?"
