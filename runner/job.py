"""What a job file says, as types; knows nothing about files on disk or how a job is run."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, structs

from runner import ownmethod
from runner.arrays import sha256_of
from runner.draws import Draw
from runner.hosts import Host, Price, Ssh
from runner.optimizers import DEFAULTS, Settings
from runner.recipe import METHODS, Recipe
from runner.simjob import DRAWN, Sim

Text = Annotated[str, Meta(min_length=1)]
Command = tuple[Text, ...] | Text
"""A list is run as it is, a string through ``/bin/sh -c``."""

PYTHON = "{python}"
"""As an element of a command's list: the Python that runs the runner."""
RANK = "{rank}"
"""In the name of a file to send: the worker's rank."""
SHARD = "{shard}"
"""Likewise: the part of the data it works on; its rank, or that of the worker a spare stands in for."""
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""In the environment of every command, unless the job says otherwise.

Python would keep what it prints to a pipe until there is much of it: a command that is busy would look idle,
and one that fails would print its last words before the others.
"""

COMMAND = "a list of strings (run as it is) or a string (run by /bin/sh -c), not empty"
ROUNDS_HERE = "{rounds}"
"""As a file to send: :data:`ROUNDS`."""
ROUNDS = Path(__file__).parent / "scaffold" / "roundlog_rounds.py"
"""Takes a Python script through its rounds."""
WIRE = Path(__file__).parent / "scaffold" / "roundlog_wire.py"
"""Stands before a training command whose files travel encoded."""

_TIMEOUT = "a number of seconds above 0, at most 31536000 (a year)"
_ENV = "a table of names to strings or numbers"
_METHOD = ", ".join(f'"{name}"' for name in METHODS) + ' or "module:function", your own beside the job file'
_WORKERS = "a whole number from 1 to 10000; where hosts are listed they are counted"
_PATTERNS = 'a list of patterns of array names, such as ["*.running_mean"]'
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Decay = Annotated[float, Meta(ge=0, lt=1)]


class FileEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or folder to send, and the name it gets on the worker."""

    source: Annotated[Text, Meta(description="a path, relative to the job file")]
    target: Annotated[Text | None, Meta(description="a relative path inside the worker's folder")] = None


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the initial params come about: a file, or a command that writes one."""

    file: Annotated[Text | None, Meta(description="path of an .npz, .npy or .safetensors file")] = None
    command: Annotated[Command | None, Meta(description=COMMAND)] = None
    format: Annotated[
        Literal["npz", "npy", "safetensors"],
        Meta(description='"npz", "npy" or "safetensors": what the command writes'),
    ] = "npz"
    timeout_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 600.0
    env: Annotated[dict[str, str | int | float], Meta(description=_ENV)] = {}
    keep: Annotated[
        int, Meta(ge=1, description="a whole number, 1 or more: how many of the newest params files stay")
    ] = 3


class Train(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The training command and what it needs on the worker."""

    command: Annotated[Command | None, Meta(description=COMMAND)] = None
    timeout_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 3600.0
    env: Annotated[dict[str, str | int | float], Meta(description=_ENV)] = {}
    secrets: Annotated[
        tuple[Text, ...], Meta(description="a list of names of environment variables that are set here")
    ] = ()
    files: Annotated[
        tuple[FileEntry | Text, ...],
        Meta(description='a list of paths ("{rank}" stands for the worker) or tables {source=, target=}'),
    ] = ()
    resident: Annotated[
        bool, Meta(description="true or false: whether the command stays and reads a line a round")
    ] = False
    retries: Annotated[
        int, Meta(ge=0, description="a whole number, 0 or more: tries after a failed command, in a round")
    ] = 0
    output_limit_bytes: Annotated[
        int, Meta(ge=0, le=2**53, description="a whole number up to 2**53: bytes of a command's output kept")
    ] = 1_000_000_000


class Evaluate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command run on the coordinator after each aggregate, in the job file's folder."""

    command: Annotated[Command, Meta(description=COMMAND)]
    timeout_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 600.0
    env: Annotated[dict[str, str | int | float], Meta(description=_ENV)] = {}


