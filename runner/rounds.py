"""Carries out one try of one round over the workers' connections; ``decide`` says what comes next."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from runner import metrics
from runner.aggregate import check_weights, max_weights_bytes
from runner.arrays import ArraySpec
from runner.decide import Act, Begin, Round, Said, Verdict
from runner.errors import (
    ArrayError,
    ConnectionLostError,
    TransferError,
    WorkerError,
)
from runner.fleet import Fleet
from runner.job import environment
from runner.recorder import Recorder
from schemas.events import Metric, Reject

_SAID = {
    Act.JOIN: Said.JOINED,
    Act.PUSH: Said.PUSHED,
    Act.TRAIN: Said.TRAINED,
    Act.PULL: Said.PULLED,
    Act.CHECK: Said.ACCEPTED,
}


@dataclass(frozen=True, slots=True)
class CurrentParams:
    """The params a round pushes."""

    path: Path
    sha256: str
    specs: Mapping[str, ArraySpec]

    @property
    def form(self) -> str:
        """``npz`` or ``npy``."""
        return self.path.suffix[1:]


@dataclass(slots=True)
class Delivery:
    """What one worker handed back."""

    path: Path
    has_metrics: bool = False
    num_samples: float | None = None


class RoundRun:
    """One try of one round.

    Args:
        fleet: the workers.
        begin: which round, which try, with whom.
        params: what is pushed.
    """

    def __init__(self, fleet: Fleet, begin: Begin, params: CurrentParams) -> None:
        self._fleet = fleet
        self._loaded = fleet.loaded
        self._folder = fleet.folder
        self._recorder = fleet.recorder
        self._begin = begin
        self._params = params
        self._number = begin.number
        self._round = Round(begin.number, begin.ranks, fleet.loaded.job.quorum)
        self._names = {
            "params": f"params-{begin.number:04}.{params.form}",
            "weights": f"weights-{begin.number:04}.{params.form}",
            "metrics": f"metrics-{begin.number:04}.json",
        }
        self._do: dict[Act, Callable[[int], Coroutine[Any, Any, None]]] = {
            Act.JOIN: self._join,
            Act.PUSH: self._push,
            Act.TRAIN: self._train,
            Act.PULL: self._pull,
            Act.CHECK: self._check,
        }
        self.deliveries: dict[int, Delivery] = {}

    async def run(self) -> Verdict:
        """Let every worker go its way, and return how the round ends."""
        async with trio.open_nursery() as nursery:
            for act, rank in self._round.start():
                nursery.start_soon(self._go, act, rank)
        return self._round.verdict()

    def clear(self) -> None:
        """Delete what was pulled."""
        for delivery in self.deliveries.values():
            delivery.path.unlink(missing_ok=True)

    async def _go(self, act: Act | None, rank: int) -> None:
        while act is not None:
            said = _SAID[act]
            try:
                await self._do[act](rank)
            except WorkerError as e:
                said = Said.FAILED
                if act is not Act.JOIN and isinstance(e, ConnectionLostError | TransferError):
                    await self._fleet.leave(rank, self._number, e.reason, str(e))
            act = self._round.on(said, rank)

    async def _join(self, rank: int) -> None:
        await self._fleet.join(rank, self._number)

    async def _push(self, rank: int) -> None:
        await self._fleet.traced(rank, self._number).push(self._params.path, self._names["params"])

    async def _train(self, rank: int) -> None:
        worker = self._fleet.worker(rank)
        traced = self._fleet.traced(rank, self._number)
        train = self._loaded.job.train
        made = [self._names["weights"], self._names["metrics"]]
        stale = worker.litter - {self._names["params"]}
        worker.litter = set(self._names.values())
        worker.output.begin(f"round {self._number}, attempt {self._begin.attempt}")
        try:
            ended = await traced.exec(
                train.command,
                env=self._environment(rank, traced.folder),
                output=worker.output,
                remove=sorted({*made, *stale}),
                expect=made,
                timeout_s=train.timeout_s,
            )
        finally:
            worker.output.end()
        if ended.exit_code != 0:
            raise WorkerError(f"the training command ended with exit code {ended.exit_code}")
        size = ended.sizes_bytes.get(self._names["weights"])
        limit = max_weights_bytes(self._params.specs)
        if size is None:
            raise self._reject(rank, "missing", "the command ended well but wrote no file $ROUNDLOG_WEIGHTS")
        if size > limit:
            raise self._reject(rank, "unreadable", f"{size} bytes; these params need {limit} at most")
        path = self._folder.incoming(rank, self._names["weights"])
        self.deliveries[rank] = Delivery(path, self._names["metrics"] in ended.sizes_bytes)

    async def _pull(self, rank: int) -> None:
        traced = self._fleet.traced(rank, self._number)
        delivery = self.deliveries[rank]
        limit = max_weights_bytes(self._params.specs)
        await traced.pull(self._names["weights"], delivery.path, max_bytes=limit)
        if delivery.has_metrics:
            report = self._folder.incoming(rank, self._names["metrics"])
            try:
                await traced.pull(self._names["metrics"], report, max_bytes=metrics.MAX_BYTES)
                delivery.num_samples = emit_metrics(self._recorder, report, self._number, rank)
            finally:
                report.unlink(missing_ok=True)

    async def _check(self, rank: int) -> None:
        path = self.deliveries[rank].path
        try:
            await trio.to_thread.run_sync(
                check_weights, path, self._params.specs, trio.from_thread.check_cancelled
            )
        except ArrayError as e:
            raise self._reject(rank, e.reason, e.detail) from e

    def _reject(self, rank: int, reason: Any, detail: str) -> WorkerError:
        self._recorder.emit(Reject(reason=reason, detail=detail), round=self._number, rank=rank)
        return WorkerError(detail)

    def _environment(self, rank: int, folder: str) -> dict[str, str]:
        job = self._loaded.job
        return {
            **environment(job.train.env),
            **self._loaded.secrets,
            "ROUNDLOG_RUN": self._folder.run,
            "ROUNDLOG_SEED": str(job.seed),
            "ROUNDLOG_ROUND": str(self._number),
            "ROUNDLOG_RANK": str(rank),
            "ROUNDLOG_WORLD_SIZE": str(job.workers),
            **{f"ROUNDLOG_{what.upper()}": f"{folder}/{name}" for what, name in self._names.items()},
        }


def emit_metrics(recorder: Recorder, path: Path, round: int, rank: int | None) -> float | None:
    """Put a metrics file into the log, and return its ``num_samples``."""
    report = metrics.read(path)
    event = Metric(values=report.values, num_samples=report.num_samples, error=report.error)
    recorder.emit(event, round=round, rank=rank)
    return report.num_samples
