"""A real OpenSSH server on loopback, with keys, configuration and home folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest
from jobs import eventually

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def needs_sshd() -> None:
    """Skip, or fail where nothing may be skipped, when there is no OpenSSH server."""
    if SSHD is None or shutil.which("ssh") is None:
        if os.environ.get("ROUNDLOG_REQUIRE_ALL"):
            pytest.fail("no sshd here, and nothing may be skipped")
        pytest.skip("no sshd here")


def make_key(path: Path) -> str:
    """Make a key without a passphrase; return the public one."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


class Sshd:
    """One server.

    Args:
        folder: for all its files; the far side's home is `folder`/home.
        settings: lines of sshd_config that come first.
        address: where it listens.
        port: likewise; a free one if none is given.
    """

    def __init__(
        self, folder: Path, settings: str = "", address: str = "127.0.0.1", port: int | None = None
    ) -> None:
        needs_sshd()
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.address = address
        self.home = folder / "home"
        self.home.mkdir()
        self.settings = settings
        self.host_key = make_key(folder / "host_key")
        self.key = folder / "client_key"
        (folder / "authorized_keys").write_text(make_key(self.key) + "\n")
        self.port = free_port(address) if port is None else port
        self.within: Sequence[str] = ()
        """Begins the command that starts it."""
        self.process: subprocess.Popen[bytes] | None = None
        self._listened = 0

    def start(self) -> Self:
        """Start it; the same port and keys as before."""
        config = self.folder / "sshd_config"
        config.write_text(
            f"""{self.settings}
ListenAddress {self.address}
Port {self.port}
HostKey {self.folder}/host_key
AuthorizedKeysFile {self.folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PermitRootLogin yes
LogLevel VERBOSE
SetEnv HOME={self.home}
"""
        )
        command = [*self.within, str(SSHD), "-D", "-e", "-f", str(config)]
        self._listened = self.log.count("Server listening")
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, stdout=log)
        eventually(self._answers, "sshd")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with socket.create_connection((self.address, self.port), 1) as made:
                return made.recv(4) == b"SSH-"
        except OSError:
            return False

    @property
    def log(self) -> str:
        if not (self.folder / "log").exists():
            return ""
        return (self.folder / "log").read_text(errors="replace")

    def pids(self) -> list[int]:
        """Return its processes: the server, then one or two a connection."""
        assert self.process is not None
        return descendants(self.process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and all its connections, not to what they run."""
        for pid in self.pids():
            with suppress(OSError):  # it has ended since
                if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                    os.kill(pid, number)

    def stop(self) -> None:
        """End the server and all its connections."""
        if self.process is not None:
            for pid in reversed(self.pids()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.kill()
            self.process.wait()
            self.process = None

    def known_hosts(self) -> str:
        return f"[{self.address}]:{self.port} {self.host_key}\n"


def descendants(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):  # a thread has children of its own
            with suppress(OSError):
                found += map(int, task.read_text().split())
    return found


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as made:
        made.bind((address, 0))
        return int(made.getsockname()[1])
