"""Keeps a training command running from round to round, so that its start-up is paid once.

The command reads a line of JSON from its standard input for each round: ``round``, the names of the files
``params`` and ``weights``, and ``remove``, names of files of earlier rounds. When the weights are written it
prints a line that begins with ``roundlog:`` and goes on with a JSON object: ``round``, and, if it likes,
``metrics``, an object of numbers, or ``error``, why there are no weights. All else it prints is output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from runner.connection import Connection, Ended, Mishap, Sink, Transferred
from runner.errors import CommandError, RunError, WorkerError
from runner.grouped import leaf
from runner.job import Command
from schemas.text import printable

MARK = b"roundlog:"
"""What an answer begins with."""
_BEGINS = re.compile(rb"(?m)^\n?" + MARK)
_MAY_BEGIN = re.compile(
    rb"(?m)^\n?" + b"".join(b"(?:%c" % letter for letter in MARK[:-1]) + b")?" * (len(MARK) - 1) + rb"\Z"
)
_MAX_ANSWER_BYTES = 1 << 20
_LEAVE_S = 1.0
"""How long a command has to end by itself when there are no more rounds."""


class Answers:
    """Takes what a resident command prints: answers for us, the rest for the output.

    An answer is a line of its own; an empty line just before it belongs to it. What may become one is held
    back. One that is longer than it may be is told as far as it has come, and its rest is output.
    """

    def __init__(self, answered: Callable[[bytes], object]) -> None:
        self._answered = answered
        self._answer: bytearray | None = None
        """One whose end has not come yet."""
        self._held = b""
        """What may become the beginning of one."""
        self._at_start = True
        self.output: Sink | None = None

    def write(self, chunk: bytes) -> None:
        """Take what was printed."""
        if self._answer is None:
            self._sort(self._held + chunk)
            return
        line, newline, rest = chunk.partition(b"\n")
        self._answer += line
        if newline or len(self._answer) > _MAX_ANSWER_BYTES:
            answer, self._answer = bytes(self._answer), None
            self._answered(answer)
            self._at_start = bool(newline)
            self._sort(rest)

    def end(self) -> None:
        """Take that the command has ended: what was held back is output."""
        last = self._held if self._answer is None else MARK + self._answer
        self._held, self._answer, self._at_start = b"", None, True
        self._pass_on(last)

    def _sort(self, data: bytes) -> None:
        """Tell the answers, pass on the rest."""
        text = data if self._at_start else b"x" + data  # of a line that is under way
        at = len(text) - len(data)
        some = MARK in data
        while some and (found := _BEGINS.search(text, at)):
            self._pass_on(text[at : found.start()])
            end = text.find(b"\n", found.end())
            if end < 0:
                self._held, self._answer = b"", bytearray()
                self.write(text[found.end() :])
                return
            self._answered(text[found.end() : end])
            at = end + 1
        maybe = _MAY_BEGIN.search(text, max(at, len(text) - len(MARK)))
        kept = len(text) if maybe is None else maybe.start()
        self._pass_on(text[at:kept])
        self._at_start = not kept or text.endswith(b"\n", 0, kept)
        self._held = text[kept:]

    def _pass_on(self, chunk: bytes) -> None:
        if chunk and self.output is not None:
            self.output.write(chunk)


@dataclass(slots=True)
class _Asked:
    """A question that waits for its answer."""

    question: bytes
    done: trio.Event
    answer: bytes | None = None


class Resident:
    """A connection whose ``exec`` asks a command that stays; the rest is the wrapped connection's.

    Args:
        connection: to the worker.
        nursery: where the command runs from round to round.
    """

    def __init__(self, connection: Connection, nursery: trio.Nursery) -> None:
        self._connection = connection
        self._nursery = nursery
        self._answers = Answers(self._take)
        self._requests: trio.MemorySendChannel[bytes] | None = None
        self._scope = trio.CancelScope()
        self._gone = trio.Event()
        self._ended: Ended | None = None
        self._error: Exception | None = None
        self._asked: _Asked | None = None

        self.address = connection.address
        self.folder = connection.folder
        self.facts = connection.facts

    @property
    def mishap(self) -> Mishap | None:
        """What befell the last call, as the wrapped connection has it."""
        return self._connection.mishap

    async def push(self, source: Path, target: str) -> Transferred:
        """Push by the wrapped connection."""
        return await self._connection.push(source, target)

    async def pull(self, source: str, target: Path, *, max_bytes: int) -> Transferred:
        """Pull by the wrapped connection."""
        return await self._connection.pull(source, target, max_bytes=max_bytes)

    async def exec(
        self,
        command: Command,
        *,
        env: Mapping[str, str],
        output: Sink,
        remove: Sequence[str] = (),
        expect: Sequence[str] = (),  # noqa: ARG002 - the answer says what was made
        stdin: trio.MemoryReceiveChannel[bytes] | None = None,  # noqa: ARG002 - the rounds go there
    ) -> Ended:
        """Ask for one round, starting the command if it doesn't run.

        Raises:
            CommandError: it could not be started, or its answer makes no sense.
            ConnectionLostError: the machine is gone.
        """
        self._answers.output = output
        if self._gone.is_set():  # since the last round
            await self._end(0)
        if self._requests is None:
            self._start(command, env)
        asked = self._asked = _Asked(_request(env, remove), trio.Event())
        struck = getattr(self._connection, "asked", None)
        ask = partial(self._ask, asked)
        try:
            ended: Ended = await (ask() if struck is None else struck(ask, lambda: not asked.done.is_set()))
        except BaseException:
            await self._end(0)  # it is in the middle of something nobody waits for
            raise
        finally:
            self._asked = None
        if asked.answer is None:
            if ended.exit_code == 0:
                raise CommandError("the resident command ended before it had answered")
            return ended
        number = int(env["ROUNDLOG_ROUND"])
        answer = _answer(asked.answer, number)
        if answer is None:
            await self._end(0)
            said = repr(printable(asked.answer[:400].decode("utf-8", "replace"))[:100])
            if len(asked.answer) > _MAX_ANSWER_BYTES:
                said = f"with more than {_MAX_ANSWER_BYTES} bytes"
            raise CommandError(f"the resident command was asked for round {number} and answered {said}")
        if answer.get("error") is not None:
            raise CommandError(f"the resident command said: {printable(str(answer['error']))[:200]}")
        return Ended(None, None, answer.get("metrics"))

    async def close(self, *, done: bool = False) -> bool:
        """Let the command end, then let go of the worker."""
        await self._end(_LEAVE_S)
        return await self._connection.close(done=done)

    async def _ask(self, asked: _Asked) -> Ended:
        """Ask, and wait for the answer or the command's end; return how it ended, if it did."""
        await trio.lowlevel.checkpoint_if_cancelled()  # then it need not begin
        assert self._requests is not None  # noqa: S101 - it has just been started
        try:
            self._requests.send_nowait(asked.question)
        except (trio.BrokenResourceError, trio.WouldBlock) as e:
            raise CommandError("the resident command no longer reads its standard input") from e
        await asked.done.wait()
        if asked.answer is not None:
            return Ended(None, None)
        if self._error is not None:
            raise self._error
        assert self._ended is not None  # noqa: S101 - how else did it end
        return self._ended

    def _start(self, command: Command, env: Mapping[str, str]) -> None:
        self._requests, requests = trio.open_memory_channel[bytes](1)
        self._scope, self._gone = trio.CancelScope(), trio.Event()
        self._ended = self._error = None
        lasting = {name: value for name, value in env.items() if name not in _OF_A_ROUND}
        self._nursery.start_soon(self._run, command, {**lasting, "ROUNDLOG_RESIDENT": "1"}, requests)

    async def _run(
        self, command: Command, env: Mapping[str, str], requests: trio.MemoryReceiveChannel[bytes]
    ) -> None:
        try:
            with self._scope:
                self._ended = await self._connection.exec(
                    command, env=env, output=self._answers, stdin=requests
                )
        except Exception as e:
            error = leaf(e)  # a connection may have had several tasks at it
            if not isinstance(error, WorkerError | RunError):
                raise
            self._error = error
        finally:
            with suppress(RunError):  # of what can't be kept, whoever runs the rounds hears
                self._answers.end()
            self._gone.set()
            if self._asked is not None:
                self._asked.done.set()

    async def _end(self, patience_s: float) -> None:
        """End the command: no more rounds for it, then time to leave, then by force."""
        if self._requests is None:
            return
        self._requests.close()
        self._requests = None
        with trio.CancelScope(shield=True):
            with trio.move_on_after(patience_s):
                await self._gone.wait()
            self._scope.cancel()
            await self._gone.wait()

    def _take(self, text: bytes) -> None:
        if self._asked is not None and not self._asked.done.is_set():
            self._asked.answer = text
            self._asked.done.set()


_OF_A_ROUND = {"ROUNDLOG_ROUND", "ROUNDLOG_PARAMS", "ROUNDLOG_WEIGHTS", "ROUNDLOG_METRICS"}


def _request(env: Mapping[str, str], remove: Sequence[str]) -> bytes:
    """Return the line that asks for a round."""
    request = {
        "round": int(env["ROUNDLOG_ROUND"]),
        "params": env["ROUNDLOG_PARAMS"],
        "weights": env["ROUNDLOG_WEIGHTS"],
        "remove": list(remove),
    }
    return json.dumps(request).encode() + b"\n"


def _answer(text: bytes, round: int) -> dict[str, Any] | None:
    """Return an answer, or None if it makes no sense or is too long."""
    if len(text) > _MAX_ANSWER_BYTES:
        return None
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    sane = isinstance(answer, dict) and type(answer.get("round")) is int and answer["round"] == round
    return answer if sane else None
