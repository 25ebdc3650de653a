"""Workers that are simulated: time passes as their job file says, no bytes travel, nothing is executed.

What a worker hands back are real files of weights all the same, a few that many workers share, so that
they are checked and averaged as any others are. All chance is drawn from generators of the seed, the
round, its try and the rank: what happens doesn't depend on the order in which tasks are woken.
"""

from __future__ import annotations

import json
import math
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import trio
from numpy.typing import NDArray

from runner.connection import Ended, Mishap, Sink, Transferred, checked_name
from runner.draws import Sampler
from runner.errors import (
    ConnectionLostError,
    DeadlineError,
    NoFileError,
    RunError,
    TransferError,
    WorkerError,
)
from runner.job import Command
from runner.sharing import SharedLine
from runner.simjob import During, Fault, Sim
from runner.simtime import Clock
from schemas.text import duration

Given = TypeVar("Given")

_BAD_WEIGHTS = ("nan", "shape")
SHARED = 4
"""Files of weights that differ, in a round; ranks that many apart hand back the same."""


@dataclass(slots=True)
class Struck:
    """A fault that strikes one call: which, and how far the call had come (0 to 1)."""

    fault: Fault
    after: float


class World:
    """All simulated workers of a run, and the coordinator's lines to them.

    Called with the events of the log, it learns from them which round and try it is.

    Args:
        sim: the job's ``[sim]``.
        seed: the job's.
        folder: where relative paths of the job start.
        scratch: a folder of this machine for files of weights; made if need be.
        clock: whose time it is.
        began_s: time of the run at which the clock shows 0, in seconds.
    """

    def __init__(  # noqa: PLR0917 - what they are says in which place they belong
        self, sim: Sim, seed: int, folder: Path, scratch: Path, clock: Clock, began_s: float = 0.0
    ) -> None:
        self.clock = clock
        self.sim = sim
        self.seed = seed
        self.began_s = began_s
        self.round = 0
        self.attempt = 1
        """Which try it is, those aside that were cut short: what is drawn in them is drawn again."""
        self.cut_short = Counter[int]()
        """How many tries of a round were cut short."""
        self.up = SharedLine(sim.uplink_bytes_per_s or math.inf, clock)
        self.down = SharedLine(sim.downlink_bytes_per_s or math.inf, clock)
        self.train_s = Sampler(sim.train_s, folder)
        self._once = {
            name: Sampler(given, folder)
            for name in ("slowness", "latency_s", "line_bytes_per_s", "samples")
            if (given := getattr(sim, name)) is not None
        }
        self._scratch = scratch
        self.workers = math.inf
        """How many there are at the most."""
        self._workers: dict[int, SimConnection] = {}
        self._made: dict[tuple[int, str], tuple[Path, int]] = {}
        self._params: dict[int, Path] = {}
        self._arrays: dict[str, NDArray[Any]] = {}
        """What is in this round's params, once it is needed."""

    def __call__(self, event: Mapping[str, object]) -> None:
        """Take an event of the log."""
        if event["kind"] == "round_start":
            self.round = int(str(event["round"]))
            self.attempt = int(str(event["attempt"])) - self.cut_short[self.round]
            for path, _ in self._made.values():
                path.unlink(missing_ok=True)
            self._made.clear()
            self._params.clear()
            self._arrays.clear()

    def close(self) -> None:
        """Take no more events."""

    async def connect(self, rank: int) -> SimConnection:
        """Reach a worker.

        Raises:
            ConnectionLostError: it has vanished, or is cut off.
        """
        if rank not in self._workers:
            self._workers[rank] = SimConnection(self, rank)
        connection = self._workers[rank]  # a machine is what it was when it is reached again
        await connection.reach()
        return connection

    def rng(self, *what: object) -> Random:
        """Return a generator of its own for something."""
        return Random(self.key(*what))

    def key(self, *what: object) -> str:
        """Return what such a generator is seeded with."""
        return " ".join(map(str, (self.seed, *what)))

    def once(self, rank: int) -> dict[str, float]:
        """Draw what is drawn once for each worker."""
        rng = self.rng("worker", rank)
        return {name: sampler.draw(rng) for name, sampler in self._once.items()}

    def now_s(self) -> float:
        """Return the seconds since the run began."""
        return self.clock.now + self.began_s

    def pushed(self, source: Path, target: str) -> int:
        """Take that a file was pushed; return the size it is taken for.

        Raises:
            TransferError: it is no file.
        """
        if source is self._params.get(self.round):
            return self.sim.params_bytes
        try:
            found = source.stat()
        except OSError as e:
            raise TransferError(f"can't push {source} to {target}: {e.strerror}") from e
        if not stat.S_ISREG(found.st_mode):
            raise TransferError(f"can't push {source} to {target}: it is no regular file")
        if target.startswith("params-"):
            self._params[self.round] = source
            return self.sim.params_bytes
        return found.st_size

    def weights(self, rank: int, kind: str) -> tuple[Path, int]:
        """Return a file of weights and its size: those of a rank, or wrong ones of a kind.

        Raises:
            WorkerError: no params were pushed to make them of.
            RunError: this machine can't keep them.
        """
        key = (rank % SHARED, kind)
        if key not in self._made:
            params = self._params.get(self.round)
            if params is None:
                raise WorkerError("no params were pushed in this round")
            path = self._scratch / f"weights-{self.round:04}-{key[0]}-{kind or 'good'}{params.suffix}"
            try:
                self._scratch.mkdir(parents=True, exist_ok=True)
                self._arrays = self._arrays or _loaded(params)
                _make_weights(self._arrays, path, [self.seed, self.round, key[0]], kind)
                self._made[key] = path, path.stat().st_size
            except OSError as e:
                raise RunError(f"{path}: can't write weights of a simulated worker: {e.strerror}") from e
        return self._made[key]


