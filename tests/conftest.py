"""Fixtures that more than one file of tests uses; set-up code itself is in jobs.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import logs
import pytest
from sshd import Sshd

from analyze.cli import run
from runner.output import Output
from runner.recorder import Recorder

hypothesis.settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what the analyzer keeps between looks out of the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUNDLOG_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def recorder_at(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """Make recorders of ``log.jsonl``; options are the recorder's own."""
    with ExitStack() as stack:

        def make(**options: Any) -> Recorder:
            folder = tmp_path / "log"
            folder.mkdir(exist_ok=True)
            path = options.pop("path", tmp_path / "log.jsonl")
            return stack.enter_context(Recorder(path, "20260101-000000-t-0000", folder, **options))

        yield make


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    """Keep up to a gigabyte of what commands print."""
    with Output(tmp_path / "output.log", 1_000_000_000) as kept:
        yield kept


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    """Run an OpenSSH server on loopback."""
    made = Sshd(tmp_path / "sshd")
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def analyze(capsys, monkeypatch, tmp_path):
    """Return what runs a command of analyze in a folder of the test; it returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


@pytest.fixture
def demo(tmp_path):
    return logs.demo().write(tmp_path)
