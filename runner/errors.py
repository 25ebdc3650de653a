"""The errors of the runner; each says what was wrong, where, and what to do.

::

    RoundlogError
    +-- JobError         the job file is wrong; nothing was started (exit code 2)
    +-- RunError         the run can't begin or can't go on (exit code 1)
    |   +-- LogError     the log can't be written
    |   +-- ArrayError   a file of arrays can't be used
    +-- WorkerError      one worker failed; the round goes on without it
        +-- ConnectionLostError  the machine is gone
        +-- TransferError        a file could not travel
        |   +-- NoFileError      a worker has no such file that may be pulled
        +-- CommandError         a command could not be started
        +-- DeadlineError        it took longer than the job allows
        +-- RejectedError        its weights were not let in
"""

from __future__ import annotations

from dataclasses import dataclass


class RoundlogError(Exception):
    """Base of all errors that are for the user."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a job file."""

    key: str
    received: str
    allowed: str
    line: int | None = None

    def render(self, file: str) -> str:
        """Return ``file:line: key: received ...; allowed: ...``."""
        place = file if self.line is None else f"{file}:{self.line}"
        return f"{place}: {self.key}: {self.received}; allowed: {self.allowed}"


def plain(error: BaseException) -> str:
    """Return what an error says; one of the system's without its number, with the file where it has one."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


class JobError(RoundlogError):
    """The job file has mistakes; all of them are in ``problems``."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems
        super().__init__("\n".join(problem.render(file) for problem in problems))


class RunError(RoundlogError):
    """The run can't begin or can't go on."""


class LogError(RunError):
    """The log can't be written."""


class ArrayError(RunError):
    """A file of arrays can't be used; ``reason`` is a word of ``schemas.events.RejectReason``."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)


class WorkerError(RoundlogError):
    """One worker failed; ``reason`` is one word, the message tells the rest.

    ``injected`` names the fault where it was put in on purpose.
    """

    reason = "failed"
    injected: str | None = None


class ConnectionLostError(WorkerError):
    """The machine is gone."""

    reason = "lost"


class TransferError(WorkerError):
    """A file could not travel."""

    reason = "transfer"


class NoFileError(TransferError):
    """A worker has no such file that may be pulled: none, no regular one, or one that is too large."""

    def __init__(self, said: str, *, too_large: bool = False) -> None:
        self.too_large = too_large
        super().__init__(said)


class CommandError(WorkerError):
    """A command could not be started."""

    reason = "start"


class DeadlineError(WorkerError):
    """It took longer than the job allows."""

    reason = "timeout"


class RejectedError(WorkerError):
    """Its weights were not let in."""

    reason = "rejected"
