"""Logs in to a machine over SSH, as ``ssh`` would, with every host key verified; knows nothing of workers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncssh
import trio
from trio_asyncio import aio_as_trio

from runner.errors import ConnectionLostError
from runner.hosts import Host, Ssh, parse_target
from runner.transports.sshpulse import JUMP

_TRIES = 6
"""Logins to a server that turns some away when many come at once (MaxStartups)."""
_CIPHERS = "^aes128-gcm@openssh.com"
"""Asyncssh's safe ones, this one first: twice as fast as the usual chacha20-poly1305."""
_COUNT_MAX = 2


class HostKeys:
    """The host keys a run has accepted on first sight, in a file as known_hosts is.

    Args:
        path: the file; made when the first key is accepted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def known(self, name: str, port: int) -> list[asyncssh.SSHKey]:
        """Return the keys accepted of a host before."""
        try:
            lines = self._path.read_text().splitlines()
        except OSError:
            return []
        place = _place(name, port)
        return [
            asyncssh.import_public_key(key)
            for where, _, key in (line.partition(" ") for line in lines)
            if where == place
        ]

    def accept(self, name: str, port: int, key: asyncssh.SSHKey) -> None:
        """Keep a key."""
        line = f"{_place(name, port)} {key.export_public_key('openssh').decode().strip()}\n"
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(line)


def _place(name: str, port: int) -> str:
    return f"[{name}]:{port}"


class _Client(asyncssh.SSHClient):
    """Judges the keys of hosts that known_hosts doesn't decide about."""

    def __init__(self, keys: HostKeys | None) -> None:
        self._keys = keys
        self.changed = False
        self.shown = ""

    def validate_host_public_key(
        self,
        host: str,
        addr: str,  # noqa: ARG002 - asyncssh's signature
        port: int,
        key: asyncssh.SSHKey,
    ) -> bool:
        """Accept the first key of a host, where that is asked for; no other."""
        self.shown = f"{key.get_algorithm()} {key.get_fingerprint()}"
        if self._keys is None:
            return False
        known = self._keys.known(host, port)
        if not known:
            self._keys.accept(host, port, key)
            return True
        self.changed = key not in known
        return not self.changed


async def login(
    host: Host, ssh: Ssh, keys: HostKeys, random: Callable[[], float]
) -> asyncssh.SSHClientConnection:
    """Connect and authenticate, through a jump host where there is one.

    Args:
        host: where to.
        ssh: what holds for all.
        keys: what was accepted before.
        random: between 0 and 1, spreads the tries of many.

    Raises:
        ConnectionLostError: it can't be reached, its key isn't the one it should be, or it lets nobody in.
    """
    for number in range(1, _TRIES + 1):
        client = _Client(keys if (host.host_key or ssh.host_key) == "accept-new" else None)
        try:
            with trio.fail_after(ssh.connect_s):
                return await _once(host, ssh, keys, client, random)
        except trio.TooSlowError as e:
            raise ConnectionLostError(
                f"no answer within {ssh.connect_s:g} s; is it up, and the port right?"
            ) from e
        except (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError) as e:
            if number == _TRIES:
                raise ConnectionLostError(f"it hung up {_TRIES} times before the login: {_told(e)}") from e
        except asyncssh.HostKeyNotVerifiable as e:
            raise ConnectionLostError(_key_trouble(host, client)) from e
        except asyncssh.PermissionDenied as e:
            given = f"the key {host.key}" if host.key else "any key of the agent or ~/.ssh"
            raise ConnectionLostError(f"it doesn't accept {given} for this user: {_told(e)}") from e
        except asyncssh.DisconnectError as e:
            full = "; name the right key with key = ..." if "authentication failures" in str(e) else ""
            raise ConnectionLostError(_told(e) + full) from e
        except (asyncssh.Error, asyncssh.KeyImportError, asyncssh.KeyEncryptionError, ValueError) as e:
            raise ConnectionLostError(_told(e)) from e
        except socket.gaierror as e:
            raise ConnectionLostError(f"no address is known for {host.host!r}: {e.strerror}") from e
        except OSError as e:
            raise ConnectionLostError(_told(e)) from e
        await trio.sleep((0.1 + random()) * 0.3 * 2 ** (number - 1))
    raise AssertionError("unreachable")


async def _once(
    host: Host, ssh: Ssh, keys: HostKeys, client: _Client, random: Callable[[], float]
) -> asyncssh.SSHClientConnection:
    interval = ssh.lost_s / (_COUNT_MAX + 1)
    options: dict[str, Any] = {
        "encryption_algs": _CIPHERS,
        "keepalive_interval": interval,
        "keepalive_count_max": _COUNT_MAX,
        "password_auth": False,
        "kbdint_auth": False,
        "agent_forwarding": False,
        "client_factory": lambda: client,
    }
    if host.port is not None:
        options["port"] = host.port
    if host.user is not None:
        options["username"] = host.user
    if host.key is not None:
        options |= {"client_keys": _private_key(host.key), "agent_path": None}
    wanted = host.host_key or ssh.host_key
    if wanted == "accept-new":
        options["known_hosts"] = ([], [], [])
    elif wanted != "known":
        options["known_hosts"] = ([asyncssh.import_public_key(wanted)], [], [])
    if host.jump is None:
        direct: asyncssh.SSHClientConnection = await aio_as_trio(asyncssh.connect)(host.host, **options)
        return direct
    async with AsyncExitStack() as stack:
        through = Host(**parse_target(host.jump), host_key=host.host_key, key=host.key)  # type: ignore[arg-type] # text and a number
        try:
            jump = await login(through, ssh, keys, random)
        except ConnectionLostError as e:
            raise ConnectionLostError(f"by way of {host.jump}: {e}") from e
        stack.callback(jump.close)
        connection: asyncssh.SSHClientConnection
        connection = await aio_as_trio(asyncssh.connect)(host.host, tunnel=jump, **options)
        connection.set_extra_info(**{JUMP: jump})
        stack.pop_all()
        return connection


def _private_key(name: str) -> Any:
    path = Path(name).expanduser()
    try:
        return asyncssh.load_keypairs(str(path))
    except OSError as e:
        raise ConnectionLostError(f"the private key {name} can't be read here: {_told(e)}") from e
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, ValueError) as e:
        if "passphrase" in str(e).lower():
            raise ConnectionLostError(
                f"the private key {name} has a passphrase, and nobody can be asked for it; add it to "
                "ssh-agent and leave out key"
            ) from e
        raise ConnectionLostError(f"{name} can't be used as a private key: {_told(e)}") from e


def _key_trouble(host: Host, client: _Client) -> str:
    if client.changed:
        return (
            f"its host key is another than before (now {client.shown}): the machine was set up anew, or "
            "somebody is in between; if it is right, remove its line from the file host_keys of the run"
        )
    return (
        f"its host key ({client.shown or 'unknown'}) is not the one expected; compare it with the machine's "
        f"and add it with: ssh-keyscan{'' if host.port is None else f' -p {host.port}'} {host.host} >> "
        '~/.ssh/known_hosts, or say host_key = "accept-new"'
    )


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return (str(error).splitlines() or [type(error).__name__])[0]
