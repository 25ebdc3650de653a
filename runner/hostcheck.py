"""Tries every host of a job at once and tells of each what it is like, or what is wrong with it."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import trio

from runner.connection import Connection
from runner.errors import WorkerError
from runner.fleet import Connect
from runner.job import LoadedJob
from schemas.text import duration, size

_PROBE_BYTES = 4 << 20
_TIMEOUT_S = 60.0


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
                    nursery.start_soon(_try, machines.connect, one, probe)
    return tried


async def _try(connect: Connect, tried: Tried, probe: Path) -> None:
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
    except WorkerError as e:
        tried.wrong = str(e)
    except trio.TooSlowError:
        tried.wrong = f"nothing within {_TIMEOUT_S:g} s"
    finally:
        if connection is not None:
            await connection.close(done=True)


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
