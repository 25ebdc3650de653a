"""Sets up what a run of simulated workers needs: their world, the clock that jumps, and its dates."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import trio

from runner.chaos import Chaos, Injector
from runner.coordinator import Coordinator, Result
from runner.errors import RunError
from runner.fleet import Connect
from runner.job import LoadedJob
from runner.past import Past
from runner.recorder import Listener, Recorder
from runner.runfolder import RunFolder
from runner.simtime import Clock
from runner.transports.sim import World


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a run in simulated time needs.

    Attributes:
        world: the workers; has to hear the log's events.
        clock: of the trio run, from 0; it jumps to the next instant when every task waits.
        began: when the run began, UTC: the real time of its first start.
    """

    world: World
    clock: Clock
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
        # A round makes a hundred objects a worker and lets go of them without help: don't look through them.
        gc.set_threshold(max(100_000, 200 * loaded.job.total_nodes), 5, 100)
        began_s = 0.0 if past is None else past.t_us / 1e6
        clock = Clock()
        try:
            world = World(sim, loaded.job.seed, loaded.folder, folder.folder / "workers", clock, began_s)
        except (OSError, ValueError) as e:
            raise RunError(f"can't draw from a file of numbers: {e}") from e
        world.workers = loaded.job.total_nodes
        if past is not None:
            world.cut_short.update(tried.number for tried in past.tries if tried.cut_short)
        began = now if past is None else past.ts - timedelta(microseconds=past.t_us)
        return cls(world, clock, began)

    @property
    def connect(self) -> Connect:
        """Makes connections to the simulated workers."""
        return self.world.connect


def run(
    loaded: LoadedJob,
    folder: RunFolder,
    now: datetime,
    listeners: Sequence[Listener] = (),
    chaos: Chaos | None = None,
) -> Result:
    """Run a job of simulated workers from its beginning to its end, without signals or talk.

    Args:
        loaded: the job.
        folder: the files of the run.
        now: UTC; when it begins.
        listeners: called with every event after it was written.
        chaos: faults to put in.

    Raises:
        RunError: it could not be run, or the log could not be written.
    """
    simulation = Simulation.of(loaded, folder, now)
    with Recorder(
        folder.log,
        folder.run,
        folder.folder,
        clock=simulation.clock.current_time,
        began=simulation.began,
        listeners=[simulation.world, *listeners],
    ) as recorder:
        connect = simulation.connect
        if chaos is not None:
            connect = Injector(chaos, loaded.job.total_nodes, connect).connect
        coordinator = Coordinator(loaded, folder, recorder, connect)
        return trio.run(coordinator.run, clock=simulation.clock)
