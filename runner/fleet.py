"""The workers of a run and the connections to them: who is there, who joins, who leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

import trio

from runner.connection import Connection
from runner.errors import TransferError, WorkerError
from runner.job import LoadedJob
from runner.output import Output
from runner.recorder import Recorder
from runner.resident import Resident
from runner.runfolder import RunFolder
from runner.traced import TracedConnection
from schemas.events import WorkerDown, WorkerUp

Connect = Callable[[int], Awaitable[Connection]]
"""Makes the connection to the worker of a rank; raises WorkerError."""


class Worker:
    """One worker: its connection while it has one, its output, and the rounds' files in its folder."""

    def __init__(self, rank: int, output: Output) -> None:
        self.rank = rank
        self.output = output
        self.connection: Connection | None = None
        self.has_files = False
        self.litter: set[str] = set()
        """Names of earlier rounds' files in its folder."""
        self.traced: tuple[int, int, TracedConnection] | None = None
        """Its connection as it was last handed out, and for which round and attempt."""
        self.ending = "cancelled"
        """Why what it does is being cancelled."""
        self.out_of_reach = ""
        """Where it was when contact was lost; what it ran may still run there."""


class Fleet:
    """All workers of a run.

    Args:
        loaded: the job.
        folder: the files of the run.
        recorder: the log.
        connect: makes a connection.
    """

    def __init__(self, loaded: LoadedJob, folder: RunFolder, recorder: Recorder, connect: Connect) -> None:
        self.loaded = loaded
        self.folder = folder
        self.recorder = recorder
        self._connect = connect
        self._workers: dict[int, Worker] = {}
        self.nursery: trio.Nursery | None = None
        """Where resident commands run."""

    def worker(self, rank: int) -> Worker:
        """Return a worker."""
        if rank not in self._workers:
            limit = self.loaded.job.train.output_limit_bytes
            path = self.folder.output(f"worker-{rank}")
            self._workers[rank] = Worker(rank, Output(path, limit, self.loaded.secrets.values()))
        return self._workers[rank]

    def joined(self, rank: int, round: int, attempt: int) -> TracedConnection | None:
        """Return a worker's connection as it was last handed out, if that was for this round and attempt."""
        worker = self.worker(rank)
        if worker.traced is None or not worker.has_files:
            return None
        in_round, in_attempt, traced = worker.traced
        return traced if in_round == round and in_attempt == attempt else None

    async def join(self, rank: int, shard: int, round: int, attempt: int = 1) -> TracedConnection:
        """Return a worker's connection, traced; connect one that has none, and send it its files.

        Raises:
            WorkerError: it can't be reached or its files can't be sent; it has left again then.
        """
        worker = self.worker(rank)
        if worker.connection is None:
            try:
                worker.connection = await self._connect(rank)
                if self.nursery is not None and self.loaded.job.train.resident:
                    worker.connection = Resident(worker.connection, self.nursery)
            except WorkerError as e:
                listed = self.loaded.job.worker
                where = f"{listed[rank].shown}: " if listed else ""
                said = f"{where}{e}"
                self._down(rank, round, "connect", said, for_good=False, injected=e.injected, attempt=attempt)
                raise
            worker.has_files, worker.out_of_reach = False, ""
            facts = dict(worker.connection.facts)
            price = self.loaded.job.price(rank)
            if price is not None:
                facts["price_per_hour"] = price
            up = WorkerUp(address=worker.connection.address, facts=facts)
            self.recorder.emit(up, round=round, rank=rank)
        traced = TracedConnection(
            worker.connection,
            self.recorder,
            round=round,
            rank=rank,
            attempt=attempt,
            cancelled=lambda: worker.ending,
        )
        if not worker.has_files:
            timeout_s = self.loaded.job.deadlines.push_s
            try:
                for source, target in self._files(rank, shard):
                    await traced.push(source, target, timeout_s=timeout_s)
            except WorkerError as e:
                await self.leave(rank, round, e.reason, str(e), injected=e.injected)
                raise
            worker.has_files = True
        worker.traced = round, attempt, traced
        return traced

    def away(self, ranks: Iterable[int]) -> list[int]:
        """Return those of the workers that have no connection."""
        return [rank for rank in ranks if self.worker(rank).connection is None]

    async def leave(
        self,
        rank: int,
        round: int,
        reason: str,
        detail: str,
        *,
        for_good: bool = False,
        injected: str | None = None,
    ) -> None:
        """Let go of a worker, and say why."""
        worker = self.worker(rank)
        connection, worker.connection, worker.traced = worker.connection, None, None
        self._down(rank, round, reason, detail, for_good=for_good, injected=injected)
        if connection is not None and not await connection.close():
            worker.out_of_reach = connection.address

    async def close(self, *, done: bool = False) -> None:
        """Let go of all workers at the end of a run; `done`: it is complete."""
        async with trio.open_nursery() as nursery:
            for worker in self._workers.values():
                if worker.connection is not None:
                    nursery.start_soon(partial(self._part, worker, worker.connection, done=done))
                    worker.connection = worker.traced = None
        for worker in self._workers.values():
            worker.output.close()  # only now: commands that stay have last words

    def out_of_reach(self) -> list[str]:
        """Return, in words, the workers that nobody could tell to end what they run."""
        return [
            f"worker {worker.rank} ({worker.out_of_reach})"
            for _, worker in sorted(self._workers.items())
            if worker.out_of_reach
        ]

    async def _part(self, worker: Worker, connection: Connection, *, done: bool) -> None:
        if not await connection.close(done=done):
            worker.out_of_reach = connection.address
            said = "it did not answer at the end of the run: what it ran may still run there"
            self._down(worker.rank, None, "lost", said, for_good=False)

    def _files(self, rank: int, shard: int) -> list[tuple[Path, str]]:
        try:
            return [(source, str(target)) for source, target in self.loaded.files_for(rank, shard)]
        except OSError as e:
            raise TransferError(f"can't read the files to send: {e}") from e

    def _down(
        self,
        rank: int,
        round: int | None,
        reason: str,
        detail: str,
        *,
        for_good: bool,
        injected: str | None = None,
        attempt: int | None = None,
    ) -> None:
        down = WorkerDown(reason=reason, detail=detail, for_good=for_good, injected=injected, attempt=attempt)
        self.recorder.emit(down, round=round, rank=rank)
