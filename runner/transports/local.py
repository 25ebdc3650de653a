"""Workers as processes of this machine, each in a folder of its own; knows nothing of rounds."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from runner.connection import GONE, Ended, Mishap, Sink, Transferred, checked_name
from runner.errors import CommandError, ConnectionLostError, NoFileError, TransferError
from runner.job import PYTHON, Command
from runner.recycle import open_part, set_aside
from runner.simtime import in_thread

_CHUNK_BYTES = 16 << 20
_LARGE_BYTES = 1 << 20
"""What takes so long to copy or delete that it is worth a thread."""
_PIPE_BYTES = 1 << 20
_TERM_S = 1.0
"""How long a cancelled command has between SIGTERM and SIGKILL."""
_PASSES = 10
_DRAIN_S = 1.0
"""How long output is waited for after the command has ended."""
MARK = "ROUNDLOG_PROCESS"
"""Environment variable that marks all processes of one worker: the run's id, a dot, and whose they are."""


async def connect(folder: Path, mark: str) -> LocalConnection:
    """Make a worker's folder, private to the user, and return the connection to it.

    Args:
        folder: where its commands run.
        mark: what its processes carry in their environment; no other worker's begins with it.

    Raises:
        TransferError: it can't be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise TransferError(f"can't make the worker's folder {folder}: {e.strerror}") from e
    for stale in folder.glob(".*.part"):  # of a coordinator that was killed
        _remove(stale)
    return LocalConnection(folder, mark)


class LocalConnection:
    """A worker on this machine."""

    def __init__(self, folder: Path, mark: str) -> None:
        self._mark = mark
        self._folder = folder.resolve()
        self._spare = self._folder / ".spare.part"
        self._pushed: set[str] = set()
        self._running: set[int] = set()
        self.folder = str(self._folder)
        self.address = f"local:{self._folder}"
        self.mishap: Mishap | None = None
        self.facts: Mapping[str, str | int | float] = {
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            "gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
            "memory_bytes": _memory_bytes(),
            "system": f"{platform.system()} {platform.machine()}",
        }

    async def push(self, source: Path, target: str) -> Transferred:
        """Copy a file into the folder, unless the same one is there."""
        path = self._folder / checked_name(target)
        if not self._folder.is_dir():
            raise ConnectionLostError(GONE)
        try:
            size = await _there(source, path)
            if size is None:
                size, reused = await _copy(source, path, self._spare), 0
            else:
                reused = size
            self._pushed.add(target)
            return Transferred(size, reused)
        except OSError as e:
            raise TransferError(f"can't push {source} to {target}: {e.strerror}") from e

    async def pull(self, source: str, target: Path, *, max_bytes: int) -> Transferred:
        """Link a file out of the folder, or copy it where a link can't be."""
        path, part = self._folder / checked_name(source), _part(target)
        try:
            part.unlink(missing_ok=True)
            try:
                os.link(path, part, follow_symlinks=False)
            except OSError as e:
                if e.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}:
                    raise
                size = _pullable(source, path, max_bytes)
                await _copy(path, target)
            else:
                size = _pullable(source, part, max_bytes)
                part.replace(target)
        except OSError as e:
            error = NoFileError if e.errno in {errno.ENOENT, errno.ENOTDIR} else TransferError
            raise error(f"can't pull {source}: {e.strerror}") from e
        finally:
            part.unlink(missing_ok=True)
        await trio.lowlevel.checkpoint()
        return Transferred(size)

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
        """Run a command in its own session, and end all that is left of it."""
        trash = self._cleared(remove)
        shell = isinstance(command, str)
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not shell:
            words = [sys.executable if word == PYTHON else word for word in words]
        try:
            with trio.CancelScope(shield=True):
                process = await trio.lowlevel.open_process(
                    words,
                    stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    env={**os.environ, **env, MARK: self._mark},
                    start_new_session=True,
                )
        except (OSError, ValueError) as e:
            _discard(trash)
            raise CommandError(f"can't start {words[0]!r}: {getattr(e, 'strerror', None) or e}") from e
        ended = False
        self._running.add(process.pid)
        try:
            await _to_end(process, output, trash, stdin)
            ended = True
        finally:
            self._running.discard(process.pid)
            with trio.CancelScope(shield=True):
                await _end(process, gently=not ended)
        return Ended(
            await process.wait(), {name: size for name in expect if (size := self._size(name)) is not None}
        )

    async def close(self, *, done: bool = False) -> bool:  # noqa: ARG002 - what is here stays
        """End every process that carries this worker's mark."""
        await in_thread(end_marked, self._mark)
        self._spare.unlink(missing_ok=True)
        return True

    def strike(self, number: signal.Signals) -> bool:
        """Send a signal to the groups of the commands that run; say whether there are any."""
        for pid in self._running:
            _kill_group(pid, number)
        return bool(self._running)

    def _cleared(self, names: Sequence[str]) -> list[Path]:
        """Take files away from their names at once; return those whose blocks are still to be freed.

        Raises:
            CommandError: one can't be removed.
        """
        trash: list[Path] = []
        for name in names:
            path = self._folder / checked_name(name)
            try:
                large = path.lstat().st_size > _LARGE_BYTES
                if name in self._pushed and set_aside(path, self._spare):
                    continue
                if large or path.is_dir():
                    trash.append(path.replace(self._folder / f".trash-{len(trash)}.part"))
                else:
                    path.unlink()
            except FileNotFoundError:
                continue
            except OSError as e:
                raise CommandError(f"can't remove {name} of before: {e.strerror}") from e
        return trash

    def _size(self, name: str) -> int | None:
        try:
            status = (self._folder / checked_name(name)).lstat()
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None


