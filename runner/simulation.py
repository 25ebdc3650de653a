"""Sets up what a run of simulated workers needs: their world, the clock that jumps, and its dates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from trio.testing import MockClock

from runner.errors import RunError
from runner.job import LoadedJob
from runner.past import Past
from runner.runfolder import RunFolder
from runner.transports.sim import World


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a run in simulated time needs.

    Attributes:
        world: the workers; has to hear the log's events.
        clock: of the trio run, from 0; it jumps to the next deadline when every task waits.
        began: when the run began, UTC: the real time of its first start.
    """

    world: World
    clock: MockClock
    began: datetime

    @classmethod
    def of(cls, loaded: LoadedJob, folder: RunFolder, now: datetime, past: Past | None = None) -> Simulation:
        """Return the simulation of a job that has a ``[sim]``.

        Args:
            loaded: the job.
            folder: the files of the run.
            now: UTC.
            past: the run so far, where it is gone on with: simulated time goes on where it was.

        Raises:
            RunError: a file of numbers can't be read.
        """
        sim = loaded.job.sim
        assert sim is not None  # noqa: S101 - asked for those alone
        began_s = 0.0 if past is None else past.t_us / 1e6
        try:
            world = World(sim, loaded.job.seed, loaded.folder, folder.folder / "workers", began_s)
        except (OSError, ValueError) as e:
            raise RunError(f"can't draw from a file of numbers: {e}") from e
        began = now if past is None else past.ts - timedelta(microseconds=past.t_us)
        return cls(world, MockClock(autojump_threshold=0), began)
