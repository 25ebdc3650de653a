"""The one writer of the log: gives events their envelope and appends them; decides nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Protocol, get_origin, get_type_hints

import orjson

from runner.closing import Closing
from runner.durable import sync_folder
from runner.errors import LogError
from runner.masks import longest_first, masked_value
from runner.simtime import in_thread
from schemas.events import BODIES, MAX_LINE_BYTES, VERSION, Body, Finished

_SHORT = 1000
_LOCK_S = 1.0
_GATHERED_BYTES = 1 << 16
"""Lines of simulated time that are written at once, at most."""
_ENVELOPE = ("v", "run", "seq", "t", "ts", "kind", "round", "rank")


class _Shape:
    """The fields of one kind of event."""

    def __init__(self, body: type[Body]) -> None:
        hints = get_type_hints(body)
        fixed = {name for name, hint in hints.items() if get_origin(hint) is Literal} | {"params_sha256"}
        names = tuple(f.name for f in fields(body))
        self.names = (*_ENVELOPE, *names)
        self.values: Callable[[Body], tuple[Any, ...]] = attrgetter(*names)
        """Of a body, as many as it has fields: every kind has more than one."""
        self.span = issubclass(body, Finished)
        self.free = frozenset(names) - fixed
        """Those that may have text that others chose."""


_SHAPES = {body: _Shape(body) for body in BODIES}


@dataclass(frozen=True, slots=True)
class Continue:
    """Where an older log is gone on with.

    Attributes:
        seq: number of its last event.
        t_us: time of the next event at the earliest, in microseconds.
        newline: whether a broken last line has to be closed first.
    """

    seq: int
    t_us: int
    newline: bool


def lock(path: Path, wait_s: float = _LOCK_S) -> int:
    """Open a log for appending and lock it; return the file descriptor.

    Raises:
        LogError: it can't be opened, or another process has it locked.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError as e:
        raise LogError(f"{path}: can't open the log: {e.strerror}") from e
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if time.monotonic() < until:  # a reader tests the lock for a moment
                time.sleep(0.01)
                continue
            os.close(fd)
            raise LogError(f"{path}: another process is writing this log; the run is still going") from e
        return fd


class Listener(Protocol):
    """Takes events after they were written."""

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