async def _to_end(
    process: trio.Process,
    output: Sink,
    trash: list[Path],
    stdin: trio.MemoryReceiveChannel[bytes] | None,
) -> None:
    """Take the output until the command itself has ended; children that live on don't count.

    Meanwhile `trash` is deleted, which can take long for large files.
    """
    stream = process.stdout
    assert isinstance(stream, trio.lowlevel.FdStream)  # noqa: S101 - a pipe was asked for
    with suppress(OSError, AttributeError):
        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, stream, output)
        feeding = trio.CancelScope()
        if stdin is not None and process.stdin is not None:
            nursery.start_soon(_feed, process.stdin, stdin, feeding)
        if trash:
            nursery.start_soon(trio.to_thread.run_sync, _discard, trash)
        await _ended(process)
        _kill_group(process.pid, signal.SIGKILL)
        feeding.cancel()
        nursery.cancel_scope.deadline = trio.current_time() + _DRAIN_S


async def _end(process: trio.Process, *, gently: bool) -> None:
    """End the process group and take the exit status; only then may its id become another's."""
    if gently:
        _kill_group(process.pid, signal.SIGTERM)
        with trio.move_on_after(_TERM_S):
            await _ended(process)
    _kill_group(process.pid, signal.SIGKILL)
    await process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            await stream.aclose()


async def _feed(
    stream: trio.abc.SendStream, source: trio.MemoryReceiveChannel[bytes], scope: trio.CancelScope
) -> None:
    async with stream, source:
        with scope, suppress(trio.BrokenResourceError):  # it reads no more
            async for chunk in source:
                await stream.send_all(chunk)


async def _drain(stream: trio.abc.ReceiveStream, output: Sink) -> None:
    while chunk := await stream.receive_some(_PIPE_BYTES):
        output.write(bytes(chunk))


async def _ended(process: trio.Process) -> None:
    """Wait for the end without taking the exit status, so that the group's id stays taken."""
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # no Linux, or ended and taken already
        await process.wait()
        return
    try:
        await trio.lowlevel.wait_readable(fd)
    finally:
        os.close(fd)


def _kill_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_marked(mark: str) -> int:
    """Kill every process that carries a mark or one that begins with it and a dot; return how many."""
    killed = 0
    for _ in range(_PASSES):  # what was being forked is found the next time
        found = _marked(mark)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        if not found:
            break
    return killed


def _marked(mark: str) -> list[int]:
    """Return the living processes, other than this one, whose environment has the mark."""
    exact = os.fsencode(f"{MARK}={mark}")
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        pid = int(entry.parent.name)
        with suppress(OSError):
            variables = entry.read_bytes().split(b"\0")
            if pid != os.getpid() and any(v == exact or v.startswith(exact + b".") for v in variables):
                found.append(pid)
    return found


def _pullable(name: str, path: Path, max_bytes: int) -> int:
    """Return the size of a regular file that is not too large.

    Raises:
        NoFileError: it is another thing or larger.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise NoFileError(f"can't pull {name}: it is no regular file")
    if status.st_size > max_bytes:
        said = f"can't pull {name}: it has {status.st_size} bytes, more than {max_bytes}"
        raise NoFileError(said, too_large=True)
    return status.st_size


def _discard(trash: list[Path]) -> None:
    for path in trash:
        with suppress(OSError):
            _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(path)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


async def _there(source: Path, target: Path) -> int | None:
    """Return the size of a file if another has the same content and may be used the same way."""
    try:
        ours, theirs = source.stat(), target.lstat()
    except OSError:
        return None
    modes = theirs.st_mode & 0o700 == ours.st_mode & 0o700 | 0o600
    regular = stat.S_ISREG(ours.st_mode) and stat.S_ISREG(theirs.st_mode)
    if not (regular and modes and theirs.st_nlink == 1 and ours.st_size == theirs.st_size):
        return None
    if ours.st_size <= _LARGE_BYTES:
        same = _same(source, target)
    else:
        same = await trio.to_thread.run_sync(_same, source, target)
    return ours.st_size if same else None


def _same(one: Path, two: Path) -> bool:
    with open(one, "rb", opener=_regular) as ours, open(two, "rb", opener=_regular) as theirs:
        while chunk := ours.read(_LARGE_BYTES):
            if theirs.read(_LARGE_BYTES) != chunk:
                return False
        return not theirs.read(1)


async def _copy(source: Path, target: Path, spare: Path | None = None) -> int:
    """Copy a file under another name or over a spare one, rename it when it is whole; return its size."""
    await trio.lowlevel.checkpoint()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = _part(target)
    out = -1
    try:
        with open(source, "rb", opener=_regular) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            mode = status.st_mode & 0o700 | 0o600
            out = open_part(part, spare, mode)
            copied = 0
            while copied < status.st_size:
                if status.st_size <= _LARGE_BYTES:
                    count = _some(file.fileno(), out, copied)
                else:
                    count = await trio.to_thread.run_sync(_some, file.fileno(), out, copied)
                if count == 0:
                    raise OSError(errno.EIO, "it shrank while it was copied")
                copied += count
        os.ftruncate(out, copied)
        os.fchmod(out, mode)
        part.replace(target)
    finally:
        if out >= 0:
            os.close(out)
        part.unlink(missing_ok=True)
    return copied


def _regular(path: str, flags: int) -> int:
    """Open without waiting at a fifo."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _some(source: int, target: int, offset: int) -> int:
    try:
        return os.copy_file_range(source, target, _CHUNK_BYTES, offset, offset)
    except (AttributeError, OSError):  # not here, or not between these file systems
        chunk = os.pread(source, _CHUNK_BYTES, offset)
        written = 0
        while written < len(chunk):
            written += os.pwrite(target, chunk[written:], offset + written)
        return len(chunk)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
