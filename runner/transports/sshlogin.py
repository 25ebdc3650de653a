"""Logs in to a machine over SSH, as ``ssh`` would, with every host key verified; knows nothing of workers."""

from __future__ import annotations

import os
import shlex
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
_PORT = 22
_KNOWN_HOSTS = "~/.ssh/known_hosts"


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
        self.known_hosts: Any = None
        """What known_hosts is for this machine, as asyncssh takes it."""
        self.changed = self.listed = False
        self.shown = self.place = ""
        self.port = _PORT

    def validate_host_public_key(
        self,
        host: str,
        addr: str,
        port: int,
        key: asyncssh.SSHKey,
    ) -> bool:
        """Accept the first key of a host, where that is asked for; no other."""
        self.shown = f"{key.get_algorithm()} {key.get_fingerprint()}"
        self.place, self.port = host, port
        if self._keys is None:
            self.listed = self.known_hosts is not None and bool(_listed(self.known_hosts, host, addr, port))
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
            wanted = host.host_key or ssh.host_key
            raise ConnectionLostError(_key_trouble(wanted, client)) from e
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
    elif wanted == "known":
        client.known_hosts = options["known_hosts"] = await _known_hosts(host)
    else:
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


async def _known_hosts(host: Host) -> Any:
    """Return the files of known host keys that the user's configuration names for a machine.

    Where it says there are none, asyncssh would let any machine in; nobody knows one then.
    """
    options = await aio_as_trio(asyncssh.SSHClientConnectionOptions.construct)(config=(), host=host.host)
    if options.known_hosts:
        return options.known_hosts
    path = Path(_KNOWN_HOSTS).expanduser()
    readable = options.known_hosts is not None and os.access(path, os.R_OK)
    return str(path) if readable else ([], [], [])


def _listed(known_hosts: Any, host: str, addr: str, port: int) -> list[asyncssh.SSHKey]:
    """Return the keys that known_hosts has of a machine."""
    try:
        found = asyncssh.match_known_hosts(known_hosts, host, addr, None if port == _PORT else port)
    except (OSError, ValueError):
        return []
    return list(found[0])


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


def _key_trouble(wanted: str, client: _Client) -> str:
    odd = "the machine was set up anew, or somebody is in between"
    if client.changed:
        return (
            f"its host key is another than before (now {client.shown}): {odd}; if it is right, remove its "
            "line from the file host_keys of the run"
        )
    if wanted != "known":
        return f"its host key ({client.shown}) is not the one that the job names with host_key: {odd}"
    place = client.place if client.port == _PORT else _place(client.place, client.port)
    if client.listed:
        return (
            f"its host key ({client.shown}) is another than known_hosts has of it: {odd}; only if you know "
            f"that it is right: ssh-keygen -R {shlex.quote(place)}, and add the new one"
        )
    port = "" if client.port == _PORT else f" -p {client.port}"
    folder = "" if Path(_KNOWN_HOSTS).expanduser().parent.is_dir() else "mkdir -m 700 ~/.ssh; "
    add = f"{folder}ssh-keyscan{port} {shlex.quote(client.place)} >> {_KNOWN_HOSTS}"
    return (
        f"its host key ({client.shown or 'unknown'}) is not in known_hosts yet; compare it with the "
        f'machine\'s and add it with: {add}, or say host_key = "accept-new"'
    )


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return (str(error).splitlines() or [type(error).__name__])[0]
