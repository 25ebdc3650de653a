"""The coordinator's own commands: the one that makes the first params, and the evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trio

from runner import metrics
from runner.connection import Ended
from runner.errors import WorkerError
from runner.fleet import Fleet
from runner.job import UNBUFFERED, Command, environment
from runner.output import Output
from runner.rounds import emit_metrics
from runner.serverstep import CurrentParams
from runner.simtime import in_thread
from runner.traced import TracedConnection
from runner.transports.local import LocalConnection
from runner.weights import adopt

_MADE_UP = 64
"""How many numbers the params have that are made up for a simulation."""


class OwnCommands:
    """Runs commands on this machine, in the job file's folder.

    Args:
        fleet: of the run; has its job, files and log.
        output: takes what they print.
    """

    def __init__(self, fleet: Fleet, output: Output) -> None:
        self._job = fleet.loaded.job
        self._base = fleet.loaded.folder
        self._folder = fleet.folder
        self._recorder = fleet.recorder
        self._output = output
        self._connection = LocalConnection(self._base, f"{self._folder.run}.coordinator")

    async def close(self) -> None:
        """End what is left of them."""
        await self._connection.close()

    async def initial_params(self) -> CurrentParams:
        """Make the first params, by the job's command or from its file.

        Raises:
            WorkerError: the command failed.
            ArrayError: what it made, or the file, is no file of finite arrays.
            OSError: the params can't be written.
        """
        given = self._job.params
        if given.file is not None:
            return await self._adopt(self._base / given.file)
        if given.command is None:
            return await self._made_up()
        made = self._folder.folder / "incoming" / f"init.{given.format}"
        env = {**environment(given.env), "ROUNDLOG_PARAMS": str(made.resolve())}
        self._output.begin("params")
        try:
            ended: Ended | None = None
            with trio.move_on_after(given.timeout_s):
                ended = await self._connection.exec(
                    given.command, env=self._environment(env), output=self._output
                )
        finally:
            self._output.end()
        if ended is None:
            raise WorkerError(f"params.command took longer than {given.timeout_s} s")
        if ended.exit_code != 0:
            tail = self._output.tail()
            said = f": {tail} (see {self._output.path})" if tail else ", and printed nothing"
            raise WorkerError(f"params.command ended with exit code {ended.exit_code}{said}")
        if not made.is_file():
            raise WorkerError("params.command ended well but wrote no file $ROUNDLOG_PARAMS")
        params = await self._adopt(made)
        made.unlink()
        return params

    async def _made_up(self) -> CurrentParams:
        """Make params for simulated workers: a few numbers, whatever size they are taken for."""
        made = self._folder.folder / "incoming" / "init.npy"
        rng = np.random.default_rng(self._job.seed)
        np.save(made, rng.standard_normal(_MADE_UP).astype(np.float32))
        params = await self._adopt(made)
        made.unlink()
        return params

    async def evaluate(self, number: int, params: CurrentParams) -> None:
        """Run the evaluation after a round, if the job has one; its failure costs its figures only."""
        evaluate = self._job.evaluate
        if evaluate is None:
            return
        await self._recorder.flush()  # what it works on is in the log for good
        report = self._folder.folder / "incoming" / f"metrics-{number:04}.json"
        env = {
            **environment(evaluate.env),
            "ROUNDLOG_ROUND": str(number),
            "ROUNDLOG_PARAMS": str(params.path.resolve()),
            "ROUNDLOG_METRICS": str(report.resolve()),
        }
        try:
            ended = await self._traced(evaluate.command, env, number, evaluate.timeout_s)
            if ended.exit_code == 0 and report.is_file() and not report.is_symlink():
                emit_metrics(self._recorder, metrics.read(report), number, None)
        except WorkerError:
            pass  # the exec event has it
        finally:
            report.unlink(missing_ok=True)

    async def _traced(self, command: Command, env: dict[str, str], round: int, timeout_s: float) -> Ended:
        traced = TracedConnection(self._connection, self._recorder, round=round, rank=None)
        self._output.begin(f"evaluation of round {round}")
        try:
            return await traced.exec(
                command, env=self._environment(env), output=self._output, timeout_s=timeout_s
            )
        finally:
            self._output.end()

    async def _adopt(self, source: Path) -> CurrentParams:
        target = self._folder.params(0, source.suffix[1:])
        sha256, specs = await in_thread(adopt, source, target)
        return CurrentParams(target, sha256, specs)

    def _environment(self, env: dict[str, str]) -> dict[str, str]:
        return {
            **UNBUFFERED,
            "ROUNDLOG_RUN": self._folder.run,
            "ROUNDLOG_SEED": str(self._job.seed),
            "ROUNDLOG_WORLD_SIZE": str(self._job.total_nodes),
            **env,
        }
