"""Runs a job from its first params to its last round; ``decide`` plans, ``rounds`` carries out."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import trio
from threadpoolctl import threadpool_limits

from runner import ownmethod, wire
from runner.arrays import ArrayFile
from runner.course import AutoDeadline, Begin, Course, Finish, rest_s
from runner.decide import Verdict
from runner.errors import ArrayError, RunError, WorkerError, plain
from runner.fleet import Connect, Fleet
from runner.grouped import leaf
from runner.job import Job, LoadedJob
from runner.jobagain import changed_method
from runner.output import Output
from runner.own import OwnCommands
from runner.past import Past, Try, replay
from runner.recorder import Recorder
from runner.rounds import RoundRun
from runner.runfolder import RunFolder
from runner.serverstep import CurrentParams, ServerStep
from runner.simtime import in_thread
from runner.transports import local
from schemas.events import RoundEnd, RoundStart, RunEnd, RunResume, RunStart
from schemas.text import duration

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
        combine = ownmethod.load(self._job.aggregate.method, loaded.folder, loaded.file)
        self._step = ServerStep(loaded, folder, recorder, combine)
        self._hopeless: str | None = None  # why trying the round again is no use
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
                with threadpool_limits(1, user_api="blas"):  # its threads would slow the workers
                    async with trio.open_nursery() as self._fleet.nursery:
                        finish = await self._rounds(own)
                        done = finish.status == "completed" and not self._job.ssh.keep
                        with trio.CancelScope(shield=True):
                            await self._fleet.close(done=done)
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

    @property
    def resumable(self) -> bool:
        """Whether there is a run to go on with."""
        return self._params is not None

    @property
    def out_of_reach(self) -> list[str]:
        """The workers, in words, that nobody could tell to end what they run."""
        return self._fleet.out_of_reach()

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
            made = await own.initial_params()
            self._step.check_patterns(made)
            if self._job.wire.active:
                wire.check(made.specs)
            params = made
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
        if error is not None:
            raise RunError(f"no initial params: {plain(error)}") from error
        self._params = params

    async def _resume(self, past: Past, own: OwnCommands) -> None:
        """Go on where the log ends, with files that were verified: replay it, end what was left running."""
        ended = await in_thread(local.end_marked, self._folder.run)
        path = self._folder.log.parent / str(past.params_path)
        with ArrayFile(path) as file:
            specs = dict(file.specs)
        unfinished = replay(self._course, past.tries)
        state = self._step.state_files(self._course.number)
        self._params = CurrentParams(path, str(past.params_sha256), specs, state)
        found = "a broken tail" if past.broken_bytes else past.status or "no run_end"
        said = [found]
        if ended:
            said.append(f"{ended} processes were left running")
        if changed := changed_method(past.job, self._loaded):
            said.append(f"{changed} was changed")
        event = RunResume(
            session=past.session + 1,
            trusted_seq=past.seq,
            broken_offset=past.broken_offset,
            broken_bytes=past.broken_bytes,
            reason="; ".join(said),
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
            total_nodes=tried.start["total_nodes"],
            outcome="ok",
            failed=list(verdict.failed),
            late=list(verdict.late),
        )
        self._recorder.emit(end, round=tried.number, since_us=round(tried.start["t"] * 1e6))
        await self._recorder.flush()

    async def _rounds(self, own: OwnCommands) -> Result:
        while isinstance(begin := self._course.next(), Begin):
            await self._round(begin, self._current(), own)
            if self._hopeless is not None:
                said = f"round {begin.number} failed: {self._hopeless}; mend it, then resume"
                return self._result("failed", said)
            await trio.sleep(self._rest_s(begin))
            self._step.keep_newest(self._course.number, self._current())
            if self._folder.stop.exists():
                self._folder.stop.unlink()
                self._course.stop("asked to stop")
        assert isinstance(begin, Finish)  # noqa: S101 - the other of two
        return self._result(begin.status, begin.reason)

    def _rest_s(self, tried: Begin) -> float:
        """Return how long lost workers are given to return before a round is tried again, in seconds."""
        again = self._course.next()
        if not isinstance(again, Begin) or again.number != tried.number:
            return 0.0
        if not self._fleet.away(again.shards.keys() & tried.shards.keys()):  # a spare comes in at once
            return 0.0
        return rest_s(self._job.policy.round_backoff_s, self._course.attempt)

    async def _round(self, begin: Begin, params: CurrentParams, own: OwnCommands) -> None:
        """Execute one try of one round; new params, if it made some, are the run's from then on."""
        expected = self._job.total_nodes - self._course.standby
        start = RoundStart(
            active_nodes=len(begin.shards),
            total_nodes=expected,
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
            workers_us = self._recorder.now_us()
            failure = verdict.reason
            if failure is None:
                stepped = await self._step.take(begin.number, params, execution.deliveries, verdict)
                failure, verdict = stepped.failure, stepped.verdict
                self._hopeless = failure if stepped.hopeless else None
                if stepped.params is not None:
                    self._params, survivors = stepped.params, len(verdict.survivors)
            given_up = self._course.ended(verdict, failure, _seconds(execution.delivered_us, began))
            if failure is None:
                await own.evaluate(begin.number, self._current())
            for rank, why in given_up.items():
                await self._fleet.leave(rank, begin.number, "failures", why, for_good=True)
            outcome, reason = ("failed", failure) if failure else ("ok", None)
            if rest := self._rest_s(begin):
                reason = f"{failure}; lost workers get {duration(rest)} to return"
        finally:
            execution.clear()
            end = RoundEnd(
                survivors=survivors,
                total_nodes=expected,
                outcome=outcome,
                reason=reason,
                failed=list(verdict.failed) if verdict else [],
                late=list(verdict.late) if verdict else [],
                encode_s=execution.files.encode_s,
                workers_s=_seconds(workers_us, began),
                delivered_s=_seconds(execution.delivered_us, began),
            )
            self._recorder.emit(end, round=begin.number, since_us=began)
        await self._recorder.flush()


def _seconds(until_us: int | None, began_us: int) -> float | None:
    return None if until_us is None else (until_us - began_us) / 1e6


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
