"""What every transport must do with files; with its two neighbours, the suite that all transports pass.

A transport's test file derives a class from ``Transfers`` here, ``Commands`` of conformance_exec.py and
``Residents`` of conformance_resident.py (a simulated one from ``Anywhere`` alone, since nothing is executed)
and gives it a fixture ``site``: a ``Site`` that makes connections and can look at the worker's side without
them.
"""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from jobs import alive

from runner.connection import Connection
from runner.errors import NoFileError, TransferError
from runner.output import Output

MB = 1_000_000
PLENTY = 1 << 40
ESCAPES = ["", ".", "..", "../x", "a/../x", "a/..", "/x", "/etc/x", "a//b", "a/", "./a", "a\0b", "a/./b"]


class Site(ABC):
    """Where a transport's workers are; the suite's eyes over there."""

    cut: Callable[[Connection], Awaitable[None]] | None = None
    """Breaks a connection, where it can be broken."""

    @abstractmethod
    async def connect(self, rank: int = 0) -> Connection:
        """Make a fresh connection to a worker."""

    @abstractmethod
    def files(self, rank: int = 0) -> set[str]:
        """Return the names of all that lies in the worker's folder, folders aside."""

    @abstractmethod
    def read(self, name: str, rank: int = 0) -> bytes:
        """Return what a file over there holds."""

    @abstractmethod
    def shell(self, script: str, rank: int = 0) -> str:
        """Run a script in the worker's folder, without the connection; return what it printed."""

    @abstractmethod
    def alive(self, pid: int) -> bool:
        """Say whether a process over there runs."""


class Folders(Site):
    """A site whose workers' folders lie on this machine."""

    @abstractmethod
    def folder(self, rank: int) -> Path:
        """Return a worker's folder."""

    def files(self, rank: int = 0) -> set[str]:
        folder = self.folder(rank)
        return {
            p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()
        }

    def read(self, name: str, rank: int = 0) -> bytes:
        return (self.folder(rank) / name).read_bytes()

    def shell(self, script: str, rank: int = 0) -> str:
        return subprocess.run(
            ["/bin/sh", "-ec", script], cwd=self.folder(rank), capture_output=True, text=True, check=True
        ).stdout

    def alive(self, pid: int) -> bool:
        return alive(pid)


def made(path: Path, size: int, seed: int = 0) -> Path:
    """Write a file of bytes that differ from block to block."""
    block = bytes((i * 7 + seed) % 251 for i in range(65_521))
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: min(len(block), size - start)])
    return path


