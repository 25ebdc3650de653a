"""Jobs whose workers are behind an OpenSSH server on loopback, and what is left of them there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jobs import COPY, Started, eventually, write_job
from sshd import Sshd

MARKS = "ROUNDLOG_PROCESS="
BUSY = (
    "[ $ROUNDLOG_RANK != 1 ] || [ $ROUNDLOG_ROUND != 1 ] || [ -e ../once ] || { touch ../once; sleep 600; }; "
)
"""What worker 1 does first in round 1 of a job, once: wait."""


def host(server: Sshd, **more: Any) -> dict[str, Any]:
    return {
        "host": server.address,
        "port": server.port,
        "key": str(server.key),
        "host_key": server.host_key,
        "folder": str(server.home / "work"),
        **more,
    }


def job(folder: Path, hosts: list[dict[str, Any]], **changes: Any) -> Path:
    return write_job(folder, **{"workers": None, "worker": hosts, **changes})


def left_running(run: str) -> list[int]:
    """Return the processes of a run, wherever they are."""
    mark = f"{MARKS}{run}.".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [int(entry.parent.name)] if mark in entry.read_bytes() else []
        except OSError:
            continue
    return found


def wait_for(started: Started, text: str, count: int) -> list[Path]:
    eventually(
        lambda: any(log.read_text().count(text) >= count for log in started.runs.glob("*.jsonl")), text
    )
    return list(started.runs.glob("*.jsonl"))


def clients(folder: Path) -> list[int]:
    """Return the processes of OpenSSH's client that runs below a folder have started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = entry.read_bytes()
            ours = b"HostKeyAlias=roundlog-" in words and bytes(folder) in words
            found += [int(entry.parent.name)] if ours else []
    return found


def large_job(folder: Path, server: Sshd, **changes: Any) -> Path:
    """Write a job whose params go through OpenSSH's client."""
    path = job(folder, [host(server), host(server)], train={"command": BUSY + COPY}, **changes)
    np.save(folder / "params.npy", np.zeros(2_500_000, np.float32))
    return path
