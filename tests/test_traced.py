"""The traced connection: an event for whatever happens, and the wrapped connection as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from jobs import read_log

from runner.connection import Ended, Transferred
from runner.errors import CommandError, ConnectionLostError, DeadlineError, TransferError
from runner.output import Output
from runner.traced import TracedConnection


class Scripted:
    """A connection that takes its time, then does what it was told."""

    address = "scripted:0"
    folder = "/over/there"
    mishap = None

    def __init__(self, outcome: object = None, takes_s: float = 0.0) -> None:
        self.outcome = outcome
        self.takes_s = takes_s
        self.calls: list[tuple[object, ...]] = []

    async def _do(self, *call: object) -> object:
        self.calls.append(call)
        await trio.sleep(self.takes_s)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    async def push(self, source, target):
        return await self._do("push", source, target)

    async def pull(self, source, target, *, max_bytes):
        return await self._do("pull", source, target, max_bytes)

    async def exec(self, command, *, env, output, remove=(), expect=()):
        output.write(b"epoch 1\n\x1b[31mloss 0.5\x1b[0m\n\n")
        return await self._do("exec", command, env, tuple(remove), tuple(expect))


async def call(connection: TracedConnection, kind: str, source: Path, output: Output) -> None:
    match kind:
        case "push":
            await connection.push(source, "params")
        case "pull":
            await connection.pull("weights", source, max_bytes=9)
        case "exec":
            await connection.exec("train", env={}, output=output)


@pytest.fixture
def traced(recorder_at):
    def make(connection: Scripted, **where) -> TracedConnection:
        recorder = recorder_at(clock=trio.current_time)
        return TracedConnection(connection, recorder, **{"round": 3, "rank": 2, "attempt": 4, **where})

    return make


@pytest.fixture
def log(tmp_path: Path):
    return lambda: read_log(tmp_path / "log.jsonl")


def assert_span(events: list[dict], took_s: float) -> None:
    """See that the two events are one span of one worker, exact to the microsecond."""
    began, ended = events
    for event in events:
        assert (event["round"], event["rank"], event["attempt"]) == (3, 2, 4)
    assert began["kind"] == ended["kind"] + "_start"
    assert round(ended["t"] * 1e6) - round(ended["duration_s"] * 1e6) == round(began["t"] * 1e6)
    assert ended["duration_s"] == pytest.approx(took_s, abs=2e-6)


@pytest.mark.trio
async def test_push(autojump_clock, traced, log, tmp_path):
    connection = Scripted(Transferred(10, reused=4), takes_s=1.2345678)
    assert await traced(connection).push(tmp_path, "params") == Transferred(10, 4)
    assert connection.calls == [("push", tmp_path, "params")]
    began, ended = log()
    assert_span([began, ended], 1.234568)
    assert (began["path"], ended["path"]) == ("params", "params")
    assert (ended["size_bytes"], ended["reused"], ended["error"]) == (10, 4, None)


@pytest.mark.trio
async def test_pull(autojump_clock, traced, log, tmp_path):
    connection = Scripted(Transferred(7), takes_s=0.5)
    assert await traced(connection).pull("weights", tmp_path, max_bytes=9) == Transferred(7)
    assert connection.calls == [("pull", "weights", tmp_path, 9)]
    began, ended = log()
    assert_span([began, ended], 0.5)
    assert (ended["path"], ended["size_bytes"], ended["reused"], ended["error"]) == ("weights", 7, 0, None)


@pytest.mark.parametrize(
    ("code", "error"), [(0, None), (3, "exit code 3"), (-9, "ended by signal 9"), (255, "exit code 255")]
)
@pytest.mark.trio
async def test_exec(autojump_clock, traced, log, output, code: int, error: str | None):  # noqa: PLR0917 - given by name
    connection = Scripted(Ended(code, {"weights": 5}), takes_s=60.0)
    command = ("python", "train.py", "a b", "it's")
    ended = await traced(connection).exec(
        command, env={"A": "1"}, output=output, remove=["x"], expect=["y"], timeout_s=61
    )
    assert ended == Ended(code, {"weights": 5})
    assert connection.calls == [("exec", command, {"A": "1"}, ("x",), ("y",))]
    began, event = log()
    assert_span([began, event], 60.0)
    assert began["command"] == "python train.py 'a b' 'it'\"'\"'s'"
    assert (event["exit_code"], event["error"]) == (code, error)
    assert event["output_tail"] == "[31mloss 0.5[0m"
    assert (event["output_bytes"], event["output_path"]) == (27, "output.log")


@pytest.mark.trio
async def test_a_shell_command_is_shown_as_it_is(autojump_clock, traced, log, output):
    await traced(Scripted(Ended(0))).exec("cd x && python train.py", env={}, output=output)
    assert log()[0]["command"] == "cd x && python train.py"


@pytest.mark.parametrize("kind", ["push", "pull", "exec"])
@pytest.mark.parametrize(
    "error",
    [
        TransferError("no space left"),
        ConnectionLostError("gone"),
        CommandError("no such program"),
        ValueError("a bug"),
        KeyError(),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.trio
async def test_an_exception_is_told_and_goes_through_unchanged(  # noqa: PLR0917 - given by name
    autojump_clock, traced, log, output, tmp_path, kind, error
):
    connection = traced(Scripted(error, takes_s=2.0))
    source = tmp_path / "source"
    source.write_bytes(b"12345")
    with pytest.raises(type(error)) as caught:
        await call(connection, kind, source, output)
    assert caught.value is error
    events = log()
    assert_span(events, 2.0)
    assert events[1]["error"] == (str(error) or "KeyError")
    known = {"push": ("size_bytes", 5), "pull": ("size_bytes", None), "exec": ("exit_code", None)}
    field, value = known[kind]
    assert events[1][field] == value


@pytest.mark.trio
async def test_a_push_of_a_missing_file_has_no_size(autojump_clock, traced, log, tmp_path):
    with pytest.raises(TransferError):
        await traced(Scripted(TransferError("missing"))).push(tmp_path / "missing", "params")
    assert log()[1]["size_bytes"] is None


@pytest.mark.parametrize("kind", ["push", "pull", "exec"])
@pytest.mark.trio
async def test_a_cancellation_is_told_and_goes_through(autojump_clock, traced, log, output, kind):
    source = Path("params")
    connection = traced(Scripted(takes_s=1000))
    with trio.move_on_after(1.5) as scope:
        await call(connection, kind, source, output)
    assert scope.cancelled_caught
    events = log()
    assert_span(events, 1.5)
    assert events[1]["error"] == "cancelled"


@pytest.mark.trio
async def test_a_command_that_takes_too_long(autojump_clock, traced, log, output):
    with pytest.raises(DeadlineError, match=r"timed out after 90.0 s"):
        await traced(Scripted(Ended(0), takes_s=1000)).exec("train", env={}, output=output, timeout_s=90)
    events = log()
    assert_span(events, 90)
    assert events[1]["error"] == "timed out after 90.0 s"
    assert events[1]["exit_code"] is None
    assert events[1]["output_tail"] == "[31mloss 0.5[0m"


@pytest.mark.trio
async def test_a_cancellation_from_outside_is_no_timeout(autojump_clock, traced, log, output):
    with trio.move_on_after(5) as scope:
        await traced(Scripted(takes_s=1000)).exec("train", env={}, output=output, timeout_s=90)
    assert scope.cancelled_caught
    assert log()[1]["error"] == "cancelled"


@pytest.mark.trio
async def test_spans_outside_rounds_and_of_the_coordinator(autojump_clock, traced, log, output):
    await traced(Scripted(Ended(0)), round=None, rank=None).exec("evaluate", env={}, output=output)
    assert [(e["round"], e["rank"]) for e in log()] == [(None, None)] * 2


@pytest.mark.trio
async def test_what_it_does_not_have_is_the_connection_s(autojump_clock, traced):
    connection = Scripted()
    connection.extra = object()
    wrapped = traced(connection)
    assert wrapped.folder == "/over/there"
    assert wrapped.extra is connection.extra
    with pytest.raises(AttributeError, match="nonsense"):
        _ = wrapped.nonsense


@pytest.mark.trio
async def test_error_text_of_several_failures_names_them(autojump_clock, traced, log, output):
    """A transport's nursery wraps what its tasks raise; the log must still say what it was."""
    group = ExceptionGroup("Exceptions from Trio nursery", [TransferError("no space left")])
    with pytest.raises(ExceptionGroup):
        await traced(Scripted(group)).exec("train", env={}, output=output)
    assert "no space left" in log()[1]["error"]
