"""Tells what a job would do, in words, without doing any of it."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from runner import ownmethod
from runner.arrays import ArrayFile
from runner.course import rounds_running
from runner.draws import told
from runner.errors import ArrayError, JobError, Problem
from runner.job import PYTHON, Command, Job, LoadedJob, Wire
from runner.optimizers import USES
from runner.robust import trimmed
from runner.simjob import Fault, Sim
from schemas.text import duration, size

_MAX_TRIM = 0.5


def describe(loaded: LoadedJob) -> list[tuple[str, str]]:
    """Return what would happen as (topic, text).

    Raises:
        JobError: the file of initial params, or the job's own method, can't be used.
    """
    job = loaded.job
    ownmethod.load(job.aggregate.method, loaded.folder, loaded.file)
    rows = [
        ("job", f"{job.name} ({loaded.file})"),
        ("rounds", f"{job.rounds}, seed {job.seed}"),
        ("workers", _workers(job)),
        ("params", _params(loaded)),
        ("train", f"{_train(job)}, at most {duration(job.train.timeout_s)} a round"),
        ("files", _files(loaded)),
    ]
    if job.sim is not None:
        rows += [("sim", text) for text in simulated(job.sim)]
    if job.train.env:
        rows.append(("env", ", ".join(f"{name}={value}" for name, value in job.train.env.items())))
    if job.train.secrets:
        rows.append(("secrets", ", ".join(job.train.secrets) + " (their values are not shown or logged)"))
    rows.append(("aggregate", _aggregate(loaded)))
    if job.wire.active:
        rows.append(("wire", _wire(job.wire)))
    if job.evaluate is not None:
        limit = duration(job.evaluate.timeout_s)
        rows.append(("evaluate", f"{_command(job.evaluate.command)} here after each round, at most {limit}"))
    rows.append(("policy", policy(loaded)))
    rows += [("warning", warning) for warning in warnings(loaded)]
    return rows


def _workers(job: Job) -> str:
    if job.sim is not None:
        return f"{job.workers} simulated, in simulated time"
    if job.worker:
        hosts = [host.shown for host in job.worker]
        shown = ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
        return f"{job.workers} over SSH: {shown}"
    return f"{job.workers} local processes, each in a folder of its own"


def _train(job: Job) -> str:
    if job.sim is not None:
        return f"simulated, {told(job.sim.train_s)} s times slowness {told(job.sim.slowness)}"
    return _command(job.train.command or "")


def simulated(sim: Sim) -> list[str]:
    """Say what the simulated workers are like, a line a thing."""
    lines = [
        f"params and weights are taken for {size(sim.params_bytes)}",
        f"each worker's line: {told(sim.line_bytes_per_s)} bytes/s, latency {told(sim.latency_s)} s",
    ]
    for name, speed in (("pushes", sim.uplink_bytes_per_s), ("pulls", sim.downlink_bytes_per_s)):
        if speed is not None:
            lines.append(f"all {name} share {size(speed)}/s of the coordinator")
    return lines + [f"fault: {_fault(fault)}" for fault in sim.faults]


def _fault(fault: Fault) -> str:
    who = "any worker" if fault.ranks is None else f"workers {', '.join(map(str, fault.ranks))}"
    when = "any round" if fault.rounds is None else f"rounds {', '.join(map(str, fault.rounds))}"
    match fault.what:
        case "partition":
            return f"{who} cut off from {duration(fault.at_s)} for {duration(fault.for_s)}"
        case "vanish":
            what = f"vanish for {fault.for_rounds} rounds"
        case "nan" | "shape":
            what = f"{fault.what} weights"
        case _:
            what = f"{fault.what} in {fault.during}"
    slow = f", {fault.factor:g} times as slow" if fault.what == "slow" else ""
    return f"{what}{slow}, {who}, {when}, probability {fault.probability:g}"


def policy(loaded: LoadedJob) -> str:
    """Say in one sentence when a round counts and what happens when it doesn't."""
    job = loaded.job
    times = {1: "once", 2: "twice"}
    retries, rest_s = job.policy.round_retries, job.policy.round_backoff_s
    then = "stops"
    if retries:
        longer = ", twice as long each time" if retries > 1 else ""
        wait = f" (lost workers get {duration(rest_s)} to return{longer})" if rest_s else ""
        then = f"retries the round {times.get(retries, f'{retries} times')}{wait}, then stops"
    needed = f"all {job.workers}" if job.policy.on_loss == "stop" else f"{job.quorum} of {job.workers}"
    said = f"needs {needed} workers{_within(job)}, else {then}"
    if job.close_at is not None:
        grace = job.policy.grace_s
        said += f"; once {job.close_at} have delivered, the others "
        said += f"get {duration(grace)} more" if grace else "are not waited for"
    if job.policy.on_loss == "stop":
        return said + "; ends the run when a worker fails (on_loss = 'stop')"
    said += f"; a worker that fails {rounds_running(job.policy.max_failures)} is left out for good"
    if job.spares:
        stand = f"{job.spares} stand{'s' if job.spares == 1 else ''} by"
        said += f" and a spare takes its place ({stand}), at once where the run would stop"
    return said


