"""Runs a job from its first params to its last round; ``decide`` plans, ``rounds`` carries out."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import trio

from runner.aggregate import Contribution, mean
from runner.arrays import ArrayFile, sha256_of
from runner.course import AutoDeadline, Begin, Course, Finish
from runner.decide import Verdict
from runner.errors import ArrayError, RunError, WorkerError
from runner.fleet import Connect, Fleet
from runner.grouped import leaf
from runner.job import Job, LoadedJob
from runner.output import Output
from runner.own import OwnCommands
from runner.past import Past, Try, replay
from runner.recorder import Recorder
from runner.recycle import set_aside
from runner.rounds import CurrentParams, Delivery, RoundRun
from runner.runfolder import RunFolder
from runner.simtime import in_thread, simulated, stop_point
from runner.transports import local
from schemas.events import Aggregate, RoundEnd, RoundStart, RunEnd, RunResume, RunStart

_PACKAGES = ("roundlog", "numpy", "trio", "orjson", "msgspec")


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    status: Literal["completed", "failed", "interrupted"]
    reason: str | None
    rounds: int
    params: Path | None


class Coordinator:
    """One run.

    Args:
        loaded: the job.
        folder: the files of the run.
        recorder: the log.
        connect: makes the connection to a worker.
        past: what the log has of a run that is gone on with.
    """

    def __init__(
        self,
        loaded: LoadedJob,
        folder: RunFolder,
        recorder: Recorder,
        connect: Connect,
        past: Past | None = None,
    ) -> None:
        self._loaded = loaded
        self._job = loaded.job
        self._folder = folder
        self._recorder = recorder
        self._fleet = Fleet(loaded, folder, recorder, connect)
        self._params: CurrentParams | None = None  # until the initial ones are made
        self._past = past
        self._course = _course(self._job)
        self.interrupted_by = "cancelled"

    async def run(self) -> Result:
        """Run the job, and say in the log how it ended, whatever happens.

        Raises:
            LogError: the log can't be written.
            trio.Cancelled: it was interrupted; the log says so.
        """
        finish = self._result("interrupted", None)
        own: OwnCommands | None = None
        try:
            with Output(
                self._folder.output("coordinator"),
                self._job.train.output_limit_bytes,
                self._loaded.secrets.values(),
            ) as output:
                own = OwnCommands(self._fleet, output)
                if self._past is None:
                    await self._begin(own)
                else:
                    await self._resume(self._past, own)
                finish = await self._rounds(own)
        except BaseException as e:
            error = leaf(e)
            if isinstance(error, trio.Cancelled):
                finish = self._result("interrupted", self.interrupted_by)
            else:
                finish = self._result("failed", str(error) if isinstance(error, RunError) else repr(error))
            if not isinstance(error, RunError):
                raise
        finally:
            with trio.CancelScope(shield=True):
                await self._fleet.close()
                if own is not None:
                    await own.close()
                self._folder.spare.unlink(missing_ok=True)
                await self._end(finish)
        return finish

    def _result(self, status: Literal["completed", "failed", "interrupted"], reason: str | None) -> Result:
        return Result(status, reason, self._course.number, self._params.path if self._params else None)

    def _current(self) -> CurrentParams:
        assert self._params is not None  # noqa: S101 - no round begins without
        return self._params

    async def _end(self, finish: Result) -> None:
        end = RunEnd(
            status=finish.status,
            reason=finish.reason,
            rounds=finish.rounds,
            params_path=self._recorder.relative(finish.params) if finish.params else None,
        )
        self._recorder.emit(end, since_us=0)
        await self._recorder.flush()

    async def _begin(self, own: OwnCommands) -> None:
        """Make the initial params and emit run_start, with them or without."""
        began = self._recorder.now_us()
        error: Exception | None = None
        params: CurrentParams | None = None
        sent: dict[str, str] = {}
        try:
            sent = await in_thread(self._loaded.sent_sha256)
            params = await own.initial_params()
        except (ArrayError, WorkerError, OSError) as e:
            error = e
        start = RunStart(
            job={**self._loaded.describe(), "sent_sha256": sent},
            total_nodes=self._job.total_nodes,
            versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
            host=socket.gethostname(),
            pid=os.getpid(),
            params_sha256=params.sha256 if params else None,
            params_path=self._recorder.relative(params.path) if params else None,
            params_bytes=params.path.stat().st_size if params else None,
            init_s=(self._recorder.now_us() - began) / 1e6,
        )
        self._recorder.emit(start)
        await self._recorder.flush()
        if params is None:
            raise RunError(f"no initial params: {error}") from error
        self._params = params

    async def _resume(self, past: Past, own: OwnCommands) -> None:
        """Go on where the log ends: replay it, verify the params, end what was left running."""
        ended = await in_thread(local.end_marked, self._folder.run)
        path = self._folder.log.parent / str(past.params_path)
        try:
            sha256 = await in_thread(sha256_of, path)
            with ArrayFile(path) as file:
                specs = dict(file.specs)
        except OSError as e:
            raise RunError(f"{path}: can't read the params to go on with: {e.strerror}") from e
        if sha256 != past.params_sha256:
            raise RunError(f"{path}: these are not the params the log tells of (their SHA-256 differs)")
        unfinished = replay(self._course, past.tries)
        self._params = CurrentParams(path, sha256, specs)
        found = "a broken tail" if past.broken_bytes else past.status or "no run_end"
        event = RunResume(
            session=past.session + 1,
            trusted_seq=past.seq,
            broken_offset=past.broken_offset,
            broken_bytes=past.broken_bytes,
            reason=f"{found}; {ended} processes were left running" if ended else found,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        self._recorder.emit(event)
        await self._recorder.flush()
        self._folder.stop.unlink(missing_ok=True)
        for stale in [*self._folder.folder.glob("incoming/*"), *self._folder.folder.glob(".*.part")]:
            stale.unlink()
        if unfinished is not None:
            await self._finish(*unfinished, own)

    async def _finish(self, tried: Try, verdict: Verdict, own: OwnCommands) -> None:
        """End a round that was aggregated but not ended; what may be missing of it is its evaluation."""
        if not tried.evaluated:
            await own.evaluate(tried.number, self._current())
        end = RoundEnd(
            survivors=len(verdict.survivors),
            total_nodes=self._job.total_nodes,
            outcome="ok",
            failed=list(verdict.failed),
            late=list(verdict.late),
        )
        self._recorder.emit(end, round=tried.number, since_us=round(tried.start["t"] * 1e6))
        await self._recorder.flush()

    async def _rounds(self, own: OwnCommands) -> Result:
        while isinstance(begin := self._course.next(), Begin):
            await self._round(begin, self._current(), own)
            self._keep_newest()
            if self._folder.stop.exists():
                self._folder.stop.unlink()
                self._course.stop("asked to stop")
        assert isinstance(begin, Finish)  # noqa: S101 - the other of two
        return self._result(begin.status, begin.reason)

    async def _round(self, begin: Begin, params: CurrentParams, own: OwnCommands) -> None:
        """Execute one try of one round; new params, if it made some, are the run's from then on."""
        start = RoundStart(
            active_nodes=len(begin.shards),
            total_nodes=self._job.total_nodes,
            params_sha256=params.sha256,
            attempt=begin.attempt,
            deadline_s=begin.deadline_s,
        )
        began = self._recorder.emit(start, round=begin.number)
        execution = RoundRun(self._fleet, begin, params)
        verdict: Verdict | None = None
        workers_us: int | None = None
        survivors = 0
        reason: str | None = "the run was ended"
        outcome: Literal["ok", "failed", "interrupted"] = "interrupted"
        try:
            verdict = await execution.run()
            workers_us = self._recorder.now_us() - began
            failure = verdict.reason
            if failure is None:
                new, failure = await self._aggregate(
                    begin.number, params, execution.deliveries, verdict.survivors
                )
                if new is not None:
                    self._params, survivors = new, len(verdict.survivors)
            given_up = self._course.ended(verdict, failure, workers_us / 1e6)
            if failure is None:
                await own.evaluate(begin.number, self._current())
            for rank in given_up:
                why = f"failed in {self._job.policy.max_failures} rounds running"
                await self._fleet.leave(rank, begin.number, "failures", why, for_good=True)
            outcome, reason = ("failed", failure) if failure else ("ok", None)
        finally:
            execution.clear()
            end = RoundEnd(
                survivors=survivors,
                total_nodes=self._job.total_nodes,
                outcome=outcome,
                reason=reason,
                failed=list(verdict.failed) if verdict else [],
                late=list(verdict.late) if verdict else [],
                workers_s=None if workers_us is None else workers_us / 1e6,
            )
            self._recorder.emit(end, round=begin.number, since_us=began)
        await self._recorder.flush()

    async def _aggregate(
        self,
        number: int,
        params: CurrentParams,
        deliveries: dict[int, Delivery],
        survivors: tuple[int, ...],
    ) -> tuple[CurrentParams | None, str | None]:
        """Make new params; return them, or why there are none."""
        began = self._recorder.now_us()
        weighting, contributions = weigh(deliveries, survivors, self._job.aggregate.weighting)
        if simulated():
            contributions = merged(contributions)
        target = self._folder.params(number + 1, params.form)
        event = partial(
            Aggregate,
            num_workers=len(survivors),
            ranks=list(survivors),
            method=self._job.aggregate.method,
            weighting=weighting,
        )
        none = partial(event, weight_norm=None, delta_norm=None, params_sha256=None, params_path=None)
        try:
            made = await in_thread(mean, params.path, contributions, target, stop_point(), self._folder.spare)
        except (ArrayError, OSError) as e:
            self._recorder.emit(none(error=str(e)), round=number, since_us=began)
            return None, f"no aggregate: {e}"
        except trio.Cancelled:
            self._recorder.emit(none(error="cancelled"), round=number, since_us=began)
            raise
        done = event(
            weight_norm=made.weight_norm,
            delta_norm=made.delta_norm,
            params_sha256=made.sha256,
            params_path=self._recorder.relative(target),
        )
        self._recorder.emit(done, round=number, since_us=began)
        await self._recorder.flush()
        return CurrentParams(target, made.sha256, params.specs), None

    def _keep_newest(self) -> None:
        form = self._current().form
        old = self._course.number - self._job.params.keep
        if old >= 0:
            path = self._folder.params(old, form)
            if not set_aside(path, self._folder.spare):
                path.unlink(missing_ok=True)


