"""The SSH transport over a real OpenSSH server: the conformance suite, and what only it does."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio_asyncio
from conformance import MB, Folders, Transfers, made
from conformance_exec import Commands, printed
from conformance_resident import Residents, ResidentsFarAway
from jobs import eventually_async
from msgspec import structs
from sshd import Sshd, descendants

from runner.connection import Connection
from runner.errors import ConnectionLostError
from runner.hosts import Host, Ssh
from runner.output import Output
from runner.transports import sshbulk, sshscript
from runner.transports.ssh import Machines


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    made = Sshd(tmp_path_factory.mktemp("sshd"))
    try:
        yield made.start()
    finally:
        made.stop()


class Remote(Folders):
    """Workers in folders below one, behind a server."""

    def __init__(self, server: Sshd, root: Path, ssh: Ssh) -> None:
        self.server = server
        self.root = root
        self.run = f"{root.parent.name}-{os.getpid()}"  # a test of its name may run beside it
        host = Host(
            host=server.address,
            port=server.port,
            key=str(server.key),
            folder=str(root),
            host_key=server.host_key,
        )
        self.machines = Machines(ssh, [host] * 16, self.run, root.parent / "host_keys")
        self.made: list[Connection] = []

    def folder(self, rank: int) -> Path:
        return self.root / self.run / str(rank)

    async def connect(self, rank: int = 0) -> Connection:
        self.made.append(await self.machines.connect(rank))
        return self.made[-1]

    async def cut(self, connection: Connection) -> None:
        connection._connection.abort()


@pytest.fixture
async def site(server: Sshd, tmp_path: Path) -> AsyncIterator[Remote]:
    async with trio_asyncio.open_loop():
        made = Remote(server, tmp_path / "workers", Ssh())
        yield made
        for connection in made.made:
            await connection.close()


class TestTransfers(Transfers):
    """Push and pull of the suite."""


class TestCommands(Commands):
    """Exec and close of the suite."""


class TestResidents(Residents, ResidentsFarAway):
    """Commands that stay, of the suite."""


@pytest.mark.trio
async def test_what_a_lost_connection_left_running_is_ended_by_the_next(site: Remote, output: Output):
    first = await site.machines.connect(1)
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            with pytest.raises(ConnectionLostError):
                await first.exec("setsid sleep 600 & echo $$ > pid; sleep 600", env={}, output=output)

        nursery.start_soon(run)
        await eventually_async(lambda: "pid" in site.files(1) and site.read("pid", 1), "the start")
        first._connection.abort()
    pid = int(site.read("pid", 1))
    assert site.alive(pid)
    second = await site.machines.connect(1)
    assert second.facts["left_running"] >= 2
    assert not site.alive(pid)
    await first.close()
    await second.close()


@pytest.mark.trio
async def test_a_cut_transfer_of_a_large_file_is_gone_on_with(site: Remote, tmp_path: Path):
    source = made(tmp_path / "source", 150 * MB)
    first = await site.machines.connect(0)
    async with trio.open_nursery() as nursery:

        async def push() -> None:
            with pytest.raises(ConnectionLostError):
                await first.push(source, "file")

        nursery.start_soon(push)
        part = site.folder(0) / ".file.part"
        await eventually_async(lambda: part.exists() and part.stat().st_size > 80 * MB, "half of it")
        site.server.signal(signal.SIGSTOP)
        serving = site.server.pids()
        first._connection.abort()
    await first.close()
    assert site.files() <= {".file.part"}
    os.kill(serving[0], signal.SIGCONT)  # the listener alone: what the others hold is still to be written
    second = await site.machines.connect(0)
    for pid in serving[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    sent = await second.push(source, "file")
    assert sent.reused >= sshscript.RESUMED_BYTES
    assert site.read("file") == source.read_bytes()
    other = made(tmp_path / "other", 150 * MB, seed=3)
    (site.folder(0) / ".more.part").write_bytes(source.read_bytes()[: 100 * MB])
    sent = await second.push(other, "more")
    assert sent.reused == 0
    assert site.read("more") == other.read_bytes()
    await second.close()


@pytest.mark.trio
async def test_a_command_that_is_fed(site: Remote, output: Output):
    connection = await site.machines.connect(0)
    send, receive = trio.open_memory_channel[bytes](2)
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            script = "while read -r x; do echo got $x; done; echo end"
            ended = await connection.exec(script, env={}, output=output, stdin=receive)
            assert ended.exit_code == 0

        nursery.start_soon(run)
        await send.send(b"one\n")
        await eventually_async(lambda: output.path.exists() and "got one" in printed(output), "it")
        await connection.push(made(tmp := output.path.with_name("x"), 3), "file")
        await send.send(b"two\n")
        send.close()
    assert printed(output) == "got one\ngot two\nend\n"
    assert tmp.exists()
    await connection.close()


@pytest.mark.trio
async def test_more_shells_than_a_server_allows_at_a_time(site: Remote, tmp_path: Path):
    connection = await site.machines.connect(0)
    codes: list[int] = []
    fed = [trio.open_memory_channel[bytes](1) for _ in range(14)]

    async def run(number: int, stdin: trio.MemoryReceiveChannel[bytes]) -> None:
        with Output(tmp_path / f"output-{number}", 1000) as output:
            name = f"up-{number}"
            ended = await connection.exec(f": >{name}; cat", env={}, output=output, stdin=stdin)
        codes.append(ended.exit_code)

    async with trio.open_nursery() as nursery:
        for number, (_, receive) in enumerate(fed):
            nursery.start_soon(run, number, receive)
        await eventually_async(lambda: len(site.files()) >= 9, "as many as MaxSessions lets be")
        for send, _ in fed:
            send.close()
    assert codes == [0] * 14
    await connection.close()


@pytest.mark.trio
async def test_a_command_is_ended_where_one_shell_is_all(tmp_path: Path, output: Output):
    server = Sshd(tmp_path / "sshd", "MaxSessions 1").start()
    try:
        async with trio_asyncio.open_loop():
            site = Remote(server, tmp_path / "workers", Ssh())
            connection = await site.connect(0)
            async with trio.open_nursery() as nursery:

                async def run() -> None:
                    await connection.exec("echo $$ > pid; sleep 600", env={}, output=output)

                nursery.start_soon(run)
                await eventually_async(lambda: "pid" in site.files() and site.read("pid"), "the start")
                nursery.cancel_scope.cancel()
            assert not site.alive(int(site.read("pid")))
            ended = await connection.exec("exit 3", env={}, output=output)
            assert ended.exit_code == 3, "what it hears is of this command"
            await connection.close()
    finally:
        server.stop()


# -- large files, through OpenSSH's client


def clients() -> set[int]:
    """Return the clients that this process has started and not yet waited for."""
    found = set()
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it has ended since
            if b"HostKeyAlias=roundlog-" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


@pytest.mark.trio
async def test_a_large_file_goes_through_the_client_and_leaves_none(site: Remote, tmp_path: Path):
    source = made(tmp_path / "source", 10 * MB)
    connection = await site.machines.connect(0)
    await connection.push(source, "file")
    assert len(clients()) == 1
    await connection.pull("file", tmp_path / "back", max_bytes=10 * MB)
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    other = made(tmp_path / "other", 150 * MB, seed=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.push, other, "other")
        part = site.folder(0) / ".other.part"
        await eventually_async(lambda: part.exists() and part.stat().st_size > 10 * MB, "some of it")
        nursery.cancel_scope.cancel()
    assert clients() == set()
    assert site.files() == {"file"}
    await connection.push(made(tmp_path / "third", 10 * MB, seed=3), "file")
    await connection.close()
    assert clients() == set()


@pytest.mark.trio
async def test_what_is_there_already_is_not_sent_again(site: Remote, tmp_path: Path):
    source = made(tmp_path / "source", 10 * MB)
    first = await site.machines.connect(0)
    assert (await first.push(source, "file")).reused == 0
    await first.close()
    second = await site.machines.connect(0)
    sent = await second.push(source, "file")
    assert (sent.size_bytes, sent.reused) == (10 * MB, 10 * MB)
    (site.folder(0) / "file").write_bytes(b"x" + source.read_bytes()[1:])  # the same size
    assert (await second.push(source, "file")).reused == 0
    assert site.read("file") == source.read_bytes()
    await second.close()


@pytest.mark.trio
async def test_a_small_file_is_not_sent_again_to_a_worker_that_is_back(site: Remote, tmp_path: Path):
    source = made(tmp_path / "source", 1000)
    empty = made(tmp_path / "empty", 0)
    first = await site.machines.connect(0)
    for name in ("a", "folder/b", "c"):
        assert (await first.push(source, name)).reused == 0
    assert (await first.push(source, "a")).reused == 0, "where nobody was before, nothing is asked"
    await first.push(empty, "empty")
    await first.close()
    second = await site.machines.connect(0)
    assert (await second.push(source, "a")).reused == 1000
    assert (await second.push(source, "folder/b")).reused == 1000
    await second.push(empty, "empty")
    assert site.read("empty") == b""
    source.chmod(0o700)
    assert (await second.push(source, "c")).reused == 0, "it is to be executable now"
    assert os.access(site.folder(0) / "c", os.X_OK)
    assert (await second.push(source, "a")).reused == 0, "the first that isn't there ends the asking"
    await second.close()


@pytest.mark.trio
@pytest.mark.parametrize("trouble", ["absent", "turned away", "silent"])
async def test_without_the_client_it_goes_the_usual_way(
    site: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
):
    words = {"absent": None, "turned away": ["sh", "-c", "echo no >&2; exit 255"], "silent": ["sleep", "600"]}
    monkeypatch.setattr(sshbulk, "command", lambda *_: words[trouble])
    site.machines.ssh = Ssh(connect_s=2)
    source = made(tmp_path / "source", 10 * MB)
    connection = await site.machines.connect(0)
    await connection.push(source, "file")
    assert site.read("file") == source.read_bytes()
    await connection.close()


@pytest.mark.trio
async def test_when_the_client_may_not_be_used(site: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    connection = await site.machines.connect(0)
    inner, host = connection._connection, site.machines.hosts[0]
    words = sshbulk.command(inner, host, Ssh(), tmp_path / "50%" / "host-key")
    assert words is not None
    assert words[words.index("-F") + 1] == "none", "the user's configuration is not read beside a key"
    assert "IdentityAgent=none" in words
    assert f'UserKnownHostsFile="{tmp_path}/50%%/host-key"' in words
    (line,) = (tmp_path / "50%" / "host-key").read_text().splitlines()
    assert line.split()[1:3] == site.server.host_key.split()[:2]
    assert sshbulk.command(inner, structs.replace(host, jump="j"), Ssh(), tmp_path / "k" / "h") is None
    assert sshbulk.command(inner, host, Ssh(), tmp_path / "$HOME" / "h") is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert sshbulk.command(inner, host, Ssh(), tmp_path / "k" / "h") is None
    await connection.close()