def _within(job: Job) -> str:
    given = job.deadlines
    if given.round_s is None:
        return ""
    if given.round_s == "auto":
        low, high = duration(given.auto_floor_s), duration(given.auto_ceiling_s)
        return f" within a time learnt from the rounds so far ({low} to {high})"
    return f" within {duration(given.round_s)}"


def frozen(job: Job, kinds: Sequence[str]) -> str | None:
    """Warn of faults that nothing but a distant deadline ends."""
    given = job.deadlines
    limited = given.round_s is not None or job.close_at is not None
    if "freeze" not in kinds or limited or job.sim is not None:
        return None
    train = "train.timeout_s", job.train.timeout_s
    if given.idle_s is not None and given.idle_s < job.train.timeout_s:
        train = "deadlines.idle_s", given.idle_s
    ends = (train, ("deadlines.push_s", given.push_s), ("deadlines.pull_s", given.pull_s))
    key, longest_s = max(ends, key=lambda end: end[1])
    return (
        f"a worker that is frozen holds up its round for up to {duration(longest_s)} ({key}); "
        "deadlines.round_s or policy.close_at would end that sooner"
    )


def warnings(loaded: LoadedJob) -> list[str]:
    """Return what is allowed but likely not meant."""
    job = loaded.job
    found = []
    commands = {"params": job.params.command}
    if not job.worker:
        commands["train"] = job.train.command
    if job.evaluate is not None:
        commands["evaluate"] = job.evaluate.command
    for table, command in commands.items():
        if not command or isinstance(command, str):
            continue
        program = command[0]
        if program != PYTHON and "/" not in program and shutil.which(program) is None:
            found.append(f"{table}.command: no program {program!r} on this machine's PATH")
    found += _wire_python(job)
    found += _unmatched(loaded)
    found += _untrimmed(job)
    if job.quorum == 1 and job.workers > 1:
        found.append("policy.quorum is 1: a single worker's weights would become the params")
    return found


def _wire_python(job: Job) -> list[str]:
    """Return what is wrong with the Python that encodes, where the workers run on this machine."""
    program = job.wire.python
    if not job.wire.active or job.worker or job.sim is not None or program == PYTHON:
        return []
    if "/" in program and not Path(program).is_absolute():
        return []  # found from a worker's folder, which isn't there yet
    if shutil.which(program) is not None:
        return []
    where = "" if "/" in program else " on its PATH"
    return [f"wire.python: this machine has no program {program!r}{where}; no worker could encode or decode"]


def _trim(job: Job) -> str:
    """Say how many workers' values a trimmed mean leaves out."""
    share = job.aggregate.recipe.trim
    cut = trimmed(job.workers, share)
    least = next((count for count in range(1, job.workers + 1) if trimmed(count, share)), job.workers)
    fewer = f"; nobody where fewer than {least} deliver" if cut and job.quorum < least else ""
    return f" without {share:.0%} at each end ({cut} of {job.workers}{fewer})"


def _untrimmed(job: Job) -> list[str]:
    """Return what is wrong with a share to cut off that is of too few workers."""
    recipe = job.aggregate.recipe
    if recipe.method != "trimmed_mean" or trimmed(job.workers, recipe.trim):
        return []
    least = math.ceil(100 / job.workers) / 100
    instead = f"say {least:g} or more" if least < _MAX_TRIM else 'that takes 3 workers, or method = "median"'
    nobody = f"of {job.workers} workers that is nobody, and the plain mean is left"
    return [f"aggregate.trim is {recipe.trim:g}: {nobody}; {instead}"]


