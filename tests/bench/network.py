"""How much of a slow link rounds over SSH use: hosts in network namespaces, behind one link of a given rate.

Usage: python tests/bench/network.py [--hosts N] [--megabytes N] [--rate 100] [--rounds N]

The coordinator's own link is limited, both ways, as an uplink is that all workers share. What is measured is
the time from a round's first push to its last, and likewise of the pulls, against bytes over bandwidth.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from jobs import COPY, Started, read_log, write_job  # noqa: E402 - after the path
from network import Network  # noqa: E402 - likewise

TARGET = 1.1


def moved(events: list[dict[str, Any]], kind: str, number: int) -> tuple[int, float]:
    """Return the bytes of a round's pushes or pulls, and the seconds from the first to the last."""
    ended = [e for e in events if e["kind"] == kind and e["round"] == number]
    assert not [e for e in ended if e["error"]], ended
    began = min(e["t"] - e["duration_s"] for e in ended)
    return sum(e["size_bytes"] - e["reused"] for e in ended), max(e["t"] for e in ended) - began


def measure(folder: Path, hosts: int, megabytes: float, rate: float, rounds: int) -> None:
    with Network(folder / "network", hosts + 1) as network:
        *machines, own = network.machines
        for way in ("to", "from"):
            own.shape(f"{rate}mbit", way, burst="512kb")
        worker = [
            {
                "host": machine.address,
                "key": str(machine.sshd.key),
                "host_key": machine.sshd.host_key,
                "folder": str(machine.sshd.home / "work"),
            }
            for machine in machines
        ]
        path = write_job(
            folder / "job",
            workers=None,
            worker=worker,
            rounds=rounds,
            train={"command": COPY, "timeout_s": 600},
        )
        count = round(megabytes * 250_000)
        np.save(
            path.parent / "params.npy", np.random.default_rng(0).standard_normal(count).astype(np.float32)
        )
        with Started(path, within=own.space.enter) as started:
            out, err = started.process.communicate(timeout=600)
        assert started.process.returncode == 0, err
        events = read_log(Path(out.strip()))
    total = total_least = 0.0
    for number in range(rounds):
        for kind in ("push", "pull"):
            size, taken = moved(events, kind, number)
            least = size * 8 / (rate * 1e6)
            total, total_least = total + taken, total_least + least
            print(f"round {number} {kind}  {taken:6.2f} s  {taken / least:5.3f} of bytes over bandwidth")
    print(
        f"{hosts} x {megabytes:g} MB at {rate:g} Mbit/s, {rounds} rounds  {total:6.2f} s  "
        f"{total / total_least:5.3f} of bytes over bandwidth (target {TARGET})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        try:
            measure(Path(name), given.hosts, given.megabytes, given.rate, given.rounds)
        except pytest.skip.Exception as e:
            print(f"not measured: {e}")


if __name__ == "__main__":
    main()
