"""Carries out one try of one round over the workers' connections; ``decide`` says what comes next."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import trio

from runner import metrics
from runner.course import Begin, rest_s
from runner.decide import (
    Action,
    Alarm,
    Close,
    Do,
    Drop,
    Failure,
    RetryAfter,
    Round,
    Rules,
    Said,
    SetAlarm,
    Step,
    Verdict,
)
from runner.errors import (
    ArrayError,
    ConnectionLostError,
    DeadlineError,
    NoFileError,
    RejectedError,
    TransferError,
    WorkerError,
)
from runner.fleet import Fleet
from runner.job import UNBUFFERED, environment
from runner.recorder import Recorder
from runner.roundfiles import RoundFiles
from runner.serverstep import CurrentParams, Delivery
from runner.simtime import in_thread, instants, simulated, stop_point
from runner.traced import TracedConnection
from runner.weights import Checked, check_weights
from schemas.events import Metric, Reject

_SAID = {
    Step.JOIN: Said.JOINED,
    Step.PUSH: Said.PUSHED,
    Step.TRAIN: Said.TRAINED,
    Step.PULL: Said.PULLED,
    Step.CHECK: Said.ACCEPTED,
}
_NO_WEIGHTS = "the command did well but wrote no file $ROUNDLOG_WEIGHTS (a link or a folder is none)"
_MAY_END = frozenset({Said.ACCEPTED, Said.FAILED})
"""What may end a round: a delivery or a failure more."""


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
        self._round = Round(begin.number, begin.shards, self._rules())
        self.files = RoundFiles(begin.number, params, fleet.folder, fleet.loaded.job.wire)
        self._names = self.files.names
        job = self._loaded.job
        self._shared_environment = {
            **UNBUFFERED,
            **environment(job.train.env),
            **self._loaded.secrets,
            "ROUNDLOG_RUN": self._folder.run,
            "ROUNDLOG_SEED": str(job.seed),
            "ROUNDLOG_ROUND": str(self._number),
            "ROUNDLOG_WORLD_SIZE": str(job.total_nodes),
            "ROUNDLOG_SHARDS": str(job.workers),
        }
        self._scopes: dict[int, trio.CancelScope] = {}
        self._alarms: list[trio.CancelScope] = []
        self._over = trio.Event()
        self._simulated = simulated()
        self._checked: dict[Path, Checked | ArrayError] = {}
        self._heard: list[tuple[float, Said | Alarm, Failure | None]] = []
        self.deliveries: dict[int, Delivery] = {}
        self.delivered_us: int | None = None
        """When the last weights were let in, on the log's clock."""

    def _rules(self) -> Rules:
        job = self._loaded.job
        stop = job.policy.on_loss == "stop"
        return Rules(
            quorum=len(self._begin.shards) if stop else job.quorum,
            close_at=job.close_at,
            grace_s=job.policy.grace_s,
            retries=job.policy.retries,
            train_retries=job.train.retries,
        )

    async def run(self) -> Verdict:
        """Take every worker through its steps, and return how the round ends.

        Raises:
            RunError: the params can't be made ready to travel.
        """
        await self.files.encode(self._recorder)
        async with trio.open_nursery() as nursery:
            if self._begin.deadline_s is not None:
                nursery.start_soon(self._alarm, Alarm.DEADLINE, self._begin.deadline_s, nursery)
            self._carry_out(self._round.start(), nursery)
            await self._over.wait()
        return self._round.verdict()

    def _carry_out(self, actions: list[Action], nursery: trio.Nursery) -> None:
        for action in actions:
            match action:
                case Do(rank):
                    self._scopes[rank] = trio.CancelScope()
                    nursery.start_soon(self._work, action, nursery)
                case RetryAfter(rank, attempt):
                    self._scopes[rank] = trio.CancelScope()
                    nursery.start_soon(self._rest, rank, attempt, nursery)
                case SetAlarm(seconds):
                    nursery.start_soon(self._alarm, Alarm.GRACE, seconds, nursery)
                case Drop(rank, was, late, reason):
                    word = "late" if late else "deadline"
                    self._emit_reject(rank, word, f"not waited for while {was.value}: {reason}")
                    self._fleet.worker(rank).ending = f"ended: {reason}"
                    self._scopes[rank].cancel()
                case Close():
                    for scope in self._alarms:
                        scope.cancel()
                    self._over.set()

    async def _work(self, do: Do, nursery: trio.Nursery) -> None:
        """Take one step after the other with a worker, as long as one leads to the next."""
        with self._scopes[do.rank]:
            todo: Do | None = do
            while todo is not None and not self._round.closed:
                said, failure = await self._take(todo)
                todo = self._hear(said, do.rank, failure, nursery)

    async def _take(self, do: Do) -> tuple[Said, Failure | None]:
        """Take one step with a worker and return what came of it."""
        try:
            traced = self._fleet.joined(do.rank, self._number, do.attempt)
            if traced is None:
                shard = self._begin.shards[do.rank]
                traced = await self._fleet.join(do.rank, shard, self._number, do.attempt)
            await self._STEPS[do.step](self, do.rank, traced)
        except WorkerError as e:
            lost = isinstance(e, ConnectionLostError)
            if lost and self._fleet.worker(do.rank).connection is not None:
                await self._fleet.leave(do.rank, self._number, e.reason, str(e), injected=e.injected)
            return Said.FAILED, _kind(e, do.step)
        return _SAID[do.step], None

    def _hear(
        self, said: Said | Alarm, rank: float, failure: Failure | None, nursery: trio.Nursery
    ) -> Do | None:
        """Take what happened; return the step that the same worker is to take now, if it is.

        Where time is simulated, what may end the round waits for the end of the instant and is then taken in
        rank order, alarms last: which of several tasks is woken first is chance.
        """
        if self._round.closed:
            return None
        if self._simulated and (said in _MAY_END or isinstance(said, Alarm)):
            if not self._heard:
                instants().at_end(partial(self._hear_in_order, nursery))
            self._heard.append((rank, said, failure))
            return None
        return self._decide(said, rank, failure, nursery)

    def _decide(
        self, said: Said | Alarm, rank: float, failure: Failure | None, nursery: trio.Nursery
    ) -> Do | None:
        if isinstance(said, Alarm):
            self._carry_out(self._round.alarm(said), nursery)
            return None
        actions = self._round.on(said, int(rank), failure)
        first = actions[0] if actions else None
        if isinstance(first, Do):
            self._carry_out(actions[1:], nursery)
            return first
        self._carry_out(actions, nursery)
        return None

    def _hear_in_order(self, nursery: trio.Nursery) -> None:
        heard, self._heard = sorted(self._heard, key=lambda one: (one[0], one[1].value)), []
        for rank, said, failure in heard:
            if not self._round.closed:
                self._decide(said, rank, failure, nursery)

    async def _rest(self, rank: int, attempt: int, nursery: trio.Nursery) -> None:
        """Wait before another attempt: twice as long each time, with jitter of the seed's own."""
        longest = rest_s(self._loaded.job.policy.backoff_s, attempt)
        drawn = Random(f"{self._loaded.job.seed} {self._number} {rank} {attempt}").uniform(0.5, 1.0)
        with self._scopes[rank]:
            await trio.sleep(longest * drawn)
        todo = self._hear(Said.RESTED, rank, None, nursery)
        if todo is not None:
            self._carry_out([todo], nursery)

    async def _alarm(self, alarm: Alarm, seconds: float, nursery: trio.Nursery) -> None:
        with trio.CancelScope() as scope:
            self._alarms.append(scope)
            await trio.sleep(seconds)
        self._hear(alarm, math.inf, None, nursery)

    def clear(self) -> None:
        """Delete what was pulled, and what was made to be pushed."""
        for delivery in self.deliveries.values():
            self.files.clear(delivery)
        self.files.clear_pushed()

    async def _joined(self, rank: int, traced: TracedConnection) -> None:
        """Do nothing: whoever takes a step has joined."""

    async def _push(self, rank: int, traced: TracedConnection) -> None:  # noqa: ARG002 - as all steps
        timeout_s = self._loaded.job.deadlines.push_s
        plain_bytes = self.files.pushed_plain_bytes
        await traced.push(
            self.files.pushed, self._names["params"], timeout_s=timeout_s, plain_bytes=plain_bytes
        )

    async def _train(self, rank: int, traced: TracedConnection) -> None:
        worker = self._fleet.worker(rank)
        train = self._loaded.job.train
        made = [self._names["weights"], self._names["metrics"]]
        stale = worker.litter - {self._names["params"]} | self.files.stale
        worker.litter = set(self.files.litter)
        worker.output.begin(f"round {self._number}, attempt {self._begin.attempt}")
        try:
            ended = await traced.exec(
                self.files.wrapped(train.command or "(simulated)"),
                env=self._environment(rank, traced.folder),
                output=worker.output,
                remove=sorted(stale),
                expect=made,
                timeout_s=train.timeout_s,
                idle_s=self._loaded.job.deadlines.idle_s or math.inf,
            )
        finally:
            worker.output.end()
        if ended.exit_code:
            raise WorkerError(f"the training command ended with exit code {ended.exit_code}")
        path = self.files.incoming(rank)
        if ended.sizes_bytes is None:  # of a command that stays; the pull will see
            self.deliveries[rank] = delivery = Delivery(path)
            if ended.report is not None:
                delivery.num_samples = self._told(rank, metrics.taken(ended.report))
            return
        size = ended.sizes_bytes.get(self._names["weights"])
        limit = self.files.limit
        if size is None:
            raise self._reject(rank, "missing", _NO_WEIGHTS)
        if size > limit:
            raise self._reject(rank, "unreadable", f"{size} bytes; these params need {limit} at most")
        self.deliveries[rank] = Delivery(path, ended.sizes_bytes.get(self._names["metrics"]))

    async def _pull(self, rank: int, traced: TracedConnection) -> None:
        timeout_s = self._loaded.job.deadlines.pull_s
        delivery = self.deliveries[rank]
        try:
            done = await traced.pull(
                self._names["weights"],
                self.files.arrived(delivery),
                max_bytes=self.files.limit,
                timeout_s=timeout_s,
                plain_bytes=self.files.pulled_plain_bytes,
            )
        except NoFileError as e:  # of a command that stays, or that removed it in the end; no reason to retry
            reason = "unreadable" if e.too_large else "missing"
            raise self._reject(rank, reason, str(e) if e.too_large else _NO_WEIGHTS) from e
        if done.shared is not None:
            delivery.path, delivery.shared = done.shared, True
        if delivery.metrics_bytes is None:
            return
        if delivery.metrics_bytes > metrics.MAX_BYTES:
            self._recorder.emit(
                Metric(values={}, num_samples=None, error=metrics.TOO_LARGE), round=self._number, rank=rank
            )
        else:
            report = self._folder.incoming(rank, self._names["metrics"])
            try:
                await traced.pull(
                    self._names["metrics"], report, max_bytes=metrics.MAX_BYTES, timeout_s=timeout_s
                )
                delivery.num_samples = self._told(rank, metrics.read(report))
            finally:
                report.unlink(missing_ok=True)

    async def _check(self, rank: int, traced: TracedConnection) -> None:  # noqa: ARG002 - likewise
        delivery = self.deliveries[rank]
        try:
            if delivery.shared:
                delivery.checked = self._check_once(delivery.path)
            else:
                delivery.checked = await in_thread(self.files.check, delivery, stop_point())
        except ArrayError as e:
            raise self._reject(rank, e.reason, e.detail) from e
        except OSError as e:
            raise self._reject(rank, "unreadable", f"can't be written anew: {e.strerror}") from e
        self.delivered_us = self._recorder.now_us()

    _STEPS: ClassVar[dict[Step, Callable[[RoundRun, int, TracedConnection], Coroutine[Any, Any, None]]]] = {
        Step.JOIN: _joined,
        Step.PUSH: _push,
        Step.TRAIN: _train,
        Step.PULL: _pull,
        Step.CHECK: _check,
    }

    def _told(self, rank: int, report: metrics.Report) -> float | None:
        """Put a worker's metrics into the log, and return its ``num_samples``."""
        emit_metrics(self._recorder, report, self._number, rank)
        return report.num_samples

    def _check_once(self, path: Path) -> Checked:
        """Check weights that many simulated workers share only once."""
        if path not in self._checked:
            try:
                self._checked[path] = check_weights(path, self._params.path)
            except ArrayError as e:
                self._checked[path] = e
        found = self._checked[path]
        if isinstance(found, ArrayError):
            raise ArrayError(found.reason, found.detail)
        return found

    def _reject(self, rank: int, reason: Any, detail: str) -> RejectedError:
        self._emit_reject(rank, reason, detail)
        return RejectedError(detail)

    def _emit_reject(self, rank: int, reason: Any, detail: str) -> None:
        self._recorder.emit(Reject(reason=reason, detail=detail), round=self._number, rank=rank)

    def _environment(self, rank: int, folder: str) -> dict[str, str]:
        return {
            **self._shared_environment,
            "ROUNDLOG_RANK": str(rank),
            "ROUNDLOG_SHARD": str(self._begin.shards[rank]),
            **self.files.environment(folder),
        }


def _kind(error: WorkerError, step: Step) -> Failure:
    """Say what kind of failure an error is, where it came up."""
    if isinstance(error, RejectedError):
        return Failure.REJECTED
    if step is not Step.TRAIN or isinstance(error, ConnectionLostError | TransferError):
        return Failure.TRANSPORT
    return Failure.DEADLINE if isinstance(error, DeadlineError) else Failure.COMMAND


def emit_metrics(recorder: Recorder, report: metrics.Report, round: int, rank: int | None) -> None:
    """Put what a command reported into the log."""
    event = Metric(values=report.values, num_samples=report.num_samples, error=report.error)
    recorder.emit(event, round=round, rank=rank)
