"""Simulated time: it goes from one instant at which something is due to the next, and work takes none of it.

A clock that jumps as soon as every task waits would also jump while a thread works; so in simulated time
blocking work is done inline. Trio wakes tasks of one instant in any order; what depends on it can wait for
the end of the instant.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import TypeVar

import trio
from outcome import Value

Made = TypeVar("Made")


class Instants:
    """Moves a clock from instant to instant, once there is nothing left to do in the one that is now.

    Costs O(log n) a thing that is due, and no cancel scope, of which ten thousand workers would need many.
    Deadlines of trio's own are kept as well.

    Args:
        jump: moves the clock by seconds.
    """

    def __init__(self, jump: Callable[[float], None]) -> None:
        self._jump = jump
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._ending: list[Callable[[], object]] = []
        self._woken = False
        self._driver: trio.lowlevel.Task | None = None
        self._resting = False

    def call_at(self, time: float, call: Callable[[], object]) -> None:
        """Call something at a time of the clock, in seconds.

        It must neither wait nor raise; a task that it wakes, it wakes by :meth:`wake`.
        """
        heapq.heappush(self._due, (time, next(self._numbers), call))
        self._start()

    async def sleep_until(self, time: float) -> None:
        """Wait until a time of the clock, in seconds."""
        waiting = [trio.lowlevel.current_task()]

        def wake() -> None:
            if waiting:
                self.wake(waiting.pop())

        def abort(_: object) -> trio.lowlevel.Abort:
            waiting.clear()
            return trio.lowlevel.Abort.SUCCEEDED

        self.call_at(time, wake)
        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self, task: trio.lowlevel.Task) -> None:
        """Let a task go on."""
        self._woken = True
        trio.lowlevel.reschedule(task)

    def at_end(self, call: Callable[[], object]) -> None:
        """Call something when nothing is left to do in this instant; it must neither wait nor raise."""
        self._ending.append(call)
        self._start()

    def _start(self) -> None:
        if self._driver is None:
            self._driver = trio.lowlevel.spawn_system_task(self._drive)
        elif self._resting:
            self._resting = False
            trio.lowlevel.reschedule(self._driver, Value(None))

    async def _drive(self) -> None:
        from trio.testing import wait_all_tasks_blocked  # noqa: PLC0415 - slow to import, for this alone

        while True:
            if not self._due and not self._ending:
                self._resting = True
                await trio.lowlevel.wait_task_rescheduled(self._no_rest)
            await wait_all_tasks_blocked()
            if self._ending:
                ending, self._ending = self._ending, []
                for call in ending:
                    call()
            else:
                self._woken = False
                while self._due and not self._woken:
                    self._go_on()

    def _no_rest(self, _: object) -> trio.lowlevel.Abort:
        self._resting = False
        return trio.lowlevel.Abort.SUCCEEDED

    def _go_on(self) -> None:
        """Go to the next instant, and do what is due then."""
        due = self._due
        time = due[0][0]
        left = time - trio.current_time()
        others = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if others < left:
            self._jump(others)
            self._woken = True  # by trio, now that it is due
            return
        if left > 0:
            self._jump(left)
        now = max(time, trio.current_time())  # the jump may be short by rounding
        while due and due[0][0] <= now:
            heapq.heappop(due)[2]()


_INSTANTS: trio.lowlevel.RunVar[Instants | None] = trio.lowlevel.RunVar("instants", default=None)


def simulate(jump: Callable[[float], None]) -> None:
    """Take the time of this trio run for simulated from now on; `jump` moves its clock by seconds."""
    _INSTANTS.set(Instants(jump))


def simulated() -> bool:
    """Say whether the time of this trio run is simulated."""
    return _INSTANTS.get() is not None


def instants() -> Instants:
    """Return what drives the simulated time of this trio run."""
    found = _INSTANTS.get()
    assert found is not None, "time is not simulated"  # noqa: S101 - asked for by simulated workers alone
    return found


async def in_thread(work: Callable[..., Made], *args: object) -> Made:
    """Do blocking work in a thread, or inline where time is simulated: it takes no time there."""
    if simulated():
        return work(*args)
    return await trio.to_thread.run_sync(work, *args)


def stop_point() -> Callable[[], object]:
    """Return what work of :func:`in_thread` is to call now and then, so that it can be cancelled."""
    return _go_on if simulated() else trio.from_thread.check_cancelled


def _go_on() -> None:
    """Do nothing: work that is done inline can't be cancelled."""
