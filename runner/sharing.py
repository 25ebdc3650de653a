"""A line that its transfers share equally, in simulated time; each costs O(log n) among n at a time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from functools import partial

import trio

from runner.simtime import Clock


def _forget(_: float) -> None:
    """Take no note."""


class SharedLine:
    """A line whose bytes per second are divided equally among the transfers under way.

    All that is kept is how many bytes each transfer under way has got since the line was last idle; a
    transfer is done when that has grown by its size. So nothing is computed anew for the others when one
    comes or goes.

    Args:
        bytes_per_s: of the line; ``inf`` for a line without limit.
        clock: whose time it takes.
    """

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._got = 0.0
        self._since = 0.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int]] = []
        self._waiting: dict[int, float] = {}
        """Transfers under way, and until when each lasts at the least."""
        self._tasks: dict[int, trio.lowlevel.Task] = {}
        self._called_at = math.inf

    def longest_s(self, size_bytes: float, most: float) -> float:
        """Return the seconds that so many bytes take at the most, among so many transfers at a time."""
        return 0.0 if math.isinf(self._bytes_per_s) else size_bytes * most / self._bytes_per_s

    async def carry(self, size_bytes: float, until: float, cut: Callable[[float], object] = _forget) -> None:
        """Wait as long as so many bytes take, and until a time of the clock, whichever is later.

        Args:
            size_bytes: how many.
            until: the time, in seconds.
            cut: if the wait is cancelled, told how many bytes this line has carried by then.
        """
        if math.isinf(self._bytes_per_s):
            await self._clock.sleep_until(until)
            return
        self._advance()
        number = next(self._numbers)
        task = trio.lowlevel.current_task()
        self._tasks[number], self._waiting[number] = task, until
        due = self._got + size_bytes
        heapq.heappush(self._due, (due, number))
        self._arm()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._tasks.pop(number)
            if number in self._waiting:
                self._advance()
                cut(min(max(size_bytes - (due - self._got), 0.0), size_bytes))
                del self._waiting[number]
                self._arm()
            else:
                cut(size_bytes)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _advance(self) -> None:
        """Give every transfer its share of the time that has passed."""
        now = self._clock.now
        if self._waiting:
            self._got += (now - self._since) * self._bytes_per_s / len(self._waiting)
        else:
            self._got = 0.0
            self._due.clear()
        self._since = now

    def _arm(self) -> None:
        """Ask to be called when the next transfer is due, unless that is asked for or comes too early."""
        while self._due and self._due[0][1] not in self._waiting:
            heapq.heappop(self._due)
        if self._due:
            left = max(self._due[0][0] - self._got, 0.0)
            at = self._since + left * len(self._waiting) / self._bytes_per_s
            if at < self._called_at:
                self._called_at = at
                self._clock.call_at(at, lambda: self._arrive(at))

    def _arrive(self, at: float) -> None:
        """Let go of the transfers that are due; when others have come since it was asked for, none may be."""
        if at != self._called_at:
            return  # an earlier call has been asked for since
        self._called_at = math.inf
        self._advance()
        share = len(self._waiting) / self._bytes_per_s
        # Due is what can't be waited for: the clock has no time between now and its end.
        while self._due and self._since + (self._due[0][0] - self._got) * share <= self._since:
            number = heapq.heappop(self._due)[1]
            until = self._waiting.pop(number, None)
            if until is None:
                continue
            if until <= self._since:
                self._let_go(number)
            else:
                self._clock.call_at(until, partial(self._let_go, number))
        self._arm()

    def _let_go(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            self._clock.wake(task)
