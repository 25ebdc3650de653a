"""Logins over SSH that can't succeed: what the user is told."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
import trio_asyncio

from runner.errors import ConnectionLostError
from runner.hosts import Host, Ssh
from runner.transports.sshlogin import HostKeys, login


def refused(host: Host, ssh: Ssh, folder: Path) -> str:
    """Log in where that can't work, and return what is told."""

    async def told() -> str:
        with pytest.raises(ConnectionLostError) as caught:
            await login(host, ssh, HostKeys(folder / "host_keys"), lambda: 0.0)
        return str(caught.value)

    return str(trio_asyncio.run(told))


def test_a_private_key_that_does_not_exist_is_named(tmp_path: Path) -> None:
    key = str(tmp_path / "absent")
    told = refused(Host(host="127.0.0.1", key=key), Ssh(), tmp_path)
    assert told == f"the private key {key} can't be read here: No such file or directory"


def test_a_private_key_with_a_passphrase_says_what_to_do(tmp_path: Path) -> None:
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    told = refused(Host(host="127.0.0.1", key=str(key)), Ssh(), tmp_path)
    assert told.startswith(f"the private key {key} has a passphrase")
    assert "ssh-agent" in told


def test_a_file_that_is_no_private_key_is_named(tmp_path: Path) -> None:
    key = tmp_path / "text"
    key.write_text("no key\n")
    told = refused(Host(host="127.0.0.1", key=str(key)), Ssh(), tmp_path)
    assert told.startswith(f"{key} can't be used as a private key: ")


def test_a_server_that_never_answers_the_login_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = Host(host="127.0.0.1", port=server.getsockname()[1], host_key="accept-new")
        told = refused(host, Ssh(connect_s=0.3), tmp_path)
    assert told == "no answer within 0.3 s; is it up, and the port right?"
