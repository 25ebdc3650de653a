"""What a job file says about simulated workers, as types, and what of it types can't say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from runner.draws import DRAW, Draw, fault_of

What = Literal["crash", "hang", "slow", "nan", "shape", "vanish", "partition"]
During = Literal["push", "exec", "pull"]

_RANKS = "a list of ranks, whole numbers from 0"
_SPEED = "a number of bytes a second, above 0"
_SECONDS = "a number of seconds from 0 to 31536000 (a year)"


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that goes wrong, as planned or by chance."""

    what: Annotated[
        What,
        Meta(description='"crash", "hang", "slow", "nan", "shape", "vanish" or "partition"'),
    ]
    during: Annotated[
        During, Meta(description='"push", "exec" or "pull": where a crash, hang or slowness strikes')
    ] = "exec"
    ranks: Annotated[tuple[int, ...] | None, Meta(description=_RANKS)] = None
    rounds: Annotated[tuple[int, ...] | None, Meta(description="a list of rounds, from 0")] = None
    probability: Annotated[
        float, Meta(ge=0, le=1, description="a number from 0.0 to 1.0: of each worker in each round")
    ] = 1.0
    times: Annotated[
        int, Meta(ge=1, le=1_000_000, description="a whole number, 1 or more: how often in a try of a round")
    ] = 1
    factor: Annotated[
        float, Meta(ge=1, le=1e6, description="a number from 1 to 1000000: times as slow (slow)")
    ] = 10.0
    for_rounds: Annotated[
        int, Meta(ge=1, le=1000, description="a whole number from 1 to 1000: rounds it is gone (vanish)")
    ] = 1
    at_s: Annotated[float, Meta(ge=0, le=31_536_000, description=_SECONDS + ": when it begins")] = 0.0
    for_s: Annotated[float, Meta(ge=0, le=31_536_000, description=_SECONDS + ": how long it lasts")] = 60.0


class Sim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Simulated workers: how fast they are, and what goes wrong."""

    train_s: Annotated[Draw | float, Meta(description=DRAW + ": seconds, for each worker and round")] = 60.0
    slowness: Annotated[
        Draw | float, Meta(description=DRAW + ": times as long it trains, once for each worker")
    ] = 1.0
    latency_s: Annotated[Draw | float, Meta(description=DRAW + ": seconds, once for each worker")] = 0.05
    line_bytes_per_s: Annotated[
        Draw | float, Meta(description=DRAW + ": of its line, once for each worker")
    ] = 12_500_000.0
    uplink_bytes_per_s: Annotated[
        float | None, Meta(description=_SPEED + ": of the coordinator, shared by all pushes")
    ] = None
    downlink_bytes_per_s: Annotated[
        float | None, Meta(description=_SPEED + ": of the coordinator, shared by all pulls")
    ] = None
    params_bytes: Annotated[
        int,
        Meta(ge=0, le=2**53, description="a whole number of bytes: what params and weights are taken for"),
    ] = 1_000_000
    samples: Annotated[
        Draw | float | None, Meta(description=DRAW + ": samples each worker reports, once for each worker")
    ] = None
    faults: Annotated[tuple[Fault, ...], Meta(description="a list of tables [[sim.faults]]")] = ()


DRAWN = ("train_s", "slowness", "latency_s", "line_bytes_per_s", "samples")
"""Keys that are distributions."""


def mistakes(
    sim: dict[str, Any], wrong: set[str], folder: Path, nodes: int | None
) -> list[tuple[str, str, str]]:
    """Return what types can't say is wrong with a ``[sim]`` table, as (key, received, allowed).

    Args:
        sim: the table.
        wrong: keys whose types are wrong already.
        folder: where relative paths start.
        nodes: workers and spares, where that is known.
    """
    found: list[tuple[str, str, str]] = []

    def add(key: str, received: str, allowed: str) -> None:
        if not any(key == bad or bad.startswith(key + ".") for bad in wrong):
            found.append((key, received, allowed))

    for name in DRAWN:
        key = f"sim.{name}"
        if name in sim and not any(bad == key or bad.startswith(key + ".") for bad in wrong):
            fault = fault_of(sim[name], folder)
            if fault is not None:
                add(key, *fault)
    for name in ("uplink_bytes_per_s", "downlink_bytes_per_s"):
        speed = sim.get(name)
        if isinstance(speed, int | float) and not 0 < speed < float("inf"):
            add(f"sim.{name}", f"received {speed!r}", _SPEED)
    faults = sim.get("faults")
    for number, fault in enumerate(faults if isinstance(faults, list) else ()):
        key = f"sim.faults[{number}]"
        ranks, rounds = (
            (fault.get(name) for name in ("ranks", "rounds")) if isinstance(fault, dict) else (0, 0)
        )
        if isinstance(ranks, list) and f"{key}.ranks" not in wrong:
            most = float("inf") if nodes is None else nodes
            if not ranks or not all(0 <= rank < most for rank in ranks):
                add(f"{key}.ranks", f"received {ranks!r}", f"{_RANKS} to {most - 1:g}, not empty")
        if isinstance(rounds, list) and f"{key}.rounds" not in wrong and (not rounds or min(rounds) < 0):
            add(f"{key}.rounds", f"received {rounds!r}", "a list of rounds, from 0, not empty")
    return found
