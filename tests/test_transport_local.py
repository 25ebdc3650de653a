"""The local transport: the conformance suite, and what only it does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from conformance import Folders, Transfers
from conformance_exec import Commands, printed
from conformance_resident import Residents

from runner.connection import Connection
from runner.errors import LogError, TransferError
from runner.output import Output
from runner.transports import local


class Local(Folders):
    """Workers in folders below one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, rank: int) -> Path:
        return self.root / str(rank)

    async def connect(self, rank: int = 0) -> Connection:
        mark = f"{self.root.parent.name}-{os.getpid()}.{rank}"  # a test of its name may run beside it
        return await local.connect(self.folder(rank), mark)


@pytest.fixture
def site(tmp_path: Path) -> Local:
    return Local(tmp_path / "workers")


class TestTransfers(Transfers):
    """Push and pull of the suite."""


class TestCommands(Commands):
    """Exec and close of the suite."""


class TestResidents(Residents):
    """Commands that stay, of the suite."""


@pytest.mark.trio
async def test_the_folder_is_private(site: Local):
    await site.connect()
    assert site.folder(0).stat().st_mode & 0o777 == 0o700


@pytest.mark.trio
async def test_a_folder_that_can_not_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TransferError, match="can't make the worker's folder"):
        await local.connect(tmp_path / "file" / "0", "t.0")


@pytest.mark.trio
@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
async def test_pull_copies_where_it_can_not_link(site: Local, tmp_path: Path, monkeypatch, number: int):
    connection = await site.connect()
    site.shell("echo weights > file; ln -s file link; mkfifo fifo")

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    done = await connection.pull("file", tmp_path / "target", max_bytes=8)
    assert done.size_bytes == 8
    assert (tmp_path / "target").read_text() == "weights\n"
    for name, said in (("link", "no regular file"), ("fifo", "no regular file"), ("missing", "can't pull")):
        with pytest.raises(TransferError, match=said):
            await connection.pull(name, tmp_path / "other", max_bytes=8)
    with pytest.raises(TransferError, match="more than 7"):
        await connection.pull("file", tmp_path / "other", max_bytes=7)
    assert not (tmp_path / "other").exists()


@pytest.mark.trio
@pytest.mark.parametrize("size", [0, 1000, 3 << 20])
async def test_what_is_there_is_not_copied_again(site: Local, tmp_path: Path, size: int):
    connection = await site.connect()
    source = tmp_path / "source"
    source.write_bytes(bytes(size))
    there = site.folder(0) / "data"
    assert (await connection.push(source, "data")).reused == 0
    first = there.stat().st_ino
    again = await connection.push(source, "data")
    assert (again.size_bytes, again.reused, there.stat().st_ino) == (size, size, first)
    source.chmod(0o700)
    assert (await connection.push(source, "data")).reused == 0, "it must be a program now"
    if size:
        with there.open("r+b") as file:
            file.seek(size - 1)
            file.write(b"x")
        assert (await connection.push(source, "data")).reused == 0
        assert there.read_bytes() == source.read_bytes()
    there.unlink()
    os.link(source, there)
    assert (await connection.push(source, "data")).reused == 0, "another name leads to it"


@pytest.mark.trio
async def test_push_without_copy_file_range(site: Local, tmp_path: Path, monkeypatch):
    def refuse(*_args: object, **_options: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    connection = await site.connect()
    source = tmp_path / "source"
    source.write_bytes(os.urandom(20_000_000))
    assert (await connection.push(source, "file")).size_bytes == 20_000_000
    assert site.read("file") == source.read_bytes()


@pytest.mark.trio
async def test_a_pushed_program_can_be_run_and_stays_private(site: Local, tmp_path: Path, output: Output):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    connection = await site.connect()
    await connection.push(program, "program")
    ended = await connection.exec(("./program",), env={}, output=output)
    assert ended.exit_code == 0
    assert (site.folder(0) / "program").stat().st_mode & 0o777 == 0o700


@pytest.mark.trio
async def test_the_placeholder_for_python(site: Local, output: Output):
    connection = await site.connect()
    await connection.exec(("{python}", "-c", "import numpy; print('fine')"), env={}, output=output)
    assert printed(output) == "fine\n"


@pytest.mark.trio
async def test_output_that_can_not_be_kept_ends_the_command(site: Local, output: Output):
    connection = await site.connect()
    output.close()
    with pytest.raises((LogError, ValueError, ExceptionGroup)):
        await connection.exec("echo $$ > pid; echo hello; exec sleep 600", env={}, output=output)
    assert not site.alive(int(site.read("pid")))


@pytest.mark.trio
async def test_without_pidfd(site: Local, output: Output, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    connection = await site.connect()
    ended = await connection.exec("sleep 600 & echo $!; exit 5", env={}, output=output)
    assert ended.exit_code == 5