def _command(command: Command) -> str:
    text = f"sh -c {shlex.quote(command)}" if isinstance(command, str) else shlex.join(command)
    return " ".join(text.replace(shlex.quote(PYTHON), PYTHON).split())


def _params(loaded: LoadedJob) -> str:
    given = loaded.job.params
    if given.command is not None:
        return f"made by {_command(given.command)}, at most {duration(given.timeout_s)}"
    if given.file is None:
        return "made up for the simulation"
    path = loaded.folder / given.file
    try:
        with ArrayFile(path) as file:
            arrays = len(file.specs)
            return f"{given.file}: {arrays} array{'s' * (arrays != 1)}, {size(file.nbytes)}"
    except ArrayError as e:
        problem = Problem("params.file", e.detail, "an .npz, .npy or .safetensors file of numeric arrays")
        raise JobError(str(loaded.file), [problem]) from e


def _files(loaded: LoadedJob) -> str:
    total, names = 0, set[str]()
    for rank in range(loaded.job.total_nodes):
        for source, target in loaded.files_for(rank, rank % loaded.job.workers):
            total += _size(source)
            names.add(str(target))
    if not names:
        return "none are sent before the first round"
    shown = ", ".join(sorted(names)[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{shown}; sent once to each worker, {size(total)} in all"


def _size(path: Path) -> int:
    return path.stat().st_size


def _aggregate(loaded: LoadedJob) -> str:
    given = loaded.job.aggregate
    recipe = given.recipe
    said = recipe.method
    weighted = recipe.method in {"mean", "geometric_median"} or ":" in recipe.method
    if recipe.method == "trimmed_mean":
        said += _trim(loaded.job)
    elif recipe.method in {"krum", "multi_krum"}:
        said += f" against {recipe.byzantine} liars, keeping {recipe.kept(loaded.job.workers)} of the updates"
    if not weighted or given.weighting == "uniform":
        said += ", all workers alike"
    else:
        said += ", weighted by num_samples if every survivor reports it, else all alike"
    if recipe.clip_norm is not None:
        said += f"; updates longer than {recipe.clip_norm:g} are shortened to it"
    if given.outlier_k is not None:
        said += (
            f"; updates more than {given.outlier_k:g} median deviations longer than the others' are rejected"
        )
    if recipe.optimizer is not None:
        used = {name: getattr(recipe.settings, name) for name in USES[recipe.optimizer]}
        numbers = ", ".join(f"{name} {value}" for name, value in used.items())
        said += f"; then a step of {recipe.optimizer} ({numbers})"
    if recipe.include != ("*",) or recipe.exclude:
        but = f" but {', '.join(recipe.exclude)}" if recipe.exclude else ""
        said += f"; of the arrays {', '.join(recipe.include)}{but}, the others stay as they are"
    return said


def _wire(wire: Wire) -> str:
    ways = {"plain": "as they are", "int8": f"as int8, {wire.block} numbers to a scale"}
    said = f"params travel {ways.get(wire.push, 'as ' + wire.push)}, "
    said += f"what the training changed {ways.get(wire.pull, 'as ' + wire.pull)}"
    if wire.pull != "plain":
        said += " and what that loses with the next round's"
    also = " and the package zstandard (or Python 3.14)" if wire.zstd else ""
    return said + (f", zstd {wire.zstd}" if wire.zstd else "") + f"; each worker's Python needs NumPy{also}"


def _unmatched(loaded: LoadedJob) -> list[str]:
    """Return the patterns that match no array, where the params are there already."""
    file = loaded.job.params.file
    given = loaded.job.aggregate
    if file is None:
        return []
    with suppress(ArrayError), ArrayFile(loaded.folder / file) as params:
        return [
            f"aggregate: the pattern {pattern!r} matches no array of {file}"
            for pattern in (*given.include, *given.exclude)
            if not any(fnmatchcase(name, pattern) for name in params.specs)
        ]
    return []
