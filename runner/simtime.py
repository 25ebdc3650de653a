"""Simulated time: it goes from one instant at which something is due to the next, and work takes none of it.

A clock that jumps as soon as every task waits would also jump while a thread works; so in simulated time
blocking work is done inline. Trio wakes tasks of one instant in any order; what depends on it can wait for
the end of the instant.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import TypeVar

import trio

Made = TypeVar("Made")


class Clock(trio.abc.Clock):
    """Goes from instant to instant, each time there is nothing left to do in the one that is now.

    Trio asks a clock how long it may sleep whenever no task can go on: that is the end of an instant, and
    what is due next is done right there. It costs O(log n) a thing that is due, no cancel scope, of which
    ten thousand workers would need many, and no task that is woken between. Deadlines of trio's own are
    kept as well; where nothing is due, it sleeps until something comes from outside.
    """

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the clock began."""
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._ending: list[Callable[[], object]] = []
        self._woken = False

    def start_clock(self) -> None:
        """Do nothing: it begins at 0."""

    def current_time(self) -> float:
        """Return the seconds since the clock began."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """End this instant: do what waits for that, or go to the next instant and do what is due then.

        Args:
            deadline: the next one of trio's own; ``inf`` for none.
        """
        self._woken = False
        while not self._woken:
            if self._ending:
                ending, self._ending = self._ending, []
                for call in ending:
                    call()
                break  # whom they let go on, they don't say
            if deadline <= self.now:
                break
            if not self._due or deadline < self._due[0][0]:
                if math.isinf(deadline):
                    return math.inf
                self.now = deadline
                break
            self._go_on()
        return 0.0

    def call_at(self, time: float, call: Callable[[], object]) -> None:
        """Call something at a time of the clock, in seconds.

        It must neither wait nor raise; a task that it wakes, it wakes by :meth:`wake`.
        """
        heapq.heappush(self._due, (time, next(self._numbers), call))

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

    def _go_on(self) -> None:
        """Go to the next instant, and do what is due then."""
        due = self._due
        self.now = max(self.now, due[0][0])
        while due and due[0][0] <= self.now:
            heapq.heappop(due)[2]()


def simulated() -> bool:
    """Say whether the time of this trio run is simulated."""
    return isinstance(trio.lowlevel.current_clock(), Clock)


def instants() -> Clock:
    """Return the clock of this trio run, whose time is simulated."""
    found = trio.lowlevel.current_clock()
    assert isinstance(found, Clock), "time is not simulated"  # noqa: S101 - asked for by simulated workers alone
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
