"""Workers on other machines, over plain SSH: nothing of ours is there but a shell; knows nothing of rounds.

A worker has one connection and on it one shell, which takes a line a request and sends files and output
through the same channel, so that a round costs no shell start. Ending a command takes a second channel.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from random import Random

import asyncssh
import trio
import trio_asyncio
from trio_asyncio import aio_as_trio

from runner.arrays import sha256_of
from runner.connection import GONE, Ended, Mishap, Sink, Transferred, checked_name
from runner.errors import CommandError, ConnectionLostError, TransferError, WorkerError
from runner.hosts import Host, Ssh
from runner.job import Command
from runner.transports import sshbulk, sshscript
from runner.transports import sshrequests as requests
from runner.transports.sshbulk import BulkShell
from runner.transports.sshchannel import ChannelShell, lost
from runner.transports.sshlogin import HostKeys, login
from runner.transports.sshpulse import Pulse
from runner.transports.sshrequests import Greeting
from runner.transports.sshtalk import Shell, exit_code, feed, number, size_or_none

_AT_ONCE = 8
"""Logins to one server at a time: less than its MaxStartups."""
_PATIENCE_S = 4.0
"""How long the far side has to clean up; with what else is to be done an end takes less than 5 s."""
_NO_PATIENCE_S = 0.3
"""Likewise, once it has let that pass."""
_INLINE_BYTES = 1 << 20
_BULK_BYTES = 8_000_000
"""From this size on a file is worth a login of its own, once."""


@asynccontextmanager
async def session() -> AsyncIterator[None]:
    """Run asyncio's loop, which asyncssh needs, as a task of trio's."""
    async with trio_asyncio.open_loop():
        yield


class Machines:
    """What all connections of a run share: limits, accepted keys, hashes of files.

    Args:
        ssh: the job's settings.
        hosts: the workers' machines, by rank.
        run: the run's id; names the folders and marks the processes over there.
        keys: file of the host keys accepted on first sight.
    """

    def __init__(self, ssh: Ssh, hosts: Sequence[Host], run: str, keys: Path) -> None:
        self.ssh = ssh
        self.hosts = hosts
        self.run = run
        self.transfers = trio.CapacityLimiter(ssh.transfers)
        self._keys = HostKeys(keys)
        self.folder = keys.parent / "ssh"
        self._logins: dict[tuple[str, int | None], trio.CapacityLimiter] = {}
        self._hashes: dict[tuple[str, int, int, int], str] = {}
        self._hashing = trio.Lock()

    async def connect(self, rank: int) -> SshConnection:
        """Return a connection to a worker; what an earlier one left running there is ended.

        Raises:
            ConnectionLostError: the machine can't be reached or doesn't let us in.
            TransferError: the worker's folder can't be made.
        """
        connection = await self.login(rank)
        Pulse(connection, self.ssh.lost_s)
        try:
            made = SshConnection(connection, self, rank)
        except OSError as e:
            connection.abort()
            raise TransferError(f"can't keep its host key: {e.strerror}") from e
        try:
            await made.begin()
        except BaseException:
            await made.let_go()
            raise
        return made

    async def login(self, rank: int) -> asyncssh.SSHClientConnection:
        """Log in to a worker's machine."""
        host = self.hosts[rank]
        async with self.logins(host):
            return await login(host, self.ssh, self._keys, Random(f"{self.run} {rank}").random)

    def logins(self, host: Host) -> trio.CapacityLimiter:
        """Return what limits the logins to a server."""
        place = (host.jump or host.host, host.port)
        return self._logins.setdefault(place, trio.CapacityLimiter(_AT_ONCE))

    async def sha256(self, path: Path, status: os.stat_result) -> str:
        """Return a file's hash; it is computed once for all workers."""
        key = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
        async with self._hashing:
            if key not in self._hashes:
                if status.st_size > _INLINE_BYTES:
                    self._hashes[key] = await trio.to_thread.run_sync(sha256_of, path)
                else:
                    self._hashes[key] = sha256_of(path)
            return self._hashes[key]


