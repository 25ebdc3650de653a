"""A shell through OpenSSH's own client, for large files: it moves them several times as fast as Python can.

It logs in to the machine that the connection is to, by its address, and takes no other host key than the one
that was verified there. What it can't do (no client here, a passphrase, a jump host) goes the usual way.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import asyncssh
import trio

from runner.errors import ConnectionLostError
from runner.hosts import Host, Ssh
from runner.transports import sshscript
from runner.transports.local import MARK
from runner.transports.sshtalk import Shell

_CHUNK_BYTES = 1 << 20
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_COUNT_MAX = 30
"""Only for when nobody is left to end it: the connection beside it judges, also on a full link."""
_NEWER = "ForkAfterAuthentication,SessionType,StdinNull"
"""Settings that an older client doesn't know."""
_SETTINGS = {
    "IgnoreUnknown": _NEWER,
    "AddKeysToAgent": "no",
    "BatchMode": "yes",
    "CheckHostIP": "no",
    "Ciphers": "^aes128-gcm@openssh.com",
    "ClearAllForwardings": "yes",
    "Compression": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ForwardAgent": "no",
    "ForkAfterAuthentication": "no",
    "ForwardX11": "no",
    "GlobalKnownHostsFile": "none",
    "LogLevel": "ERROR",
    "PasswordAuthentication": "no",
    "PermitLocalCommand": "no",
    "ProxyCommand": "none",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "SessionType": "default",
    "StdinNull": "no",
    "StrictHostKeyChecking": "yes",
    "Tunnel": "no",
    "UpdateHostKeys": "no",
}
"""What may be in a user's configuration and must not hold here."""


def command(
    connection: asyncssh.SSHClientConnection, host: Host, ssh: Ssh, known_hosts: Path
) -> list[str] | None:
    """Return the command that logs in to where a connection is, or None where OpenSSH's client can't.

    Args:
        connection: verified and logged in.
        host: what the job says of the machine.
        ssh: what it says of all.
        known_hosts: the file to write its host key to.

    Raises:
        OSError: the file can't be written.
    """
    program = shutil.which("ssh")
    peer = connection.get_extra_info("peername")
    key = connection.get_server_host_key()
    direct = connection.get_extra_info("socket") is not None and host.jump is None
    odd = any(sign in str(known_hosts) for sign in '"$')  # the client would take them for its own
    if program is None or not direct or key is None or not peer or odd:
        return None
    known_hosts.parent.mkdir(mode=0o700, exist_ok=True)
    alias = f"roundlog-{known_hosts.name}"
    known_hosts.write_text(f"{alias} {key.export_public_key('openssh').decode().strip()}\n")
    settings = {
        **_SETTINGS,
        "ConnectTimeout": str(max(1, round(ssh.connect_s))),
        "HostKeyAlgorithms": ",".join(_algorithms(key.get_algorithm())),
        "HostKeyAlias": alias,
        "HostName": str(peer[0]).replace("%", "%%"),
        "Port": str(peer[1]),
        "ServerAliveCountMax": str(_COUNT_MAX),
        "ServerAliveInterval": str(max(1, round(ssh.lost_s))),
        "User": str(connection.get_extra_info("username")),
        "UserKnownHostsFile": '"{}"'.format(str(known_hosts).replace("%", "%%")),
    }
    given = []
    if host.key is not None:  # nothing else is offered, as on the connection
        given = ["-F", "none", "-i", str(Path(host.key).expanduser())]
        settings |= {"IdentitiesOnly": "yes", "IdentityAgent": "none"}
    words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    return [program, *given, *words, "-T", "--", host.host, "exec /bin/sh"]


def _algorithms(name: str) -> tuple[str, ...]:
    """Return the names under which a server shows a key of a kind."""
    return ("rsa-sha2-512", "rsa-sha2-256") if name == "ssh-rsa" else (name,)


class BulkShell(Shell):
    """A shell at the end of a process of OpenSSH's client."""

    def __init__(self, token: str, process: trio.Process, complaints: BinaryIO) -> None:
        super().__init__(token)
        self._process = process
        self._complaints = complaints

    @classmethod
    async def open(cls, words: list[str], mark: str, folder: str) -> BulkShell:
        """Start the client and feed the shell the script.

        Raises:
            ConnectionLostError: it can't be started.
        """
        token = secrets.token_hex(12)
        pipe = subprocess.PIPE
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        ours = f"{mark.rsplit('.', 2)[0]}.client"  # found by who goes on with the run, not by the far side
        env = {**os.environ, MARK: ours}
        try:
            process = await trio.lowlevel.open_process(
                words, stdin=pipe, stdout=pipe, stderr=complaints, start_new_session=True, env=env
            )
        except OSError as e:
            complaints.close()
            raise ConnectionLostError(f"ssh can't be started: {e.strerror}") from e
        shell = cls(token, process, complaints)
        for fd in (shell._stdin(), shell._stdout()):
            with suppress(OSError):  # more than the user may have
                _widen(fd)
        try:
            await shell.send(sshscript.script(token, mark, folder, sweep=False))
        except BaseException:
            await shell.reap()
            raise
        return shell

    def _stdin(self) -> int:
        return _fd(self._process.stdin)

    def _stdout(self) -> int:
        return _fd(self._process.stdout)

    async def send(self, data: bytes) -> None:
        """Send some bytes; what can't be sent any more the far side will tell, if it can."""
        if self.gone.is_set() or self._process.stdin is None:
            raise ConnectionLostError(self.last_words())
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._process.stdin.send_all(data)

    async def send_file(self, source: Path, offset: int, count: int) -> None:
        """Send a file from page cache to pipe, without a copy of ours."""
        with source.open("rb", buffering=0) as file:
            while count:
                await trio.lowlevel.checkpoint()
                try:
                    sent = os.sendfile(self._stdin(), file.fileno(), offset, min(count, _CHUNK_BYTES))
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._stdin())
                    continue
                except (BrokenPipeError, trio.ClosedResourceError):
                    return  # it says why
                if not sent:
                    sent = min(count, _CHUNK_BYTES)
                    await self.send(bytes(sent))
                offset += sent
                count -= sent

    async def end(self, patience_s: float) -> None:
        """Let it read to the end of its input and leave; after a time, end it."""
        with trio.CancelScope(shield=True):
            if self._process.stdin is not None:
                await self._process.stdin.aclose()
            with trio.move_on_after(patience_s):
                while not self.gone.is_set():
                    await self._more()
            await self.reap()

    def drop(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self.gone.set()

    async def reap(self) -> None:
        """End it at once, and leave nothing of it."""
        self.drop()
        with trio.CancelScope(shield=True):
            await self._close()

    async def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                await stream.aclose()
        await self._process.wait()
        self._complaints.close()

    async def _more(self) -> None:
        """Read and sort what it says."""
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - it has one from its start
        try:
            data = await stdout.receive_some(_CHUNK_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        if not data:
            self._hear_complaint()
            self.gone.set()
            return
        try:
            self._sort(bytes(data))
        except Exception as e:  # noqa: BLE001 - of the disk; for whoever asked
            self._failure = e

    def _hear_complaint(self) -> None:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._complaints.seek(0)
            self._complain(self._complaints.read(1 << 16))


def _fd(stream: object) -> int:
    """Return the descriptor of a pipe of ours."""
    assert isinstance(stream, trio.lowlevel.FdStream)  # noqa: S101 - what trio opens for a pipe
    return stream.fileno()


def _widen(fd: int) -> None:
    import fcntl  # noqa: PLC0415 - next to its one use

    fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
