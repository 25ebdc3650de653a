"""Runs random jobs of simulated workers under random faults, and sees that each log tells an honest run.

A seed gives the job, its policy and its faults; the same seed gives the same again.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import orjson

from runner.chaos import Chaos
from runner.draws import Draw, LogNormal
from runner.errors import RoundlogError
from runner.job import Aggregate, Deadlines, Job, LoadedJob, Params, Policy, Train
from runner.runfolder import RunFolder
from runner.simjob import Fault, Sim
from runner.simulation import run
from schemas.events import BY_KIND, field_names

_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_NEVER_S = 1e7
"""A run that takes longer, in simulated seconds, doesn't end."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a seed stands for."""

    job: Job
    chaos: Chaos | None


def case(seed: int) -> Case:
    """Return the job and the chaos of a seed."""
    rng = Random(f"soak {seed}")
    workers = rng.randint(1, 12)
    sim = Sim(
        train_s=_one(rng, [10.0, Draw(uniform=(5, 20)), Draw(lognormal=LogNormal(median=10, sigma=0.5))]),
        slowness=_one(rng, [1.0, Draw(uniform=(1, 3))]),
        latency_s=rng.choice([0.0, 0.1]),
        line_bytes_per_s=_one(rng, [1e6, Draw(uniform=(1e5, 1e6))]),
        uplink_bytes_per_s=rng.choice([None, 2e6]),
        downlink_bytes_per_s=rng.choice([None, 2e6]),
        samples=rng.choice([None, Draw(uniform=(1, 100))]),
        faults=tuple(_fault(rng, workers) for _ in range(rng.randint(0, 4))),
    )
    close_at = rng.choice([None, 0.5, 0.9, 1.0])
    quorum = rng.choice([None, 1, max(1, workers // 2), 0.75]) if close_at is None else 1
    policy = Policy(
        quorum=quorum if isinstance(quorum, float) or quorum is None else min(quorum, workers),
        close_at=close_at,
        grace_s=rng.choice([0.0, 5.0]),
        retries=rng.randint(0, 2),
        backoff_s=rng.choice([0.0, 1.0]),
        round_retries=rng.randint(0, 3),
        max_failures=rng.randint(1, 4),
        on_loss="stop" if rng.random() < 0.05 else "continue",
    )
    deadlines = Deadlines(
        push_s=rng.choice([5.0, 60.0]),
        pull_s=rng.choice([5.0, 60.0]),
        round_s=rng.choice([None, 40.0, "auto"]),
        auto_floor_s=5.0,
        auto_ceiling_s=90.0,
    )
    job = Job(
        name=f"soak-{seed}",
        rounds=rng.randint(1, 6),
        seed=max(seed, 0),
        workers=workers,
        spares=rng.choice([0, 0, 2]),
        params=Params(),
        train=Train(timeout_s=rng.choice([15.0, 100.0]), retries=rng.randint(0, 1)),
        sim=sim,
        aggregate=Aggregate(weighting=rng.choice(["num_samples", "uniform"])),
        policy=policy,
        deadlines=deadlines,
    )
    chaos = None
    if rng.random() < 0.5:
        chaos = Chaos(
            faults_per_hour=rng.choice([60.0, 1000.0]),
            seed=max(seed, 0),
            outage_s=rng.choice([0.0, 30.0]),
        )
    return Case(job, chaos)


def _one(rng: Random, ways: list[Draw | float]) -> Draw | float:
    return rng.choice(ways)


def _fault(rng: Random, workers: int) -> Fault:
    return Fault(
        what=rng.choice(["crash", "hang", "slow", "nan", "shape", "vanish", "partition"]),
        during=rng.choice(["push", "exec", "pull"]),
        ranks=rng.choice([None, tuple(rng.sample(range(workers), rng.randint(1, workers)))]),
        rounds=rng.choice([None, (rng.randint(0, 5),)]),
        probability=rng.choice([0.05, 0.3, 1.0]),
        times=rng.choice([1, 9]),
        factor=rng.choice([2.0, 20.0]),
        for_rounds=rng.randint(1, 3),
        at_s=rng.uniform(0, 100),
        for_s=rng.uniform(0, 60),
    )


def soak(seed: int, check: Callable[[Path], None] = lambda _: None) -> list[str]:
    """Run the case of a seed and return what is wrong with its log; nothing if all is well.

    Args:
        seed: of the case.
        check: called with the log, to look at more of it.
    """
    drawn = case(seed)
    seen: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="roundlog-soak-") as name:
        runs = Path(name)
        loaded = LoadedJob(job=drawn.job, file=runs / "soak.toml", folder=runs, secrets={})
        folder = RunFolder.create(runs, drawn.job.name, _BEGAN)
        try:
            run(loaded, folder, _BEGAN, [_Watch(seen)], chaos=drawn.chaos)
        except RoundlogError as e:
            return [f"it could not be run: {e}"]
        except Exception as e:  # noqa: BLE001 - whatever it is, the seed is what helps
            return [f"it crashed: {e!r}"]
        check(folder.log)
        return list(mistakes(drawn.job, folder, seen))


class _Watch:
    """Keeps what was told."""

    def __init__(self, seen: list[dict[str, Any]]) -> None:
        self._seen = seen

    def __call__(self, event: dict[str, Any]) -> None:
        if event["t"] > _NEVER_S:
            raise RuntimeError("the run does not end")
        self._seen.append(dict(event))

    def close(self) -> None:
        """Take no more."""


def mistakes(job: Job, folder: RunFolder, seen: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with a log, given what a listener saw while it was written."""
    lines = folder.log.read_bytes().splitlines()
    events = [orjson.loads(line) for line in lines]
    if [_whole(event, folder) for event in events] != [_told(event) for event in seen]:
        yield "the log is not what was observed"
    if [event["seq"] for event in events] != list(range(len(events))):
        yield "seq has gaps"
    if any(a["t"] > b["t"] for a, b in itertools.pairwise(events)):
        yield "t goes back"
    for event in events:
        unknown = event.keys() - set(field_names(event["kind"]) if event["kind"] in BY_KIND else ())
        if unknown:
            yield f"seq {event['seq']}: fields the contract doesn't have: {sorted(unknown)}"
    if events[-1]["kind"] != "run_end":
        yield "the run has no end"
    tries: dict[tuple[int, int], _Try] = {}
    now: _Try | None = None
    committed: list[int] = []
    for event in events:
        if event["kind"] == "round_start":
            now = tries[event["round"], event["attempt"]] = _Try(event["active_nodes"])
            if len(tries) > 1 and event["round"] not in {len(committed), len(committed) - 1}:
                yield f"seq {event['seq']}: round {event['round']} after {len(committed)} were committed"
        elif event["round"] is not None and now is not None:
            yield from now.take(event, job)
            if event["kind"] == "aggregate" and event["error"] is None:
                committed.append(event["round"])
    if committed != list(range(len(committed))):
        yield f"rounds were committed in the order {committed}"
    if events[-1].get("rounds") != len(committed):
        yield f"run_end tells of {events[-1].get('rounds')} rounds, {len(committed)} were committed"


def _whole(event: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Return an event without the note that it is too long for its line, and whole."""
    if "overflow_path" not in event:
        return event
    whole: dict[str, Any] = orjson.loads((folder.log.parent / event["overflow_path"]).read_bytes())
    return whole


def _told(event: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = orjson.loads(orjson.dumps(event))
    return told


class _Try:
    """One try of a round, as its events tell of it."""

    def __init__(self, active: int) -> None:
        self.active = active
        self.trained: set[int] = set()
        self.pulled: set[int] = set()
        self.rejected: set[int] = set()
        self.ranks: list[int] | None = None
        self.over = False

    def take(self, event: dict[str, Any], job: Job) -> Iterator[str]:
        """Take an event of this try; yield what is wrong with it."""
        seq, rank = event["seq"], event["rank"]
        weights = f"weights-{event['round']:04}."
        if self.over and event["kind"] != "worker_down":
            yield f"seq {seq}: {event['kind']} after the round's end"
        arrived = event.get("arrived_bytes")
        if arrived is not None and (event["error"] is None or arrived > event["size_bytes"]):
            yield f"seq {seq}: {arrived} bytes of {event['size_bytes']} got across, error {event['error']}"
        match event["kind"]:
            case "exec" if rank is not None and event["error"] is None:
                self.trained.add(rank)
            case "pull" if event["error"] is None and event["path"].startswith("weights-"):
                if not event["path"].startswith(weights):
                    yield f"seq {seq}: weights of another round were pulled: {event['path']}"
                if rank not in self.trained:
                    yield f"seq {seq}: weights were pulled of a worker that did not train: {rank}"
                self.pulled.add(rank)
            case "reject":
                self.rejected.add(rank)
            case "aggregate":
                yield from self._aggregate(event, job)
            case "round_end":
                yield from self._end(event)

    def _aggregate(self, event: dict[str, Any], job: Job) -> Iterator[str]:
        seq, ranks = event["seq"], event["ranks"]
        if self.ranks is not None:
            yield f"seq {seq}: a second aggregate"
        if ranks != sorted(set(ranks)) or event["num_workers"] != len(ranks):
            yield f"seq {seq}: ranks {ranks} are not each counted once"
        strange = sorted(set(ranks) - (self.pulled - self.rejected))
        if strange:
            yield f"seq {seq}: weights of {strange} were never let in"
        if len(ranks) < job.quorum:
            yield f"seq {seq}: {len(ranks)} survivors, quorum is {job.quorum}"
        if event["error"] is None:
            self.ranks = ranks

    def _end(self, event: dict[str, Any]) -> Iterator[str]:
        seq = event["seq"]
        self.over = True
        survivors = self.ranks or []
        if event["survivors"] != len(survivors) or (event["outcome"] == "ok") != (self.ranks is not None):
            said = f"{event['survivors']} survivors, outcome {event['outcome']}"
            yield f"seq {seq}: {said}; aggregated: {survivors}"
        lost = [*event["failed"], *event["late"]]
        if len(set(lost)) != len(lost) or set(lost) & set(survivors):
            yield f"seq {seq}: a worker is accounted for twice"
        if event["outcome"] == "ok" and len(lost) + len(survivors) != self.active:
            yield f"seq {seq}: {self.active} took part, {len(lost) + len(survivors)} are accounted for"