class Anywhere:
    """What holds also where no bytes travel and no command runs: names, errors, cancelling, closing."""

    @pytest.mark.trio
    @pytest.mark.parametrize("name", ESCAPES)
    async def test_a_name_never_leaves_the_folder(self, site: Site, tmp_path: Path, name: str):
        connection = await site.connect()
        source = made(tmp_path / "source", 3)
        with pytest.raises(TransferError, match="inside the worker's folder"):
            await connection.push(source, name)
        with pytest.raises(TransferError, match="inside the worker's folder"):
            await connection.pull(name, tmp_path / "target", max_bytes=PLENTY)
        assert site.files() == set()
        assert not (tmp_path / "target").exists()

    @pytest.mark.trio
    async def test_push_of_what_is_no_file(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        os.mkfifo(tmp_path / "fifo")
        for source in (tmp_path / "missing", tmp_path, tmp_path / "fifo"):
            with trio.fail_after(10), pytest.raises(TransferError, match="can't push"):
                await connection.push(source, "file")
        assert site.files() == set()

    @pytest.mark.trio
    async def test_pull_of_what_is_not_there(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        with pytest.raises(NoFileError, match="can't pull"):
            await connection.pull("weights-0000.npy", tmp_path / "target", max_bytes=PLENTY)
        assert list(tmp_path.glob("*target*")) == []

    @pytest.mark.trio
    async def test_a_name_of_a_command_never_leaves_the_folder(self, site: Site, output: Output):
        connection = await site.connect()
        for names in ({"remove": ["../outer"]}, {"expect": ["/etc/passwd"]}):
            with pytest.raises(TransferError, match="inside the worker's folder"):
                await connection.exec("true", env={}, output=output, **names)

    @pytest.mark.trio
    async def test_cancelled_it_ends_and_works_on(self, site: Site, tmp_path: Path, output: Output):
        connection = await site.connect()
        large, small = made(tmp_path / "large", 64 * MB), made(tmp_path / "small", 10)

        async def push() -> None:
            await connection.push(large, "file")

        async def run() -> None:
            await connection.exec("sleep 600", env={}, output=output)

        for work in (push, run):
            for wait_s in (0, 0.01):
                with trio.fail_after(30), trio.move_on_after(wait_s):
                    await work()
        assert (await connection.push(small, "file")).size_bytes == 10
        assert (await connection.exec("true", env={}, output=output)).exit_code == 0

    @pytest.mark.trio
    async def test_workers_are_reached_at_once_and_again(self, site: Site, tmp_path: Path):
        source = made(tmp_path / "source", 1000)
        addresses: dict[int, tuple[str, str]] = {}

        async def run(rank: int) -> None:
            first = await site.connect(rank)
            assert (await first.push(source, "d/file")).size_bytes == 1000
            await first.close()
            second = await site.connect(rank)
            assert (first.address, first.folder) == (second.address, second.folder)
            addresses[rank] = second.address, second.folder
            await second.close()

        async with trio.open_nursery() as nursery:
            for rank in range(5):
                nursery.start_soon(run, rank)
        assert len({folder for _, folder in addresses.values()}) == 5

    @pytest.mark.trio
    async def test_close_twice(self, site: Site):
        connection = await site.connect()
        await connection.close()
        await connection.close()

    @pytest.mark.trio
    async def test_it_says_where_it_is(self, site: Site):
        connection = await site.connect()
        assert connection.address
        assert connection.folder.startswith("/")
        assert {type(value) for value in connection.facts.values()} <= {str, int, float}
        assert connection.facts["cpus"] >= 1


class Transfers(Anywhere):
    """Push and pull."""

    @pytest.mark.trio
    @pytest.mark.parametrize("size", [0, 1, 65_536, 40 * MB], ids=["empty", "byte", "block", "large"])
    async def test_a_file_comes_back_as_it_went(self, site: Site, tmp_path: Path, size: int):
        connection = await site.connect()
        source, target = made(tmp_path / "source", size), tmp_path / "target"
        sent = await connection.push(source, "file")
        back = await connection.pull("file", target, max_bytes=size)
        assert (sent.size_bytes, back.size_bytes) == (size, size)
        assert target.read_bytes() == source.read_bytes() == site.read("file")
        assert site.files() == {"file"}
        assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"source", "target"}
        await connection.close()

    @pytest.mark.trio
    async def test_folders_on_the_way_are_made(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        await connection.push(made(tmp_path / "source", 3), "a/b c/\u00fc.npz")
        assert site.files() == {"a/b c/\u00fc.npz"}
        await connection.pull("a/b c/\u00fc.npz", tmp_path / "target", max_bytes=3)
        assert (tmp_path / "target").stat().st_size == 3

    @pytest.mark.trio
    async def test_push_replaces_a_file_whole(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        await connection.push(made(tmp_path / "long", 5000), "file")
        site.shell("ln file kept")
        await connection.push(made(tmp_path / "short", 10, seed=1), "file")
        assert site.read("file") == (tmp_path / "short").read_bytes()
        assert site.read("kept") == (tmp_path / "long").read_bytes(), "written into, not replaced"

    @pytest.mark.trio
    async def test_the_same_size_in_the_same_second_is_still_sent(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        one, two = made(tmp_path / "one", 100), made(tmp_path / "two", 100, seed=9)
        for path in (one, two):
            os.utime(path, (1e9, 1e9))
            await connection.push(path, "file")
        assert site.read("file") == two.read_bytes()

    @pytest.mark.trio
    async def test_pull_replaces_a_file_whole(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        await connection.push(made(tmp_path / "source", 10), "file")
        target = made(tmp_path / "target", 5000, seed=3)
        kept = tmp_path / "kept"
        kept.hardlink_to(target)
        await connection.pull("file", target, max_bytes=10)
        assert target.stat().st_size == 10
        assert kept.stat().st_size == 5000

    @pytest.mark.trio
    async def test_cancelled_push_leaves_the_old_file_or_the_new_one(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        old, new = made(tmp_path / "old", 1000), made(tmp_path / "new", 256 * MB, seed=1)
        await connection.push(old, "file")
        for target in ("file", "fresh"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.push, new, target)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        assert site.files() <= {"file", "fresh"}, "a temporary file is left"
        assert int(site.shell("wc -c < file")) in {1000, 256 * MB}
        if "fresh" in site.files():
            assert int(site.shell("wc -c < fresh")) == 256 * MB
        await connection.push(old, "fresh")
        assert site.read("fresh") == old.read_bytes()

    @pytest.mark.trio
    async def test_cancelled_pull_leaves_a_whole_file_or_none(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        site.shell(f"head -c {256 * MB} /dev/zero > file")
        folder = tmp_path / "here"
        folder.mkdir()
        async with trio.open_nursery() as nursery:

            async def pull() -> None:
                await connection.pull("file", folder / "target", max_bytes=PLENTY)

            nursery.start_soon(pull)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert [path.stat().st_size for path in folder.iterdir() if path.name == "target"] in (
            [],
            [256 * MB],
        )
        assert {path.name for path in folder.iterdir()} <= {"target"}

    @pytest.mark.trio
    async def test_a_transfer_cancelled_before_it_begins_does_nothing(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        source = made(tmp_path / "source", 10)
        await connection.push(source, "there")
        with trio.CancelScope() as scope:
            scope.cancel()
            await connection.push(source, "file")
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            await connection.pull("there", tmp_path / "target", max_bytes=10)
        assert scope.cancelled_caught
        assert site.files() == {"there"}
        assert {path.name for path in tmp_path.iterdir() if path.is_file()} <= {"source", "target"}

    @pytest.mark.trio
    @pytest.mark.parametrize(
        ("script", "said"),
        [
            ("true", "thing"),
            ("mkdir thing", "no regular file"),
            ("echo x > other; ln -s other thing", "no regular file"),
            ("ln -s /dev/zero thing", "no regular file"),
            ("ln -s nowhere thing", "no regular file"),
            ("mkfifo thing", "no regular file"),
            ("head -c 1001 /dev/zero > thing", "1001 bytes, more than 1000"),
            ("truncate -s 1T thing", "more than 1000"),
        ],
        ids=["missing", "folder", "symlink", "device", "dangling", "fifo", "too large", "sparse"],
    )
    async def test_pull_takes_regular_files_of_a_fair_size_only(
        self, site: Site, tmp_path: Path, script: str, said: str
    ):
        connection = await site.connect()
        site.shell(script)
        here = tmp_path / "here"
        here.mkdir()
        with trio.fail_after(10), pytest.raises(NoFileError, match=said) as caught:
            await connection.pull("thing", here / "target", max_bytes=1000)
        assert caught.value.too_large == ("more than" in said or "1001" in said)
        assert list(here.iterdir()) == []

    @pytest.mark.trio
    async def test_push_where_something_is_in_the_way(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        source = made(tmp_path / "source", 3)
        site.shell("mkdir -p folder/inner; echo x > file")
        for target in ("folder", "file/below"):
            with pytest.raises(TransferError, match="can't push"):
                await connection.push(source, target)
        assert site.files() == {"file"}

    @pytest.mark.trio
    async def test_pull_into_a_folder_that_is_missing(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        await connection.push(made(tmp_path / "source", 3), "file")
        target = tmp_path / "missing" / "target"
        try:
            await connection.pull("file", target, max_bytes=3)
        except TransferError:
            assert not target.exists()
        else:
            assert target.stat().st_size == 3

    @pytest.mark.trio
    async def test_many_files_at_once(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        sources = [made(tmp_path / f"source-{i}", 100_000 + i, seed=i) for i in range(12)]
        async with trio.open_nursery() as nursery:
            for number, source in enumerate(sources):
                nursery.start_soon(connection.push, source, f"d/file-{number}")
        assert site.files() == {f"d/file-{i}" for i in range(12)}
        for number, source in enumerate(sources):
            assert site.read(f"d/file-{number}") == source.read_bytes()