def _course(job: Job) -> Course:
    deadline: float | AutoDeadline | None
    if job.deadlines.round_s == "auto":
        deadline = AutoDeadline(
            k=job.deadlines.auto_k,
            floor_s=job.deadlines.auto_floor_s,
            ceiling_s=job.deadlines.auto_ceiling_s,
        )
    else:
        deadline = job.deadlines.round_s
    return Course(
        rounds=job.rounds,
        workers=job.workers,
        spares=job.spares,
        quorum=job.quorum,
        round_retries=job.policy.round_retries,
        max_failures=job.policy.max_failures,
        deadline=deadline,
        stop_on_loss=job.policy.on_loss == "stop",
    )


def merged(contributions: list[Contribution]) -> list[Contribution]:
    """Return what simulated workers contribute, each file once: many of them share one, under many names."""
    found: dict[int, Contribution] = {}
    for one in contributions:
        inode = one.path.stat().st_ino
        weight = one.weight + (found[inode].weight if inode in found else 0.0)
        found[inode] = Contribution(found[inode].rank if inode in found else one.rank, one.path, weight)
    return list(found.values())


def weigh(
    deliveries: dict[int, Delivery], survivors: tuple[int, ...], weighting: str
) -> tuple[str, list[Contribution]]:
    """Return how the survivors are weighted, and what each contributes, in rank order.

    With ``num_samples`` each counts by its samples, if all of them told theirs; else all count alike.
    """
    samples = [deliveries[rank].num_samples for rank in survivors]
    if weighting == "uniform" or any(count is None for count in samples):
        return "uniform", [Contribution(rank, deliveries[rank].path, 1.0) for rank in survivors]
    return "num_samples", [
        Contribution(rank, deliveries[rank].path, count or 0.0)
        for rank, count in zip(survivors, samples, strict=True)
    ]