class Recorder(Closing):
    """Appends events to one log, which it keeps locked.

    Args:
        path: the log; must not exist, unless it is gone on with.
        run: id of the run.
        folder: where events go that are too long for a line; named relative to the log.
        clock: seconds from any origin, monotonic.
        began: for a clock of simulated time: when the run began, UTC; ``ts`` is that and ``t``. Lines are
            then gathered and written together, at the latest by :meth:`flush`: nothing outside the simulation
            has happened meanwhile, and a fleet of thousands has a million of them.
        secrets: texts that never reach the log; each becomes ``***``.
        listeners: called with every event after it was written.
        after: the log is gone on with from here.
        fd: its descriptor from :func:`lock`, with `after`.

    Raises:
        LogError: the log can't be made or is in use.
    """

    def __init__(
        self,
        path: Path,
        run: str,
        folder: Path,
        *,
        clock: Callable[[], float] = time.perf_counter,
        began: datetime | None = None,
        secrets: Iterable[str] = (),
        listeners: Iterable[Listener] = (),
        after: Continue | None = None,
        fd: int | None = None,
    ) -> None:
        self.path = path
        self.run = run
        self.folder = folder
        self.listeners = list(listeners)
        self._secrets = longest_first(secrets)
        self._clock = clock
        self._began = clock()
        self._date = None if began is None else began.replace(microsecond=0)
        self._date_us = 0 if began is None else began.microsecond
        self._gathered = None if began is None else bytearray()
        self._second = (-1, "")
        self._seq = 0
        self._last_us = 0
        self._broken: str | None = None
        self._overflown: list[Path] = []
        """Files with events too long for a line that may not be on the disk yet."""
        if after is not None:
            self._began -= after.t_us / 1e6
            self._seq, self._last_us = after.seq + 1, after.t_us
        self._fd = self._make() if fd is None else fd
        if after is not None and after.newline:
            self._append(b"\n")

    def _make(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            fd = os.open(self.path, flags, 0o644)
        except OSError as e:
            raise LogError(f"{self.path}: can't make the log: {e.strerror}") from e
        fcntl.flock(fd, fcntl.LOCK_EX)
        sync_folder(self.path.parent)
        return fd

    def now_us(self) -> int:
        """Return whole microseconds since the run began; never less than before."""
        self._last_us = max(round((self._clock() - self._began) * 1e6), self._last_us)
        return self._last_us

    def _ts(self, t_us: int) -> str:
        if self._date is None:
            return datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
        second, us = divmod(self._date_us + t_us, 1_000_000)
        if second != self._second[0]:
            now = self._date + timedelta(seconds=second)
            self._second = (second, now.isoformat(timespec="seconds")[:-6])
        return f"{self._second[1]}.{us:06}Z"

    def emit(
        self, body: Body, *, round: int | None = None, rank: int | None = None, since_us: int | None = None
    ) -> int:
        """Append one event; its line is never split over two writes.

        Args:
            body: the fields of its kind.
            round: the round it belongs to.
            rank: the worker it belongs to.
            since_us: for a finished span, when it began; sets its ``duration_s``.

        Returns:
            The event's time in microseconds.

        Raises:
            LogError: it could not be written; nor will be anything after it.
        """
        if self._broken is not None:
            raise LogError(self._broken)
        t_us = self.now_us()
        shape = _SHAPES[type(body)]
        envelope = (VERSION, self.run, self._seq, t_us / 1e6, self._ts(t_us), body.kind, round, rank)
        event: dict[str, Any] = dict(zip(shape.names, envelope + shape.values(body), strict=True))
        if self._secrets:
            event.update((name, masked_value(event[name], self._secrets)) for name in shape.free)
        if shape.span and since_us is not None:
            event["duration_s"] = (t_us - since_us) / 1e6
        self._append(self._line(event))
        self._seq += 1
        for listener in self.listeners:
            listener(event)
        return t_us

    async def flush(self) -> None:
        """Wait until all events so far are on the disk; the loop goes on meanwhile.

        Raises:
            LogError: the disk refused.
        """
        self._write_gathered()
        overflown, self._overflown = self._overflown, []
        try:
            await in_thread(self._sync, overflown)
        except OSError as e:
            self._broken = f"{self.path}: can't write the log to disk: {e.strerror}"
            raise LogError(self._broken) from e

    def _sync(self, overflown: list[Path]) -> None:
        for whole in overflown:
            with whole.open("rb") as file:
                os.fsync(file.fileno())
        if overflown:
            sync_folder(self.folder)
        os.fsync(self._fd)
        ours = os.fstat(self._fd)
        if ours.st_nlink == 0:
            raise OSError(errno.ENOENT, "it was deleted while it was being written")
        try:
            moved = not os.path.samestat(ours, self.path.stat())
        except FileNotFoundError:
            moved = True
        if moved:
            raise OSError(errno.ENOENT, "it was moved away while it was being written")

    def close(self) -> None:
        """Unlock and close the log; once more is fine.

        Raises:
            LogError: what was gathered could not be written.
        """
        if self._fd >= 0:
            try:
                if self._broken is None:
                    self._write_gathered()
            finally:
                os.close(self._fd)
                self._fd = -1

    def relative(self, path: Path) -> str:
        """Return a path the way events name it: relative to the log's folder, with ``/``."""
        return Path(os.path.relpath(path, self.path.parent)).as_posix()

    def _append(self, line: bytes) -> None:
        if self._gathered is None:
            self._write(line)
            return
        if len(self._gathered) + len(line) > _GATHERED_BYTES:
            self._write_gathered()
        self._gathered += line

    def _write_gathered(self) -> None:
        if self._gathered:
            lines, self._gathered = self._gathered, bytearray()
            self._write(lines)

    def _write(self, line: bytes | bytearray) -> None:
        try:
            written = os.write(self._fd, line)
        except OSError as e:
            self._broken = f"{self.path}: can't write the log: {e.strerror}"
            raise LogError(self._broken) from e
        if written != len(line):
            self._broken = (
                f"{self.path}: only {written} of {len(line)} bytes could be written; is the disk full?"
            )
            raise LogError(self._broken)

    def _line(self, event: dict[str, Any]) -> bytes:
        try:
            line = orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # lone surrogates of odd file names, integers beyond 64 bits
            event.update(_encodable(event))
            line = orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
        if len(line) <= MAX_LINE_BYTES:
            return line
        whole = self.folder / f"event-{event['seq']}.json"
        try:
            whole.write_bytes(line)
        except OSError as e:
            self._broken = f"{whole}: can't write an event that is too long for a line: {e.strerror}"
            raise LogError(self._broken) from e
        self._overflown.append(whole)
        event.update(_shortened(event), overflow_path=self.relative(whole))
        return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and abs(value) >= 2**63:
        return float(value) if abs(value) < 2**1023 else str(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value


def _shortened(event: dict[str, Any]) -> dict[str, Any]:
    """Return the long fields of an event, cut; the types stay."""
    cut: dict[str, Any] = {}
    for name, value in event.items():
        if isinstance(value, str) and len(value) > _SHORT:
            cut[name] = value[:_SHORT]
        elif isinstance(value, dict | list | tuple) and len(orjson.dumps(value)) > _SHORT:
            cut[name] = {} if isinstance(value, dict) else []
    return cut