class Aggregate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights become the new params."""

    method: Annotated[str, Meta(description=_METHOD)] = "mean"
    weighting: Annotated[
        Literal["num_samples", "uniform"], Meta(description='"num_samples" (when given) or "uniform"')
    ] = "num_samples"
    include: Annotated[tuple[Text, ...], Meta(description=_PATTERNS)] = ("*",)
    exclude: Annotated[tuple[Text, ...], Meta(description=_PATTERNS)] = ()
    trim: Annotated[float | None, Meta(description="a share of the workers, 0.0 to below 0.5")] = None
    byzantine: Annotated[Natural | None, Meta(description="a whole number, 0 or more")] = None
    keep: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="a whole number, 1 or more")] = None
    clip_norm: Annotated[Positive | None, Meta(description="a number above 0")] = None
    outlier_k: Annotated[Positive | None, Meta(description="a number above 0")] = None
    optimizer: Annotated[
        Literal["fedavgm", "fedadagrad", "fedadam", "fedyogi", "diloco"] | None,
        Meta(description=", ".join(f'"{name}"' for name in DEFAULTS)),
    ] = None
    learning_rate: Annotated[Positive | None, Meta(description="a number above 0")] = None
    momentum: Annotated[Decay | None, Meta(description="a number from 0.0 to below 1.0")] = None
    beta_1: Annotated[Decay | None, Meta(description="a number from 0.0 to below 1.0")] = None
    beta_2: Annotated[Decay | None, Meta(description="a number from 0.0 to below 1.0")] = None
    tau: Annotated[Positive | None, Meta(description="a number above 0")] = None
    bias_correction: Annotated[bool | None, Meta(description="true or false")] = None

    @property
    def recipe(self) -> Recipe:
        """All of it, with the defaults of the optimizer filled in."""
        settings = DEFAULTS[self.optimizer or "fedavgm"]
        given = {name: getattr(self, name) for name in Settings.__slots__}
        return Recipe(
            method=self.method,
            trim=0.1 if self.trim is None else self.trim,
            byzantine=self.byzantine or 0,
            keep=self.keep,
            clip_norm=self.clip_norm,
            optimizer=self.optimizer,
            settings=replace(settings, **{name: value for name, value in given.items() if value is not None}),
            include=self.include,
            exclude=self.exclude,
        )


_ENCODING = '"plain", "bfloat16", "float16" or "int8"'


class Wire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How params and weights travel: as they are, or in fewer bytes."""

    push: Annotated[Literal["plain", "bfloat16", "float16", "int8"], Meta(description=_ENCODING)] = "plain"
    pull: Annotated[Literal["plain", "bfloat16", "float16", "int8"], Meta(description=_ENCODING)] = "plain"
    block: Annotated[
        Literal[32, 64, 128, 256, 512, 1024, 2048, 4096],
        Meta(description="32, 64, 128, ... or 4096: numbers that share a scale, with int8"),
    ] = 256
    zstd: Annotated[
        int, Meta(ge=0, le=19, description="a whole number from 0 (not compressed) to 19: level of zstd")
    ] = 0
    python: Annotated[
        Text, Meta(description="the program over there that decodes and encodes: a Python with NumPy")
    ] = PYTHON

    @property
    def active(self) -> bool:
        """Whether anything is encoded."""
        return self.encodes_params or self.pull != "plain"

    @property
    def encodes_params(self) -> bool:
        """Whether what is pushed is."""
        return self.push != "plain" or self.zstd > 0


