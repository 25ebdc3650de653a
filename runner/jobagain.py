"""The job of a run that is gone on with: as its log has it, and what of it may have changed since."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from msgspec.structs import replace

from runner import ownmethod
from runner.arrays import sha256_of
from runner.chaos import Chaos
from runner.errors import JobError, Problem
from runner.job import Job, LoadedJob
from runner.jobfile import load

_MAY_CHANGE = (
    "deadlines",
    "policy",
    "file",
    "sent_sha256",
    "chaos",
    "hosts",
    "worker",
    "ssh",
    "price_per_hour",
)
"""Parts of a job that may differ when a run is resumed; the log's are used, but for hosts and prices."""


def from_log(described: dict[str, Any], environ: Mapping[str, str] = os.environ) -> LoadedJob:
    """Return the job of a run that is gone on with, as the log has it.

    Args:
        described: the job of the log's run_start.
        environ: where the values of secrets are looked up.

    Raises:
        JobError: a secret is not set, or the job file or a file it sends was changed in a way that matters.
    """
    parts = {key: value for key, value in described.items() if key in Job.__struct_fields__}
    file = Path(described["file"])
    try:
        job = msgspec.convert(parts, Job)
    except msgspec.ValidationError as e:
        raise JobError(
            str(file), [Problem("log", f"its job can't be read: {e}", "a log of this version")]
        ) from e
    try:
        chaos = described.get("chaos")
        chaos = None if chaos is None else structs.asdict(msgspec.convert(chaos, Chaos))
    except msgspec.ValidationError as e:
        raise JobError(
            str(file), [Problem("log", f"its chaos can't be read: {e}", "a log of this version")]
        ) from e
    problems = [
        Problem("train.secrets", f"{name!r} is not set in this environment", f"export {name}=... first")
        for name in job.train.secrets
        if not environ.get(name)
    ]
    secrets = {name: environ.get(name, "") for name in job.train.secrets}
    loaded = LoadedJob(job=job, file=file, folder=Path(described["folder"]), secrets=secrets, chaos=chaos)
    problems += _changes(described, loaded, environ)
    loaded = _with_hosts_of_now(loaded, environ)
    if problems:
        raise JobError(str(file), problems)
    return loaded


def _with_hosts_of_now(loaded: LoadedJob, environ: Mapping[str, str]) -> LoadedJob:
    """Take prices and, if they are as many, hosts from the job file: machines may be back elsewhere."""
    try:
        now = load(loaded.file, environ).job
    except JobError:
        return loaded
    job = replace(loaded.job, price_per_hour=now.price_per_hour)
    if job.worker and len(now.worker) == len(job.worker):
        job = replace(job, worker=now.worker, ssh=now.ssh)
    return replace(loaded, job=job)


def _changes(described: dict[str, Any], loaded: LoadedJob, environ: Mapping[str, str]) -> list[Problem]:
    same = "what it was when the run began; else start a new run"
    try:
        now = load(loaded.file, environ).describe()
    except JobError:
        now = described  # not there or broken: the log has all it takes
    ours, logs = _leaves(msgspec.json.decode(msgspec.json.encode(now))), _leaves(described)  # as a log has it
    found = [
        Problem(key, f"received {ours.get(key)!r}, was {logs.get(key)!r}", same)
        for key in sorted(ours.keys() | logs.keys())
        if key.split(".")[0] not in _MAY_CHANGE and ours.get(key) != logs.get(key)
    ]
    try:
        sent = loaded.sent_sha256()
    except OSError as e:
        return [*found, Problem("train.files", f"{e.filename}: {e.strerror}", same)]
    before = described.get("sent_sha256", {})
    changed = {name for name in {*sent, *before} if sent.get(name) != before.get(name)}
    changed.discard(changed_method(described, loaded) or "")
    return found + [Problem("train.files", f"{name} was changed", same) for name in sorted(changed)]


def changed_method(described: dict[str, Any], loaded: LoadedJob) -> str | None:
    """Return the file of the job's own method, as the log names it, if it is another than when the run began.

    That is allowed, unless it is sent to the workers, too: a method that failed has to be mended.

    Raises:
        OSError: it can't be read.
    """
    path = ownmethod.source(loaded.job.aggregate.method, loaded.folder)
    if path is None:
        return None
    for rank in range(loaded.job.total_nodes):
        if any(source == path for source, _ in loaded.files_for(rank, rank % loaded.job.workers)):
            return None
    name = os.path.relpath(path, loaded.folder)
    same = described.get("sent_sha256", {}).get(name) == sha256_of(path)
    return None if same else name


def _leaves(described: dict[str, Any]) -> dict[str, Any]:
    """Return a job's values by their dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in described.items():
        if isinstance(value, dict) and value:
            leaves.update({f"{key}.{inner}": leaf for inner, leaf in _leaves(value).items()})
        else:
            leaves[key] = list(value) if isinstance(value, tuple) else value
    return leaves
