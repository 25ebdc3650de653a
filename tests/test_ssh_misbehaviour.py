"""Servers and shells that misbehave: each costs its worker, in one sentence, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio
import trio_asyncio
from badserver import Far, never, serving

from runner.errors import ConnectionLostError, TransferError, WorkerError
from runner.hosts import Ssh
from runner.output import Output
from runner.transports import ssh as transport
from runner.transports.ssh import Machines, SshConnection

NO_ANSWER = "its shell does not answer; does a start-up file take it over?"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_PATIENCE_S", 0.5)


async def nothing(connection: SshConnection) -> None:
    """Use a connection for nothing."""


Use = Callable[[SshConnection], Coroutine[Any, Any, object]]


async def with_worker(far: type[Far] | None, folder: Path, use: Use, *, refusing: bool = False) -> None:
    """Connect to the far side, use the connection, and let go of it."""
    ssh = Ssh(connect_s=20.0 if refusing else 1.0)
    async with serving(far, refusing=refusing) as host:
        connection = await Machines(ssh, [host], "run", folder / "host_keys").connect(0)
        connection._bulk_command = None  # one way is enough
        try:
            await use(connection)
        finally:
            await connection.close()


def told(
    far: type[Far] | None,
    folder: Path,
    use: Use = nothing,
    *,
    refusing: bool = False,
    kind: type[WorkerError] = ConnectionLostError,
) -> str:
    """Return what the user is told when a worker there is connected to, and used."""

    async def run() -> str:
        with pytest.raises(kind) as caught:
            await with_worker(far, folder, use, refusing=refusing)
        return str(caught.value)

    return str(trio_asyncio.run(run))


class Mute(Far):
    async def greet(self) -> None:
        await never()


class Deaf(Far):
    async def pong(self) -> None:
        await never()


@pytest.mark.parametrize("far", [None, Mute, Deaf], ids=["no session", "no greeting", "no pong"])
def test_a_login_that_leads_nowhere_is_given_up(tmp_path: Path, far: type[Far] | None):
    assert told(far, tmp_path) == NO_ANSWER


def test_a_server_that_gives_no_shell(tmp_path: Path):
    said = told(None, tmp_path, refusing=True)
    assert said.startswith("no shell could be started: ")
    assert "MaxSessions" in said


def saying(*lines: str) -> type[Far]:
    """Return a far side that greets so."""

    class Odd(Far):
        async def greet(self) -> None:
            for line in lines:
                self.say(line)
            await never()

    return Odd


@pytest.mark.parametrize(
    "line",
    ["ended", "ended x", "ended ²", "ended -1", "ended 9999999999999999999", "fact", "", "raw 5 0", "raw"],
)
def test_a_greeting_that_makes_no_sense(tmp_path: Path, line: str):
    assert told(saying(line), tmp_path) == f"its shell said {line!r} out of turn"


def test_a_worker_can_not_tell_what_nobody_asked_about_it(tmp_path: Path):
    assert told(saying("fact price_per_hour 0"), tmp_path).endswith("out of turn")


def test_control_characters_do_not_get_through(tmp_path: Path):
    said = told(saying("fa\x1b[2Jct \u202e"), tmp_path)
    assert "\x1b" not in said
    assert "\u202e" not in said


class Odd(Far):
    async def greet(self) -> None:
        facts = {
            "cpus": "9" * 40,
            "gpus": " 3 ",
            "clock_s": "-5",
            "system": "x" * 5000,
            "python": "\x1b]0;x\x07",
        }
        for name, value in facts.items():
            self.say(f"fact {name} {value}")
        await super().greet()


def test_odd_facts_are_left_out_or_cut(tmp_path: Path):
    async def use(connection: SshConnection) -> None:
        facts = dict(connection.facts)
        assert facts.pop("round_trip_s") > 0
        assert facts == {
            "cpus": 2,
            "gpus": 3,
            "hash": "sha256sum",
            "system": "x" * 100,
            "python": "]0;x",
        }

    trio_asyncio.run(with_worker, Odd, tmp_path, use)


class Flood(Far):
    """Says, without end, what nobody asked."""

    async def pong(self) -> None:
        await super().pong()
        while True:
            self.process.stdout.write((self.token + b" ended 0\n") * 1000)
            await self.process.stdout.drain()


def test_a_flood_of_messages_is_not_kept(tmp_path: Path):
    async def use(connection: SshConnection) -> None:
        shell = connection._shell
        assert shell is not None
        with trio.fail_after(10):
            while shell._failure is None:
                await trio.sleep(0.01)
        assert len(shell._messages) <= 1000
        await connection.pull("x", tmp_path / "x", max_bytes=10)

    assert told(Flood, tmp_path, use) == "its shell said 'ended 0' out of turn"


# -- pull


async def pull(connection: SshConnection, folder: Path) -> None:
    with trio.fail_after(30):
        await connection.pull("x", folder / "x", max_bytes=1_000_000)


def getting(answer: Callable[[Far], Coroutine[Any, Any, None]]) -> type[Far]:
    class Getting(Far):
        async def get(self, name: str) -> None:  # noqa: ARG002 - as Far has it
            await answer(self)

    return Getting


async def too_much(far: Far) -> None:
    far.say(f"raw {10**12} 0")
    while True:
        far.process.stdout.write(bytes(1 << 20))
        await far.process.stdout.drain()


async def from_elsewhere(far: Far) -> None:
    far.say("raw 5 3")


async def nonsense(far: Far) -> None:
    far.say("raw five 0")


async def half(far: Far) -> None:
    far.say("raw 1000 0")
    far.process.stdout.write(bytes(500))
    far.process.close()


async def less(far: Far) -> None:
    far.say("raw 1000 0")
    far.process.stdout.write(bytes(500))
    far.say(f"sum 1000 {'0' * 64}")


async def no_size(far: Far) -> None:
    far.say("raw 5 0")
    far.process.stdout.write(b"12345")
    far.say("sum")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (too_much, f"its shell would send {10**12} bytes, from byte 0 on, out of turn"),
        (from_elsewhere, "its shell would send 5 bytes, from byte 3 on, out of turn"),
        (nonsense, "its shell said 'raw five 0' out of turn"),
        (half, "the connection was lost"),
        (less, "the file was cut short: what sent it over there was ended"),
        (no_size, "its shell said 'sum' out of turn"),
    ],
)
def test_a_pull_that_goes_wrong(
    tmp_path: Path, answer: Callable[[Far], Coroutine[Any, Any, None]], said: str
):
    async def use(connection: SshConnection) -> None:
        await pull(connection, tmp_path)

    assert told(getting(answer), tmp_path, use) == said
    assert {path.name for path in tmp_path.iterdir()} <= {"ssh"}, "nothing of it stays"


async def wrong_hash(far: Far) -> None:
    far.say("raw 5 0")
    far.process.stdout.write(b"12345")
    far.say("sum 5 " + "0" * 64)


async def wrong_size(far: Far) -> None:
    far.say("raw 5 0")
    far.process.stdout.write(b"12345")
    far.say("sum 6 none")


async def no_hash(far: Far) -> None:
    far.say("raw 5 0")
    far.process.stdout.write(b"12345")
    far.say("sum 5 ")


@pytest.mark.parametrize("answer", [wrong_hash, wrong_size, no_hash])
def test_a_pull_that_arrives_otherwise_than_it_left(
    tmp_path: Path, answer: Callable[[Far], Coroutine[Any, Any, None]]
):
    async def use(connection: SshConnection) -> None:
        await pull(connection, tmp_path)

    said = told(getting(answer), tmp_path, use, kind=TransferError)
    assert said == "can't pull x: it changed on its way or while it was read"
    assert {path.name for path in tmp_path.iterdir()} <= {"ssh"}, "nothing of it stays"


async def stuck(far: Far) -> None:
    far.say("raw 1000 0")
    far.process.stdout.write(bytes(500))
    await never()


class NotReading(Far):
    async def put(self, name: str, size: int) -> None:  # noqa: ARG002 - as Far has it
        await never()


@pytest.mark.parametrize("far", [getting(stuck), NotReading], ids=["pull", "push"])
def test_a_transfer_that_stops_ends_at_its_deadline(tmp_path: Path, far: type[Far]):
    """Also where the other side answers all that keeps a connection alive, and does nothing else."""

    async def use(connection: SshConnection) -> None:
        (tmp_path / "source").write_bytes(bytes(40 << 20))
        with trio.move_on_after(0.5) as scope:
            if far is NotReading:
                await connection.push(tmp_path / "source", "x")
            else:
                await connection.pull("x", tmp_path / "x", max_bytes=1_000_000)
        assert scope.cancelled_caught
        assert trio.current_time() < scope.deadline + 8
        raise ConnectionLostError("as it should be")

    assert told(far, tmp_path, use) == "as it should be"
    assert {path.name for path in tmp_path.iterdir()} <= {"ssh", "source"}


def test_a_complaint_without_end_is_cut(tmp_path: Path):
    class Complaining(Far):
        async def put(self, name: str, size: int) -> None:  # noqa: ARG002 - as Far has it
            self.say("bad " + "\x1b[31mlong " * 10_000)
            await asyncio.sleep(0.1)
            self.process.close()

    async def use(connection: SshConnection) -> None:
        (tmp_path / "source").write_bytes(b"12345")
        await connection.push(tmp_path / "source", "x")

    said = told(Complaining, tmp_path, use, kind=TransferError)
    assert said.startswith(f"can't push {tmp_path / 'source'} to x: ")
    assert len(said) < len(str(tmp_path)) + 300
    assert "\x1b" not in said


def test_a_full_disk_is_told_as_one(tmp_path: Path):
    class Full(Far):
        async def put(self, name: str, size: int) -> None:  # noqa: ARG002 - as Far has it
            self.say("bad dd: error writing 'standard output': No space left on device")
            self.process.close()

    async def use(connection: SshConnection) -> None:
        (tmp_path / "source").write_bytes(b"12345")
        await connection.push(tmp_path / "source", "x")

    said = told(Full, tmp_path, use, kind=TransferError)
    assert "to x: the disk there is full; make room or" in said


# -- exec


def running(*lines: str, close: bool = True) -> type[Far]:
    class Running(Far):
        async def run(self) -> None:
            for line in lines:
                self.say(line)
            if close:
                self.process.close()

    return Running


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "the connection was lost"),
        (["pid 999999999"], "the connection was lost"),
        (["pid"], "its shell said 'pid' out of turn"),
        (["pid 1; rm -rf /"], "its shell said 'pid 1; rm -rf /' out of turn"),
        (["pid 999999999", "end"], "its shell said 'end' out of turn"),
        (["pid 999999999", "end " + "9" * 30], f"its shell said 'end {'9' * 30}' out of turn"),
        (["end 0"], "its shell said 'end 0' out of turn"),
    ],
)
def test_a_command_whose_end_makes_no_sense(tmp_path: Path, lines: list[str], said: str):
    async def use(connection: SshConnection) -> None:
        output = Output(tmp_path / "output", 1000, [])
        with trio.fail_after(30):
            await connection.exec(["true"], env={}, output=output)

    assert told(running(*lines), tmp_path, use) == said


def test_sizes_that_are_none_are_of_no_file(tmp_path: Path):
    async def use(connection: SshConnection) -> None:
        output = Output(tmp_path / "output", 1000, [])
        ended = await connection.exec(["true"], env={}, output=output, expect=["a", "b", "c"])
        assert ended.exit_code == 0
        assert ended.sizes_bytes == {"a": 5}

    far = running("pid 999999999", "end 0  5 ² " + "9" * 30 + " 7 8", close=False)
    trio_asyncio.run(with_worker, far, tmp_path, use)


def test_a_line_without_end_costs_no_memory(tmp_path: Path):
    class Endless(Far):
        async def run(self) -> None:
            self.say("pid 999999999")
            self.process.stdout.write(self.token + b" ")
            for _ in range(300):
                self.process.stdout.write(b"x" * 100_000)
                await self.process.stdout.drain()
            await never()

    async def use(connection: SshConnection) -> None:
        output = Output(tmp_path / "output", 1000, [])
        with trio.fail_after(30):
            await connection.exec(["true"], env={}, output=output)

    said = told(Endless, tmp_path, use)
    assert said.startswith("its shell said 'xxxx")
    assert len(said) < 200