class Deadlines(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long things may take, in seconds; the training command's own limit is ``train.timeout_s``."""

    push_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 3600.0
    pull_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 3600.0
    idle_s: Annotated[float | None, Meta(description=_TIMEOUT + ": a silent command is ended")] = None
    round_s: Annotated[
        float | Literal["auto"] | None,
        Meta(description=_TIMEOUT + ', or "auto": learnt from the rounds so far'),
    ] = None
    auto_k: Annotated[float, Meta(ge=0, le=1000, description="a number from 0 to 1000")] = 6.0
    auto_floor_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 30.0
    auto_ceiling_s: Annotated[float, Meta(gt=0, le=31_536_000, description=_TIMEOUT)] = 3600.0


_COUNT = "a whole number from 1 to the number of workers, or a share of them: above 0.0, at most 1.0"


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens when workers fail or straggle."""

    quorum: Annotated[int | float | None, Meta(description=_COUNT)] = None
    close_at: Annotated[int | float | None, Meta(description=_COUNT)] = None
    grace_s: Annotated[float, Meta(ge=0, le=31_536_000, description="a number of seconds, 0 or more")] = 0.0
    retries: Annotated[
        int, Meta(ge=0, le=100, description="a whole number from 0 to 100: tries after a broken transfer")
    ] = 2
    backoff_s: Annotated[
        float, Meta(ge=0, le=3600, description="a number of seconds from 0 to 3600: rest before a retry")
    ] = 1.0
    round_retries: Annotated[int, Meta(ge=0, description="a whole number, 0 or more")] = 2
    round_backoff_s: Annotated[
        float,
        Meta(
            ge=0, le=3600, description="a number of seconds from 0 to 3600: time for lost workers to return"
        ),
    ] = 30.0
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
    workers: Annotated[int, Meta(ge=1, le=10_000, description=_WORKERS)]
    spares: Annotated[
        int, Meta(ge=0, le=10_000, description="a whole number from 0 to 10000: idle until one is needed")
    ] = 0
    hosts: Annotated[Text | None, Meta(description="the path of a file of hosts, one a line")] = None
    worker: Annotated[tuple[Host, ...], Meta(description="[[worker]] tables, each with a host")] = ()
    ssh: Annotated[Ssh, Meta(description="a table")] = Ssh()
    price_per_hour: Annotated[
        Price | None,
        Meta(description="a number, 0 or more: what an hour of a worker costs, in your currency"),
    ] = None
    params: Annotated[Params, Meta(description="a table")] = Params()
    train: Annotated[Train, Meta(description="a table")] = Train()
    sim: Annotated[Sim | None, Meta(description="a table: workers are simulated")] = None
    evaluate: Annotated[Evaluate | None, Meta(description="a table")] = None
    aggregate: Annotated[Aggregate, Meta(description="a table")] = Aggregate()
    wire: Annotated[Wire, Meta(description="a table")] = Wire()
    deadlines: Annotated[Deadlines, Meta(description="a table")] = Deadlines()
    policy: Annotated[Policy, Meta(description="a table")] = Policy()

    def price(self, rank: int) -> float | None:
        """Return what an hour of a worker costs, in the user's currency; None where the job doesn't say."""
        own = self.worker[rank].price_per_hour if rank < len(self.worker) else None
        return self.price_per_hour if own is None else own

    @property
    def total_nodes(self) -> int:
        """Workers and spares."""
        return self.workers + self.spares

    @property
    def quorum(self) -> int:
        """The least number of survivors that makes a round count; 2 where the job doesn't say."""
        quorum = self.policy.quorum
        return min(2, self.workers) if quorum is None else count_of(quorum, self.workers)

    @property
    def close_at(self) -> int | None:
        """Deliveries after which stragglers get only the grace time; None: all are waited for."""
        at = self.policy.close_at
        return None if at is None else count_of(at, self.workers)


def count_of(given: float, workers: int) -> int:
    """Return a number of workers that is given as one (an int) or as a share of them (a float)."""
    return given if isinstance(given, int) else math.ceil(given * workers - 1e-9)


class LoadedJob(Struct, frozen=True, kw_only=True):
    """A valid job, the folder its relative paths start from, and the values of its secrets."""

    job: Job
    file: Path
    folder: Path
    secrets: dict[str, str]
    chaos: dict[str, Any] | None = None
    """What a chaos file said, for the log."""

    def machines(self) -> tuple[Host, ...]:
        """Return the listed hosts, the paths of their keys made absolute."""
        return tuple(
            host
            if host.key is None
            else structs.replace(host, key=str(self.folder / Path(host.key).expanduser()))
            for host in self.job.worker
        )

    def describe(self) -> dict[str, Any]:
        """Return the job as it goes into the log: resolved, secrets by name only."""
        described: dict[str, Any] = msgspec.to_builtins(self.job)
        for part in ("params", "train", "evaluate"):
            if described[part] is not None:
                described[part]["env"] = environment(described[part]["env"])
        described["policy"]["quorum"] = self.job.quorum
        described["folder"] = str(self.folder)
        described["file"] = str(self.file)
        if self.chaos is not None:
            described["chaos"] = self.chaos
        return described

    def sent_sha256(self) -> dict[str, str]:
        """Return the hash of each file that matters, by its path relative to the job file.

        Those are the files that are sent, those that are drawn from and, if there is one, that of the
        user's own method.

        Raises:
            OSError: one can't be read.
        """
        found: dict[str, str] = {}
        for rank in range(self.job.total_nodes):
            for source, _ in self.files_for(rank, rank % self.job.workers):
                ours = {ROUNDS: ROUNDS_HERE, WIRE: WIRE.name}
                name = ours.get(source) or os.path.relpath(source, self.folder)
                if name not in found:
                    found[name] = sha256_of(source)
        for key in DRAWN if self.job.sim is not None else ():
            draw = getattr(self.job.sim, key)
            if isinstance(draw, Draw) and draw.empirical is not None:
                found[draw.empirical] = sha256_of(self.folder / draw.empirical)
        own = ownmethod.source(self.job.aggregate.method, self.folder)
        if own is not None:
            found[os.path.relpath(own, self.folder)] = sha256_of(own)
        return found

    def files_for(self, rank: int, shard: int) -> list[tuple[Path, PurePosixPath]]:
        """Return what to send to a worker: (file here, name there), folders taken apart, sorted.

        Raises:
            OSError: a file or folder can't be read.
        """
        found: list[tuple[Path, PurePosixPath]] = []
        for entry in self.job.train.files:
            given = entry if isinstance(entry, FileEntry) else FileEntry(source=entry)
            source = ROUNDS if given.source == ROUNDS_HERE else self.folder / named(given.source, rank, shard)
            name = given.target or source.name
            target = PurePosixPath(named(name, rank, shard))
            if source.is_dir():
                found += [
                    (path, target / path.relative_to(source).as_posix())
                    for path in sorted(source.rglob("*"))
                    if path.is_file()
                ]
            else:
                found.append((source, target))
        if self.job.wire.active:
            found.append((WIRE, PurePosixPath(WIRE.name)))
        return found


def named(name: str, rank: int, shard: int) -> str:
    """Return a file's name for one worker."""
    return name.replace(RANK, str(rank)).replace(SHARD, str(shard))


def environment(given: dict[str, str | int | float]) -> dict[str, str]:
    """Return a job's ``env`` table as the strings a process gets."""
    return {name: str(value) for name, value in given.items()}
