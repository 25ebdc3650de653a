"""Faults put into a run on purpose, over any transport: what a chaos file says, and what does it.

When a fault strikes a worker is drawn from the file's seed and the worker's rank alone. It strikes what the
worker is doing then; where it does nothing, what it does next.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Literal, TypeVar

import trio
from msgspec import Meta, Struct

from runner.connection import Connection, Ended, Mishap, Sink, Transferred
from runner.errors import ConnectionLostError, WorkerError
from runner.job import Command

Kind = Literal["kill", "freeze", "cut", "slow"]
Given = TypeVar("Given")
Strike = Callable[[signal.Signals], bool]
"""Sends a signal to the commands that run; says whether there are any."""

_LOST = {
    "kill": "the worker was killed",
    "cut": "the connection was cut",
    "outage": "the worker is out of reach",
}


class Chaos(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole chaos file."""

    faults_per_hour: Annotated[
        float, Meta(gt=0, le=1e6, description="a number above 0, at most 1000000: in all, on average")
    ]
    per_worker: Annotated[bool, Meta(description="true: so many for each worker; false: in all")] = False
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="a whole number from 0 to 2**63 - 1")] = 0
    kinds: Annotated[
        tuple[Kind, ...],
        Meta(
            min_length=1, description='a list of "kill", "freeze", "cut", "slow", not empty; each as likely'
        ),
    ] = ("kill", "freeze", "cut", "slow")
    slow_factor: Annotated[
        float, Meta(ge=1, le=1e6, description="a number from 1 to 1000000: times as long it takes")
    ] = 4.0
    outage_s: Annotated[
        float,
        Meta(ge=0, le=31_536_000, description="seconds, 0 or more: out of reach after a kill or a cut"),
    ] = 0.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come: when, in seconds since the run began, and what."""

    at_s: float
    kind: Kind


class Plan:
    """The faults that one worker meets, one after the other.

    Args:
        chaos: the file.
        rank: of the worker.
        workers: how many share the rate.
        from_s: when a run is gone on with, in seconds since it began; what was due before has struck.
    """

    def __init__(self, chaos: Chaos, rank: int, workers: int, from_s: float = 0.0) -> None:
        self._chaos = chaos
        self._rng = Random(f"{chaos.seed} chaos {rank}")
        self._per_s = chaos.faults_per_hour / 3600 / (1 if chaos.per_worker else workers)
        self.back_s = 0.0
        """Until when it is out of reach."""
        self._later: list[Planned] = []
        self.next = self._draw(0.0)
        while round(self.next.at_s, 6) <= from_s:  # as the log, which `from_s` is from, has it
            taken = self.take()
            if taken.kind in {"kill", "cut"}:
                self.back_s = round(taken.at_s, 6) + chaos.outage_s

    def take(self) -> Planned:
        """Return the next fault, and draw the one after it."""
        taken = self.next
        self.next = self._later.pop() if self._later else self._draw(taken.at_s)
        return taken

    def put_back(self, fault: Planned) -> None:
        """Take back a fault that struck nothing: it comes next."""
        self._later.append(self.next)
        self.next = fault

    def _draw(self, after_s: float) -> Planned:
        return Planned(after_s + self._rng.expovariate(self._per_s), self._rng.choice(self._chaos.kinds))


class Injector:
    """Makes connections that faults strike.

    Args:
        chaos: the file.
        workers: of the job, spares included.
        connect: makes the connections that are struck.
        from_s: when a run is gone on with, in seconds since it began.
    """

    def __init__(
        self,
        chaos: Chaos,
        workers: int,
        connect: Callable[[int], Awaitable[Connection]],
        from_s: float = 0.0,
    ) -> None:
        self.chaos = chaos
        self._workers = workers
        self._connect = connect
        self._from_s = from_s
        self._plans: dict[int, Plan] = {}
        self._began: float | None = None

    async def connect(self, rank: int) -> Connection:
        """Connect to a worker.

        Raises:
            WorkerError: it can't be reached, be it by a fault or not.
        """
        plan = self._plans.setdefault(rank, Plan(self.chaos, rank, self._workers, self._from_s))
        if self.now_s() < plan.back_s:
            raise _lost("outage")
        return ChaosConnection(await self._connect(rank), plan, self)

    def now_s(self) -> float:
        """Return the seconds since the run began: since the first call, and what was before."""
        if self._began is None:
            self._began = trio.current_time()
        return trio.current_time() - self._began + self._from_s


def _always() -> bool:
    return True


class ChaosConnection:
    """A connection that faults strike as planned.

    A kill or freeze is a real signal where the connection can send one to what runs (``strike``); elsewhere
    a killed worker is one that is lost, and a frozen one does not answer.
    """

    def __init__(self, connection: Connection, plan: Plan, injector: Injector) -> None:
        self._connection = connection
        self._plan = plan
        self._injector = injector
        self._fault: Mishap | None = None
        self._began_s = 0.0
        self.address = connection.address
        self.folder = connection.folder
        self.facts = connection.facts

    @property
    def mishap(self) -> Mishap | None:
        """What befell the last call: the fault of these that struck it, and what the wrapped one knows."""
        known, fault = self._connection.mishap, self._fault
        if known is None or fault is None:
            return fault or known
        return replace(known, injected=fault.injected, injected_after_s=fault.injected_after_s)

    async def push(self, source: Path, target: str) -> Transferred:
        """Push, and be struck."""
        return await self._struck(lambda: self._connection.push(source, target))

    async def pull(self, source: str, target: Path, *, max_bytes: int) -> Transferred:
        """Pull, and be struck."""
        return await self._struck(lambda: self._connection.pull(source, target, max_bytes=max_bytes))

    async def exec(
        self,
        command: Command,
        *,
        env: Mapping[str, str],
        output: Sink,
        remove: Sequence[str] = (),
        expect: Sequence[str] = (),
        stdin: trio.MemoryReceiveChannel[bytes] | None = None,
    ) -> Ended:
        """Execute, and be struck; a command that stays is struck where it is asked, see :meth:`asked`."""
        do = partial(
            self._connection.exec, command, env=env, output=output, remove=remove, expect=expect, stdin=stdin
        )
        return await (self.asked(do) if stdin is None else do())

    async def asked(self, do: Callable[[], Awaitable[Ended]], busy: Callable[[], bool] = _always) -> Ended:
        """Wait for what a command does in a round, and strike it there.

        Args:
            do: waits for it.
            busy: whether the command is still at it.
        """
        strike: Strike | None = getattr(self._connection, "strike", None)
        return await self._struck(do, strike, busy)

    async def close(self, *, done: bool = False) -> bool:
        """Close what is wrapped."""
        return await self._connection.close(done=done)

    async def _struck(
        self,
        do: Callable[[], Awaitable[Given]],
        strike: Strike | None = None,
        busy: Callable[[], bool] = _always,
    ) -> Given:
        """Do something, and let the next fault strike it when its time has come.

        Raises:
            ConnectionLostError: the fault was a kill or a cut.
        """
        self._fault = None
        began = self._began_s = trio.current_time()
        done: list[Given] = []
        failed: WorkerError | None = None
        struck: list[Planned] = []
        left = self._plan.next.at_s - self._injector.now_s()
        if left <= 0:
            struck.append(self._take())
            while self._plan.next.at_s <= self._injector.now_s():
                struck[0] = self._take()  # of several that found it idle, the last
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                if not struck:
                    nursery.start_soon(self._wait, left, strike, busy, scope, struck)
                elif struck[0].kind != "slow":
                    scope.cancel()
                try:
                    done.append(await do())
                except WorkerError as e:  # alone: a nursery would make a group of it
                    failed = e
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        kind = struck[0].kind if struck else None
        if not done:
            if kind == "freeze":
                await trio.sleep_forever()
            self._plan.back_s = self._injector.now_s() + self._injector.chaos.outage_s
            raise _lost(str(kind))
        if kind == "slow":
            await trio.sleep((trio.current_time() - began) * (self._injector.chaos.slow_factor - 1))
        elif struck and not (kind == "kill" and strike is not None and _killed(done[0])):
            if kind == "freeze" and strike is not None:
                strike(signal.SIGCONT)
            self._fault = None
            self._plan.put_back(struck[0])  # it was done just before: nothing was struck
        return done[0]

    async def _wait(
        self,
        seconds: float,
        strike: Strike | None,
        busy: Callable[[], bool],
        scope: trio.CancelScope,
        struck: list[Planned],
    ) -> None:
        """Wait for the fault, then strike: with a signal if that is possible, else by cutting off."""
        await trio.sleep(seconds if seconds < math.inf else 1e9)
        if not busy():
            return  # it strikes what comes next
        struck.append(self._take())
        kind = struck[0].kind
        if kind == "slow":
            return
        number = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}.get(kind)
        if number is None or strike is None or not strike(number):
            scope.cancel()

    def _take(self) -> Planned:
        taken = self._plan.take()
        self._fault = Mishap(taken.kind, trio.current_time() - self._began_s)
        return taken


def _killed(done: object) -> bool:
    """Say whether a kill can have met a command: if it was ended by one, or stays and has just answered."""
    return isinstance(done, Ended) and done.exit_code in {None, -signal.SIGKILL}


def _lost(kind: str) -> ConnectionLostError:
    error = ConnectionLostError(_LOST.get(kind, kind))
    error.injected = kind
    return error
