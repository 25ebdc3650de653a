"""A network of a test's own: hosts in network namespaces on one bridge, each with an address and an sshd.

The namespaces have no names: each is held open by a process that ends with the test, and so ends with it. The
coordinator of a test runs in the hub's, so that nothing here touches the network of the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pytest
from jobs import eventually
from sshd import Sshd, needs_sshd

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
HUB = "10.77.0.254"
NO_NAMESPACES = "no network namespaces here: that takes root, or CAP_NET_ADMIN and CAP_SYS_ADMIN"


def program(name: str) -> str | None:
    return shutil.which(name, path=PATH)


def may_make_namespaces() -> bool:
    """Say whether this machine lets us have what a network takes."""
    commands = "ip link add name v0 type veth peer name v1 && ip link add name b0 type bridge"
    words = ["unshare", "--net", "sh", "-c", commands]
    return subprocess.run(words, check=False, capture_output=True, env=environment()).returncode == 0


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": PATH}


def needs_network() -> None:
    """Skip where the machine has no namespaces; where nothing may be skipped, its programs must be there."""
    needs_sshd()
    missing = [name for name in ("ip", "tc", "unshare", "nsenter") if program(name) is None]
    if missing:
        if os.environ.get("ROUNDLOG_REQUIRE_ALL"):
            pytest.fail(f"not installed: {missing}, and nothing may be skipped")
        pytest.skip(f"not installed: {missing}")
    if not may_make_namespaces():
        pytest.skip(NO_NAMESPACES)


def _network_of(pid: int | str) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


class Space:
    """One network namespace."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.pid = self._holder.pid
        ours = _network_of("self")
        eventually(lambda: _network_of(self.pid) != ours, "the namespace", 5)
        self._id = _network_of(self.pid)
        self.enter = (str(program("nsenter")), f"--net=/proc/{self.pid}/ns/net", "--")
        self.run("ip link set lo up")

    def run(self, line: str) -> str:
        """Run a command in it; return what it prints."""
        words = [*self.enter, *line.split()]
        return subprocess.run(words, check=True, capture_output=True, text=True, env=environment()).stdout

    def pids(self) -> list[int]:
        """Return the processes in it, but not the one that holds it."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pid = int(entry.name)
                found += [pid] if _network_of(pid) == self._id and pid != self.pid else []
        return found

    def end(self) -> None:
        """End all processes in it, and it."""
        while pids := self.pids():  # what was started meanwhile, too
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._holder.kill()
        self._holder.communicate()


class HostSshd(Sshd):
    """A server in a namespace."""

    def __init__(self, folder: Path, address: str, settings: str) -> None:
        super().__init__(folder, settings, address, port=22)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        return self.log.count("Server listening") > self._listened


class Machine:
    """A host of the network: it has an address, a link that can be cut, an sshd, and can lose its power."""

    def __init__(self, network: Network, number: int, settings: str) -> None:
        self.network = network
        self.number = number
        self.address = f"10.77.0.{number + 1}"
        self.link = f"host{number}"
        self.sshd = HostSshd(network.folder / self.link, self.address, settings)
        self._boot()

    def _boot(self) -> None:
        self.space = Space()
        hub = self.network.hub
        hub.run(
            f"ip link add name {self.link} type veth peer name eth0 address 02:00:00:00:00:{self.number:02x} "
            f"netns {self.space.pid}"
        )
        hub.run(f"ip link set {self.link} master bridge up")
        self.space.run(f"ip address add {self.address}/24 dev eth0")
        self.space.run("ip link set eth0 up")
        self.sshd.within = self.space.enter
        self.sshd.start()

    def cut(self) -> None:
        """Take out the cable: what is under way is lost, and nobody is told."""
        self.network.hub.run(f"ip link set {self.link} down")

    def mend(self) -> None:
        self.network.hub.run(f"ip link set {self.link} up")

    def shape(self, rate: str, way: str = "to", burst: str = "4kb") -> None:
        """Limit what goes to it, or comes from it."""
        space, link = (self.network.hub, self.link) if way == "to" else (self.space, "eth0")
        space.run(f"tc qdisc replace dev {link} root tbf rate {rate} burst {burst} latency 100ms")

    def unshape(self) -> None:
        self.network.hub.run(f"tc qdisc del dev {self.link} root")

    def received_bytes(self) -> int:
        """Return how much was sent to it."""
        return self._counted("RX")

    def sent_bytes(self) -> int:
        """Return how much it sent."""
        return self._counted("TX")

    def _counted(self, way: str) -> int:
        shown = self.space.run("ip -s link show dev eth0")
        found = re.search(rf"{way}:.*\n *(\d+)", shown)
        assert found is not None, shown
        return int(found[1])

    def reboot(self) -> None:
        """Lose the power and come back: nothing of before is there, its TCP connections neither."""
        self.power_off()
        self._boot()

    def power_off(self) -> None:
        self.network.hub.run(f"ip link del {self.link}")
        self.sshd.stop()
        self.space.end()


class Network:
    """Hosts on a bridge.

    Args:
        folder: for the files of all hosts.
        hosts: how many.
        settings: lines of sshd_config of all.
    """

    def __init__(self, folder: Path, hosts: int, settings: str = "") -> None:
        needs_network()
        self.folder = folder
        self._stack = ExitStack()
        self.machines: list[Machine] = []
        try:
            self.hub = Space()
            self._stack.callback(self.hub.end)
            self.hub.run("ip link add name bridge type bridge")
            self.hub.run("ip link set bridge up")
            self.hub.run(f"ip address add {HUB}/24 dev bridge")
            for number in range(hosts):
                machine = Machine(self, number, settings)
                self.machines.append(machine)
                self._stack.callback(machine.power_off)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
