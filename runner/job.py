"""What a job file says, as types; knows nothing about files on disk or how a job is run."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

Text = Annotated[str, Meta(min_length=1)]
Command = tuple[Text, ...] | Text
"""A list is run as it is, a string through ``/bin/sh -c``."""

PYTHON = "{python}"
"""As an element of a command's list: the Python that runs the runner."""
RANK = "{rank}"
"""In the name of a file to send: the worker's rank."""

_COMMAND = "a list of strings (run as it is) or a string (run by /bin/sh -c), not empty"
_TIMEOUT = "a number of seconds above 0, at most 31536000 (a year)"
_ENV = "a table of names to strings or numbers"


class FileEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or folder to send, and the name it gets on the worker."""

    source: Annotated[Text, Meta(description="a path, relative to the job file")]
    target: Annotated[Text | None, Meta(description="a relative path inside the worker's folder")] = None


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the initial params come about: a file, or a command that writes one."""

    file: Annotated[Text | None, Meta(description="path of an .npz or .npy file")] = None
    command: Annotated[Command | None, Meta(description=_COMMAND)] = None
    format: Annotated[Literal["npz", "npy"], Meta(description='"npz" or "npy": what the command writes')] = (
        "npz"
    )
    timeout_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 600.0
    env: Annotated[dict[str, str | int | float], Meta(description=_ENV)] = {}
    keep: Annotated[
        int, Meta(ge=1, description="a whole number, 1 or more: how many of the newest params files stay")
    ] = 3


class Train(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The training command and what it needs on the worker."""

    command: Annotated[Command, Meta(description=_COMMAND)]
    timeout_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 3600.0
    env: Annotated[dict[str, str | int | float], Meta(description=_ENV)] = {}
    secrets: Annotated[
        tuple[Text, ...], Meta(description="a list of names of environment variables that are set here")
    ] = ()
    files: Annotated[
        tuple[FileEntry | Text, ...],
        Meta(description='a list of paths ("{rank}" stands for the worker) or tables {source=, target=}'),
    ] = ()
    output_limit_bytes: Annotated[
        int, Meta(ge=0, description="a whole number: how much of one command's output is kept")
    ] = 1_000_000_000


class Evaluate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command run on the coordinator after each aggregate, in the job file's folder."""

    command: Annotated[Command, Meta(description=_COMMAND)]
    timeout_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 600.0
    env: Annotated[dict[str, str | int | float], Meta(description=_ENV)] = {}


class Aggregate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights become the new params."""

    method: Annotated[Literal["mean"], Meta(description='"mean"')] = "mean"
    weighting: Annotated[
        Literal["num_samples", "uniform"], Meta(description='"num_samples" (when given) or "uniform"')
    ] = "num_samples"


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens when workers fail."""

    quorum: Annotated[int | None, Meta(description="a whole number from 1 to the number of workers")] = None
    round_retries: Annotated[int, Meta(ge=0, description="a whole number, 0 or more")] = 2
    max_failures: Annotated[int, Meta(ge=1, description="a whole number, 1 or more")] = 3
    on_loss: Annotated[Literal["continue", "stop"], Meta(description='"continue" or "stop"')] = "continue"


class Job(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole job file."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z",
            description="1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit",
        ),
    ]
    rounds: Annotated[int, Meta(ge=1, description="a whole number, 1 or more")]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="a whole number from 0 to 2**63 - 1")] = 0
    workers: Annotated[int, Meta(ge=1, le=10_000, description="a whole number from 1 to 10000")]
    params: Annotated[Params, Meta(description="a table")]
    train: Annotated[Train, Meta(description="a table")]
    evaluate: Annotated[Evaluate | None, Meta(description="a table")] = None
    aggregate: Annotated[Aggregate, Meta(description="a table")] = Aggregate()
    policy: Annotated[Policy, Meta(description="a table")] = Policy()

    @property
    def quorum(self) -> int:
        """The least number of survivors that makes a round count; 2 where the job doesn't say."""
        return min(2, self.workers) if self.policy.quorum is None else self.policy.quorum


class LoadedJob(Struct, frozen=True, kw_only=True):
    """A valid job, the folder its relative paths start from, and the values of its secrets."""

    job: Job
    file: Path
    folder: Path
    secrets: dict[str, str]

    def describe(self) -> dict[str, Any]:
        """Return the job as it goes into the log: resolved, secrets by name only."""
        described: dict[str, Any] = msgspec.to_builtins(self.job)
        described["policy"]["quorum"] = self.job.quorum
        described["folder"] = str(self.folder)
        return described

    def files_for(self, rank: int) -> list[tuple[Path, PurePosixPath]]:
        """Return what to send to a worker: (file here, name there), folders taken apart, sorted.

        Raises:
            OSError: a file or folder can't be read.
        """
        found: list[tuple[Path, PurePosixPath]] = []
        for entry in self.job.train.files:
            given = entry if isinstance(entry, FileEntry) else FileEntry(source=entry)
            source = self.folder / given.source.replace(RANK, str(rank))
            name = given.target or source.name
            target = PurePosixPath(name.replace(RANK, str(rank)))
            if source.is_dir():
                found += [
                    (path, target / path.relative_to(source).as_posix())
                    for path in sorted(source.rglob("*"))
                    if path.is_file()
                ]
            else:
                found.append((source, target))
        return found


def environment(given: dict[str, str | int | float]) -> dict[str, str]:
    """Return a job's ``env`` table as the strings a process gets."""
    return {name: str(value) for name, value in given.items()}