class SimConnection:
    """One simulated worker."""

    def __init__(self, world: World, rank: int) -> None:
        self._world = world
        self._rank = rank
        once = world.once(rank)
        self._latency_s = once["latency_s"]
        self._bytes_per_s = once["line_bytes_per_s"]
        self._slowness = once["slowness"]
        self._samples = once.get("samples")
        self._try = (-1, 0)
        self._rng = Random(0)
        self._left: dict[int, int] = {}
        """How often each fault still strikes in this try of the round, by its place in the job."""
        self._good = ""
        self._ready: dict[str, int] = {}
        """What it has for the coordinator to pull: names and sizes."""
        self.mishap = Mishap()
        """What befell the last call."""
        self._began_s = 0.0
        self.keeps_time = not world.sim.faults
        """Whether it ends a call by itself after ``limit_s``: scopes would be an eighth of all work."""
        self.limit_s = math.inf
        self.address = f"sim:{rank}"
        self.folder = f"/sim/{rank}"
        self.facts: Mapping[str, str | int | float] = {"cpus": 1, "line_bytes_per_s": self._bytes_per_s}

    async def reach(self) -> None:
        """Take the time it takes to connect.

        Raises:
            ConnectionLostError: it can't be reached.
        """
        self._begin()
        await self._reachable(self._sleep, self._latency_s)

    async def push(self, source: Path, target: str) -> Transferred:
        """Let the time pass that a file takes to the worker."""
        checked_name(target)
        self._begin()
        size = self._world.pushed(source, target)
        await self._travel("push", size, self._world.up)
        return Transferred(size)

    async def pull(self, source: str, target: Path, *, max_bytes: int) -> Transferred:
        """Let the time pass that a file takes from the worker, and put one where it is wanted."""
        checked_name(source)
        self._begin()
        size = self._ready.get(source)
        if size is None:
            raise NoFileError(f"can't pull {source}: No such file or directory")
        if size > max_bytes:
            raise NoFileError(
                f"can't pull {source}: it has {size} bytes, more than {max_bytes}", too_large=True
            )
        weights = source.startswith("weights-")
        taken = self._world.sim.params_bytes if weights else size
        await self._travel("pull", taken, self._world.down)
        if weights:
            return Transferred(taken, shared=self._world.weights(self._rank, self._good)[0])
        try:
            target.write_text(self._report())
        except OSError as e:
            raise TransferError(f"can't pull {source}: {e.strerror}") from e
        return Transferred(taken)

    async def exec(
        self,
        command: Command,  # noqa: ARG002 - nothing is executed
        *,
        env: Mapping[str, str],  # noqa: ARG002 - likewise
        output: Sink,  # noqa: ARG002 - likewise
        remove: Sequence[str] = (),
        expect: Sequence[str] = (),
        stdin: trio.MemoryReceiveChannel[bytes] | None = None,  # noqa: ARG002 - likewise
    ) -> Ended:
        """Let the time pass that training takes."""
        for name in (*remove, *expect):
            checked_name(name)
        self._begin()
        self._ready.clear()
        train_s = self._world.train_s.draw(self._rng) * self._slowness
        struck = self._struck("exec")
        if self.keeps_time:
            await self._sleep(min(train_s, self.limit_s))
            if train_s > self.limit_s:
                raise self._late()
        elif not await self._reachable(self._train, train_s, struck):
            return Ended(-9)
        self._good = struck.fault.what if struck is not None and struck.fault.what in _BAD_WEIGHTS else ""
        for name in expect:
            if name.startswith("weights-"):
                self._ready[name] = self._world.weights(self._rank, self._good)[1]
            elif self._samples is not None:
                self._ready[name] = len(self._report())
        return Ended(0, dict(self._ready))

    async def close(self, *, done: bool = False) -> bool:  # noqa: ARG002 - nothing is there
        """Do nothing: nothing is open."""
        return True

    def _report(self) -> str:
        return json.dumps({"num_samples": self._samples})

    def _begin(self) -> None:
        """Begin a call; draw what strikes in this try of the round when it is its first."""
        self.mishap = Mishap()
        self._began_s = self._world.clock.now
        world = self._world
        if self._try == (world.round, world.attempt):
            return
        self._try = (world.round, world.attempt)
        self._rng.seed(world.key(world.round, world.attempt, self._rank))
        self._left = {
            number: fault.times
            for number, fault in enumerate(world.sim.faults)
            if fault.what not in {"vanish", "partition"}
            and self._meant(fault)
            and (fault.rounds is None or world.round in fault.rounds)
            and self._rng.random() < fault.probability
        }

    def _meant(self, fault: Fault) -> bool:
        return fault.ranks is None or self._rank in fault.ranks

    def _struck(self, during: During) -> Struck | None:
        """Return the fault that strikes a call that begins now."""
        for number, left in self._left.items():
            fault = self._world.sim.faults[number]
            where = "exec" if fault.what in _BAD_WEIGHTS else fault.during
            if left and where == during:
                self._left[number] = left - 1
                self.mishap.injected = fault.what
                self.mishap.injected_after_s = 0.0  # from the start, if it doesn't wait
                return Struck(fault, self._rng.random())
        return None

    async def _travel(self, during: During, size: int, line: SharedLine) -> None:
        """Let a transfer take its time, with what strikes it."""
        self.mishap.size_bytes, self.mishap.arrived_bytes = size, 0
        if not self.keeps_time:
            await self._reachable(self._transfer, size, line, self._struck(during))
        elif max(self._alone_s(size), line.longest_s(size, self._world.workers)) <= self.limit_s:
            await self._carry(size, line)
        else:
            with trio.move_on_after(self.limit_s):
                await self._carry(size, line)
                return
            raise self._late()

    def _late(self) -> DeadlineError:
        return DeadlineError(f"timed out after {duration(self.limit_s)}")

    def _alone_s(self, size: float) -> float:
        """Return the seconds that so many bytes take on the worker's own line."""
        return self._latency_s + (size / self._bytes_per_s if self._bytes_per_s else math.inf)

    async def _transfer(self, size: int, line: SharedLine, struck: Struck | None) -> None:
        if struck is None or struck.fault.what == "slow":
            await self._carry(size, line, struck.fault.factor if struck is not None else 1.0)
            return
        await self._carry(size * struck.after, line)
        self._arrived(size * struck.after)
        self._strikes_now()
        if struck.fault.what == "hang":
            await trio.sleep_forever()
        raise self._lost("crash", "the worker crashed")

    async def _train(self, train_s: float, struck: Struck | None) -> bool:
        """Let training take its time, with what strikes it; say whether it came to its end."""
        what = struck.fault.what if struck is not None else ""
        if struck is not None and what in {"crash", "hang"}:
            await self._sleep(train_s * struck.after)
            self._strikes_now()
            if what == "hang":
                await trio.sleep_forever()
            return False
        await self._sleep(train_s * (struck.fault.factor if struck is not None and what == "slow" else 1.0))
        return True

    async def _sleep(self, seconds: float) -> None:
        clock = self._world.clock
        await clock.sleep_until(clock.now + seconds)

    async def _carry(self, size: float, line: SharedLine, factor: float = 1.0) -> None:
        """Wait as long as bytes take: the longer of their share of the coordinator's line and their own."""
        clock = self._world.clock
        began = clock.now
        shared = size

        def cut(carried: float) -> None:
            nonlocal shared
            shared = carried

        try:
            await line.carry(size, began + self._alone_s(size) * factor, cut)
        except trio.Cancelled:
            own = (clock.now - began - self._latency_s * factor) * self._bytes_per_s / factor
            self._arrived(min(own, shared, size))
            raise

    def _arrived(self, count: float) -> None:
        self.mishap.arrived_bytes = max(int(count), 0)

    async def _reachable(self, do: Callable[..., Awaitable[Given]], *args: object) -> Given:
        """Do something that takes time, as long as the worker can be reached.

        Raises:
            ConnectionLostError: it can't, or can't any more.
        """
        at, fault = self._lost_at()
        left = at - self._world.now_s()
        if left > 0:
            with trio.move_on_at(self._world.clock.now + left):
                return await do(*args)
        raise self._lost(fault, "the worker vanished" if fault == "vanish" else "the network is partitioned")

    def _lost_at(self) -> tuple[float, str]:
        """Return from when on this worker can't be reached, on the run's clock, and by which fault.

        Times that are over don't count; ``inf`` where none is to come.
        """
        now, round_ = self._world.now_s(), self._world.round
        soonest, which = math.inf, ""
        for number, fault in enumerate(self._world.sim.faults):
            if fault.what == "partition" and self._meant(fault):
                begins = max(fault.at_s, now)
                if now < fault.at_s + fault.for_s and begins < soonest:
                    soonest, which = begins, "partition"
            elif fault.what == "vanish" and self._meant(fault):
                for began in range(max(round_ - fault.for_rounds + 1, 0), round_ + 1):
                    if fault.rounds is not None and began not in fault.rounds:
                        continue
                    if self._world.rng("vanish", number, began, self._rank).random() < fault.probability:
                        return now, "vanish"
        return soonest, which

    def _strikes_now(self) -> None:
        self.mishap.injected_after_s = self._world.clock.now - self._began_s

    def _lost(self, fault: str, said: str) -> ConnectionLostError:
        error = ConnectionLostError(said)
        error.injected = self.mishap.injected = fault
        self._strikes_now()
        return error


def _loaded(params: Path) -> dict[str, NDArray[Any]]:
    loaded = np.load(params, allow_pickle=False)
    if params.suffix != ".npz":
        return {"array": loaded}
    with loaded:
        return dict(loaded)


def _make_weights(params: Mapping[str, NDArray[Any]], target: Path, seed: list[int], kind: str) -> None:
    """Write the params with a little noise; ``nan`` and ``shape`` make weights that must be rejected."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for name, array in params.items():
        changed = array
        if array.dtype.kind == "f":
            changed = (array + 0.01 * rng.standard_normal(array.shape)).astype(array.dtype)
            if kind == "nan":
                changed = np.full_like(changed, np.nan)
        arrays[name] = np.append(changed.ravel(), changed.dtype.type(0)) if kind == "shape" else changed
    with target.open("wb") as file:
        if target.suffix == ".npz":
            np.savez(file, **arrays)
        else:
            np.save(file, arrays["array"])
