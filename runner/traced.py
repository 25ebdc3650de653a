"""Wraps any connection so that what it does is in the log; the connection doesn't know."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from runner.connection import Connection, Ended, Mishap, Transferred
from runner.errors import DeadlineError, plain
from runner.grouped import leaf
from runner.job import Command
from runner.output import Output
from runner.recorder import Recorder
from schemas.events import Body, Exec, ExecStart, Finished, Pull, PullStart, Push, PushStart
from schemas.text import duration

_NONE = Mishap()
"""Where a connection knows nothing of one."""


class TracedConnection:
    """A connection of one worker in one round, traced.

    Each call emits an event when it begins and one when it ends, also when it fails or is cancelled;
    exceptions go through. Attributes it doesn't have are the wrapped connection's.

    Args:
        connection: what is traced.
        recorder: the log.
        round: the round it belongs to.
        rank: the worker it belongs to; None for the coordinator.
        attempt: which try, from 1.
        cancelled: says why a call was cancelled.
    """

    def __init__(
        self,
        connection: Connection,
        recorder: Recorder,
        *,
        round: int | None,
        rank: int | None,
        attempt: int = 1,
        cancelled: Callable[[], str] = lambda: "cancelled",
    ) -> None:
        self._connection = connection
        self._recorder = recorder
        self._round = round
        self._rank = rank
        self._attempt = attempt
        self._cancelled = cancelled
        self._keeps_time = getattr(connection, "keeps_time", False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def push(
        self, source: Path, target: str, *, timeout_s: float = math.inf, plain_bytes: int | None = None
    ) -> Transferred:
        """Push, and say so; `plain_bytes` is what an encoded file stands for.

        Raises:
            DeadlineError: it took longer than `timeout_s` seconds.
        """
        done: Transferred | None = None

        def finish(error: str | None) -> Push:
            mishap = self._connection.mishap or _NONE
            size = mishap.size_bytes if done is None else done.size_bytes
            return Push(
                path=target,
                size_bytes=_size(source) if size is None else size,
                attempt=self._attempt,
                error=error,
                reused=done.reused if done else 0,
                plain_bytes=plain_bytes,
                arrived_bytes=mishap.arrived_bytes if done is None else None,
                injected=mishap.injected,
                injected_after_s=_short(mishap.injected_after_s),
            )

        with _Span(self, PushStart(path=target, attempt=self._attempt), finish):
            with self._limited(timeout_s):
                done = await self._connection.push(source, target)
            if done is None:
                raise DeadlineError(f"timed out after {duration(timeout_s)}")
        return done

    async def pull(
        self,
        source: str,
        target: Path,
        *,
        max_bytes: int,
        timeout_s: float = math.inf,
        plain_bytes: int | None = None,
    ) -> Transferred:
        """Pull, and say so; `plain_bytes` is what an encoded file stands for.

        Raises:
            DeadlineError: it took longer than `timeout_s` seconds.
        """
        done: Transferred | None = None

        def finish(error: str | None) -> Pull:
            mishap = self._connection.mishap or _NONE
            return Pull(
                path=source,
                size_bytes=mishap.size_bytes if done is None else done.size_bytes,
                attempt=self._attempt,
                error=error,
                reused=done.reused if done else 0,
                plain_bytes=plain_bytes,
                arrived_bytes=mishap.arrived_bytes if done is None else None,
                injected=mishap.injected,
                injected_after_s=_short(mishap.injected_after_s),
            )

        with _Span(self, PullStart(path=source, attempt=self._attempt), finish):
            with self._limited(timeout_s):
                done = await self._connection.pull(source, target, max_bytes=max_bytes)
            if done is None:
                raise DeadlineError(f"timed out after {duration(timeout_s)}")
        return done

    async def exec(
        self,
        command: Command,
        *,
        env: Mapping[str, str],
        output: Output,
        remove: Sequence[str] = (),
        expect: Sequence[str] = (),
        timeout_s: float = math.inf,
        idle_s: float = math.inf,
    ) -> Ended:
        """Execute, and say so.

        Raises:
            DeadlineError: it took longer than `timeout_s` seconds, or printed nothing for `idle_s`
                seconds, and was ended.
        """
        ended: Ended | None = None

        def finish(error: str | None) -> Exec:
            mishap = self._connection.mishap or _NONE
            return Exec(
                exit_code=ended.exit_code if ended else None,
                output_tail=output.tail(),
                output_bytes=output.count_bytes,
                output_path=self._recorder.relative(output.path) if output.count_bytes else None,
                attempt=self._attempt,
                error=error or (_exit_error(ended.exit_code) if ended else None),
                injected=mishap.injected,
                injected_after_s=_short(mishap.injected_after_s),
            )

        shown = command if isinstance(command, str) else shlex.join(command)
        with _Span(self, ExecStart(command=shown, attempt=self._attempt), finish):
            until = trio.current_time() + timeout_s
            with self._limited(min(timeout_s, idle_s)) as scope:
                if scope is not None:
                    output.heard = partial(_put_off, scope, until, idle_s)
                ended = await self._connection.exec(
                    command, env=env, output=output, remove=remove, expect=expect
                )
            if ended is None:
                raise DeadlineError(
                    f"timed out after {duration(timeout_s)}"
                    if trio.current_time() >= until
                    else f"printed nothing for {duration(idle_s)}"
                )
        return ended

    def _limited(self, timeout_s: float) -> trio.CancelScope | _NoScope:
        """Return a scope that ends a call after a time, unless the connection does that itself."""
        if self._keeps_time:
            self._connection.limit_s = timeout_s  # type: ignore[attr-defined] # of those that keep time
            return _NoScope()
        return trio.CancelScope(relative_deadline=timeout_s)

    def told(self, error: BaseException) -> str:
        """Say what an error that ended a call was."""
        error = leaf(error)
        if isinstance(error, trio.Cancelled):
            return self._cancelled()
        return plain(error) or type(error).__name__

    def emit(self, body: Body, since_us: int | None = None) -> int:
        """Emit an event of this worker and round; return its time in microseconds."""
        return self._recorder.emit(body, round=self._round, rank=self._rank, since_us=since_us)


class _NoScope:
    """Stands where a scope would, for a connection that ends its calls in time by itself."""

    __slots__ = ()

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return


class _Span:
    """Emits `start`, and whatever happens inside, what `finish` makes of the error."""

    __slots__ = ("_began", "_finish", "_start", "_traced")

    def __init__(
        self, traced: TracedConnection, start: Body, finish: Callable[[str | None], Finished]
    ) -> None:
        self._traced = traced
        self._start = start
        self._finish = finish
        self._began = 0

    def __enter__(self) -> None:
        self._began = self._traced.emit(self._start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        said = None if error is None else self._traced.told(error)
        self._traced.emit(self._finish(said), self._began)


def _put_off(scope: trio.CancelScope, until: float, idle_s: float) -> None:
    """Give a command that printed something the idle time anew."""
    scope.deadline = min(until, trio.current_time() + idle_s)


def _short(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _exit_error(code: int | None) -> str | None:
    return None if not code else f"ended by signal {-code}" if code < 0 else f"exit code {code}"