class SshConnection:
    """A worker on another machine."""

    def __init__(self, connection: asyncssh.SSHClientConnection, machines: Machines, rank: int) -> None:
        self._connection, self._machines, self._rank = connection, machines, rank
        host = self._host = machines.hosts[rank]
        self._fed = 0  # commands with shells of their own, which no new shell may end
        self._mark = f"{machines.run}.{rank}."
        root = PurePosixPath(host.folder or ".roundlog")
        self._asked_folder = str(root / machines.run / str(rank))
        self._shell: ChannelShell | None = None
        self._bulk: BulkShell | None = None
        known_hosts = machines.folder / f"host-key-{rank}"
        self._bulk_command = sshbulk.command(connection, host, machines.ssh, known_hosts)
        self._lock = trio.Lock()
        self._closed = self._ended_all = False
        self._asks = False  # whether a file may be there already
        self._patience_s = _PATIENCE_S
        self.folder = ""
        self.address = f"ssh:{host.shown}"
        self.mishap: Mishap | None = None
        self.facts: Mapping[str, str | int | float] = {}
        self.ended = 0
        """Processes of an earlier connection that were ended."""

    async def begin(self) -> None:
        """Start the shell and learn about the machine."""
        began = time.time()
        async with self._lock:
            shell = await self._ready()
            sent = time.time()
            with self._in_time():
                await shell.ask("say pong")
                await shell.expect("pong")
            trip = time.time() - sent
        facts = dict(self.facts)
        clock = facts.pop("clock_s", None)
        if isinstance(clock, int):
            facts["clock_offset_s"] = round(clock - (began + sent) / 2)
        if self.ended:
            facts["left_running"] = self.ended
        self.facts = {**facts, "round_trip_s": round(trip, 6)}

    async def push(self, source: Path, target: str) -> Transferred:
        """Send a file; of a large one, what is there already, whole or cut off, is used."""
        name = checked_name(target)
        said = f"can't push {source} to {target}"
        try:
            status = source.stat()
            if not stat.S_ISREG(status.st_mode):
                raise TransferError(f"can't push {source}: it is no regular file")
            sha256 = await self._machines.sha256(source, status)
        except OSError as e:
            raise TransferError(f"{said}: {e.strerror}") from e
        size = status.st_size
        mode = "700" if status.st_mode & 0o100 else "600"
        file = requests.File(source, name, size, sha256, mode)
        try:
            async with self._transfer(size, said) as shell:
                there = await self._begins(shell, file)
                if there is None:
                    return Transferred(size, size)
                refused = await self._put(shell, file, there)
            if there and refused:  # what was there turned out to be of another file
                there = 0
                async with self._transfer(size, said) as shell:
                    refused = await self._put(shell, file, there)
        except trio.Cancelled:  # not cut off, but wanted no more
            if size >= sshscript.RESUMED_BYTES:
                await self._forget(name)
            raise
        if refused is not None:
            raise TransferError(f"can't push {source} to {name}: {refused}")
        return Transferred(size, there)

    async def _begins(self, shell: Shell, file: requests.File) -> int | None:
        """Return with which byte the rest of a file begins that isn't there; None if it is there whole.

        It is asked where that may save much, and where an earlier connection may have sent it: the files that
        are sent once come first, so the first of those that isn't there ends the asking.
        """
        if file.size < _BULK_BYTES and not self._asks:
            return 0
        there = await requests.there(shell, file)
        if there is not None:
            self._asks = False
        return there if file.size >= sshscript.RESUMED_BYTES or there is None else 0

    async def _put(self, shell: Shell, file: requests.File, there: int) -> str | None:
        refused = await requests.put(shell, file, there, hashed=self.facts.get("hash") != "none")
        if refused is not None:
            await self._give_up(shell)
        return refused

    @asynccontextmanager
    async def _transfer(self, size: int, said: str) -> AsyncIterator[Shell]:
        """Give a shell to move a file by; it is ended when the file does not arrive."""
        async with self._machines.transfers, self._lock:
            shell = await self._ready_for(size)
            try:
                yield shell
            except OSError as e:
                await self._give_up(shell)
                raise TransferError(f"{said}: {e.strerror}") from e
            except (ConnectionLostError, trio.Cancelled):
                await self._give_up(shell)
                raise

    async def pull(self, source: str, target: Path, *, max_bytes: int) -> Transferred:
        """Fetch a file; of a large one, what a cut transfer left is used."""
        name = checked_name(source)
        part = target.with_name(f".{target.name}.part")
        try:
            async with self._transfer(max_bytes, f"can't pull {source}") as shell:
                return await requests.get(shell, name, target, part, max_bytes)
        except trio.Cancelled:
            part.unlink(missing_ok=True)
            raise
        finally:
            with suppress(OSError):
                if part.stat().st_size < sshscript.RESUMED_BYTES:
                    part.unlink()

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
        """Run a command in a session of its own; one that is fed gets a shell of its own, too."""
        for name in (*remove, *expect):
            checked_name(name)
        line = sshscript.request_run(command, env, remove, expect, fed=stdin is not None)
        if stdin is None:
            async with self._lock:
                shell = await self._ready()
                return await self._run(shell, line, command, output, expect)
        shell = await self._open(sweep=False)
        self._fed += 1
        try:
            async with trio.open_nursery() as nursery:
                started = trio.Event()
                nursery.start_soon(feed, shell, stdin, started, _PATIENCE_S)
                ended = await self._run(shell, line, command, output, expect, started.set)
                nursery.cancel_scope.cancel()
            return ended
        finally:
            self._fed -= 1
            shell.drop()

    async def _run(  # noqa: PLR0917 - one caller inside, one with all of them
        self,
        shell: Shell,
        line: str,
        command: Command,
        output: Sink,
        expect: Sequence[str],
        started: Callable[[], object] | None = None,
    ) -> Ended:
        program = command if isinstance(command, str) else command[0]
        pid: int | None = None
        try:
            await shell.ask(line)
            shell.sink = output
            said = await shell.expect("pid", "nostart", "stuck")
            if said[0] == "nostart":
                raise CommandError(f"can't start {program!r}: {requests.unstartable(said[1:])}")
            if said[0] == "stuck":
                raise CommandError(f"can't remove a file of before: {requests.told(said[1:])}")
            pid = number(said, 1)
            if started is not None:
                started()
            said = await shell.expect("end")
        except ConnectionLostError:
            self._shell = None if shell is self._shell else self._shell
            raise
        except CommandError:
            raise
        except BaseException:
            await self._kill(shell, pid)
            raise
        finally:
            shell.sink = None
        code = exit_code(number(said, 1))
        found = zip(expect, map(size_or_none, said[3:]), strict=False)
        sizes = {name: size for name, size in found if size is not None}
        if code in {126, 127} and not isinstance(command, str):
            raise CommandError(f"can't start {program!r}: it can't be executed over there")
        return Ended(code, sizes)

    async def _kill(self, shell: Shell, pid: int | None) -> None:
        """End a command over a second channel, and wait for the shell to say so."""
        with self._cleaning(), suppress(WorkerError, ValueError):
            while pid is None:
                said = await shell.expect("pid", "nostart", "stuck")
                if said[0] != "pid":
                    return
                pid = number(said, 1)
            await self._aside(sshscript.request_kill(pid, self._mark))
            await shell.expect("end")
            return
        shell.drop()  # what it says would be of this command
        self._shell = None if shell is self._shell else self._shell

    async def _aside(self, script: bytes) -> None:
        """Run a script in a shell of its own; by a login of its own where the server allows no more shells.

        Raises:
            ConnectionLostError: it could not.
        """
        try:
            try:
                done = await aio_as_trio(self._connection.run)("exec /bin/sh", input=script, encoding=None)
            except asyncssh.ChannelOpenError:
                other = await self._machines.login(self._rank)
                try:
                    done = await aio_as_trio(other.run)("exec /bin/sh", input=script, encoding=None)
                finally:
                    other.abort()
        except (asyncssh.Error, OSError) as e:
            raise lost(e) from e
        if done.exit_status is None:
            raise ConnectionLostError("the connection was lost: nobody says whether it was done")

    async def close(self, *, done: bool = False) -> bool:
        """End every process that carries this worker's mark, and the connection."""
        if self._closed:
            return self._ended_all
        self._closed = True
        with trio.CancelScope(shield=True):
            with self._cleaning() as patience_s, suppress(WorkerError, OSError):
                if self._bulk is not None:
                    await self._bulk.reap()
                await self._end_all(patience_s, done=done)
                self._ended_all = True
            await self.let_go()
        return self._ended_all

    async def _end_all(self, patience_s: float, *, done: bool) -> None:
        """End every process of this worker; `done`: delete its folder, too.

        Raises:
            WorkerError: nobody can say that it was done.
        """
        folder = PurePosixPath(self._asked_folder)
        mine, of_run = (sshscript.quoted(str(path)) for path in (folder, folder.parent))
        shell = self._shell
        if self._connection.is_closed():
            raise ConnectionLostError("the connection is closed")
        if shell is None or shell.gone.is_set() or self._lock.locked():
            await self._aside(sshscript.request_kill(None, self._mark))
            return
        away = f"; cd; rm -rf {mine}; rmdir {of_run} 2>/dev/null" if done else ""
        await shell.ask(f'endall{away}; say ended "$n"')
        await shell.expect("ended")
        await shell.end(patience_s)

    async def let_go(self) -> None:
        """End the connection alone."""
        with self._cleaning():
            self._connection.close()
            await aio_as_trio(self._connection.wait_closed)()
        self._connection.abort()

    async def _ready(self) -> ChannelShell:
        """Return the shell, a new one if there is none."""
        if self._closed:
            raise ConnectionLostError("the connection is closed")
        if self._shell is not None and self._shell.cause:
            raise ConnectionLostError(self._shell.last_words())
        if self._shell is None or self._shell.gone.is_set():
            self._shell = await self._open(sweep=not self._fed)
        return self._shell

    async def _ready_for(self, size: int) -> Shell:
        """Return the shell that moves so many bytes fastest."""
        shell = await self._ready()
        if size < _BULK_BYTES:
            return shell
        if self._bulk is None and self._bulk_command is not None:
            try:
                self._bulk = await self._open_bulk(self._bulk_command)
            except ConnectionLostError:
                if self._shell is None or self._shell.gone.is_set():
                    raise
                self._bulk_command = None  # it won't let that client in: no reason to fail
        shell.companion = self._bulk
        return shell if self._bulk is None else self._bulk

    async def _open(self, *, sweep: bool) -> ChannelShell:
        """Start a shell; it says what there is over there. `sweep`: what is left running is ended."""
        with self._in_time():
            shell = await ChannelShell.open(self._connection, self._mark, self._asked_folder, sweep=sweep)
            greeting = await self._greeted(shell)
        self.folder, self.facts = greeting.folder, greeting.facts
        self._asks = greeting.old and sweep
        return shell

    async def _open_bulk(self, words: list[str]) -> BulkShell:
        async with self._machines.logins(self._host):
            shell = await BulkShell.open(words, self._mark, self._asked_folder)
            try:
                with self._in_time():
                    await self._greeted(shell)
            except BaseException:
                await shell.reap()
                raise
        return shell

    async def _greeted(self, shell: Shell) -> Greeting:
        """Return what a new shell says of itself and the machine."""
        try:
            greeting = await requests.greeted(shell, self._asked_folder)
            if self.folder and not greeting.old:
                raise ConnectionLostError(GONE)
        except BaseException:
            shell.drop()
            raise
        self.ended += greeting.ended
        return greeting

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Give the far side as long to answer as a connection may take."""
        with trio.move_on_after(self._machines.ssh.connect_s) as scope:
            yield
        if scope.cancelled_caught:
            raise ConnectionLostError("its shell does not answer; does a start-up file take it over?")

    @contextmanager
    def _cleaning(self) -> Iterator[float]:
        """Give the far side time to clean up, and say how many seconds; few once it has let them pass."""
        began, patience_s = trio.current_time(), self._patience_s
        with trio.CancelScope(shield=True, deadline=began + patience_s):
            yield patience_s
        if trio.current_time() - began >= patience_s:
            self._patience_s = _NO_PATIENCE_S

    async def _give_up(self, shell: Shell) -> None:
        """End a shell in the middle of a transfer; it clears away what isn't whole."""
        if shell is self._bulk:
            self._bulk = None
        else:
            self._shell = None
        with self._cleaning() as patience_s:
            await shell.end(patience_s)

    async def _forget(self, name: str) -> None:
        """Delete what is over there of a transfer that is not to be gone on with."""
        part = PurePosixPath(name).with_name(f".{PurePosixPath(name).name}.part")
        script = f"NL='\n'\ncd {sshscript.quoted(self.folder)} && rm -f {sshscript.path(str(part))}\nexit 0\n"
        with self._cleaning(), suppress(WorkerError):
            await self._aside(script.encode("utf-8", "surrogateescape"))
