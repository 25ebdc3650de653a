"""An SSH server that misbehaves on purpose, where OpenSSH's can't be made to; in the loop of the test."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncssh
from trio_asyncio import aio_as_trio

from runner.hosts import Host

LAST_LINE = b'do eval "$L"; done\n'


class Far:
    """What answers as the shell of a worker would; each test's own does one thing wrong.

    Args:
        process: the session.
    """

    content = bytes(range(256)) * 40

    def __init__(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        self.process = process
        self.token = b""

    async def serve(self) -> None:
        """Take the script, then a line a request."""
        script = await self.process.stdin.readuntil(LAST_LINE)
        found = re.search(rb"^T=(\w+)$", script, re.MULTILINE)
        assert found
        self.token = found[1]
        await self.greet()
        while line := await self.process.stdin.readline():
            words = line.decode().split()
            match words[0]:
                case "say":
                    await self.pong()
                case "there":
                    self.say("there 0")
                case "put":
                    await self.put(words[1], int(words[2]))
                case "get":
                    await self.get(words[1])
                case "endall":
                    self.say("ended 0")
                case _:
                    await self.run()
        self.process.exit(0)

    def say(self, text: str) -> None:
        self.process.stdout.write(self.token + f" {text}\n".encode())

    async def greet(self) -> None:
        for line in ("folder /far", "ended 0", "fact hash sha256sum", "fact cpus 2", "ready"):
            self.say(line)

    async def pong(self) -> None:
        self.say("pong")

    async def put(self, name: str, size: int) -> None:  # noqa: ARG002 - for what tests put in its place
        await self.process.stdin.readexactly(size)
        self.say("ok")

    async def get(self, name: str) -> None:  # noqa: ARG002 - likewise
        self.say(f"raw {len(self.content)} 0")
        self.process.stdout.write(self.content)
        self.say(f"sum {len(self.content)} none")

    async def run(self) -> None:
        self.say("pid 999999999")
        self.say("end 0")


async def never() -> None:
    """Wait for the end of the server."""
    await asyncio.Event().wait()


class _Open(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's signature
        return False


class _Silent(_Open):
    async def session_requested(self) -> Any:
        """Never say whether there may be one."""
        await never()


class _Refusing(_Open):
    def session_requested(self) -> bool:
        return False


@asynccontextmanager
async def serving(far: type[Far] | None, *, refusing: bool = False) -> AsyncIterator[Host]:
    """Run a server; yield what a job would say of it. Without a `far` side no session is ever opened."""
    key = asyncssh.generate_private_key("ssh-ed25519")

    async def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
        assert far is not None
        with suppress(asyncssh.Error, OSError, asyncio.IncompleteReadError):
            await far(process).serve()
        process.close()

    server = await aio_as_trio(asyncssh.listen)(
        "127.0.0.1",
        0,
        server_factory=_Open if far else _Refusing if refusing else _Silent,
        server_host_keys=[key],
        process_factory=handle if far else None,
        encoding=None,
    )
    try:
        public = key.export_public_key().decode().strip()
        yield Host(host="127.0.0.1", port=server.get_port(), user="somebody", host_key=public)
    finally:
        server.close()
