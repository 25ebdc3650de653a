"""Every event of the log as a typed dataclass; knows neither how events are written nor how they are read.

One event is one flat JSON object: the envelope (``Envelope``) followed by the fields of its kind.
Times and durations are seconds rounded to the microsecond, sizes are bytes, numbers are finite.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

VERSION = 1
"""The schema version written today."""

MAX_LINE_BYTES = 64 * 1024
"""Longest line of a log, its newline included."""

Doc = Meta
Count = Annotated[int, Meta(ge=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Seconds = NonNegative
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(slots=True, kw_only=True)
class Envelope:
    """What every event has in front."""

    v: Annotated[int, Doc(ge=1, description="schema version")]
    run: Annotated[str, Doc(min_length=1, description="id of the run; sorts by the time it began")]
    seq: Annotated[int, Doc(ge=0, description="0, 1, 2, ... without a gap")]
    t: Annotated[float, Doc(ge=0, description="seconds since the run began; never goes back")]
    ts: Annotated[str, Doc(description="UTC, RFC 3339, microseconds; for people")]
    kind: Annotated[str, Doc(description="which event this is")]
    round: Annotated[int | None, Doc(description="round it belongs to, from 0; null outside rounds")]
    rank: Annotated[int | None, Doc(description="worker it belongs to; null for the coordinator")]
    overflow_path: Annotated[
        str | None,
        Doc(description="file with the whole event, relative to the log, where its line would be too long"),
    ] = None


@dataclass(slots=True, kw_only=True)
class Body:
    """Base of the fields of one kind; ``kind`` names it."""

    kind: ClassVar[str]


@dataclass(slots=True, kw_only=True)
class RunStart(Body):
    """Everything needed to understand or repeat the run."""

    kind: ClassVar[str] = "run_start"
    job: Annotated[dict[str, Any], Doc(description="the job, resolved, secrets by name only")]
    total_nodes: Annotated[Count, Doc(description="workers the job lists")]
    versions: Annotated[dict[str, str], Doc(description="of roundlog, Python and the packages that matter")]
    host: Annotated[str, Doc(description="machine of the coordinator")]
    pid: Annotated[int, Doc(description="process of the coordinator")]
    params_sha256: Annotated[
        Sha256 | None, Doc(description="of the file of initial params; null where none came about")
    ]
    params_path: Annotated[str | None, Doc(description="that file, relative to the log")]
    params_bytes: Annotated[Count | None, Doc(description="its size")]
    init_s: Annotated[Seconds | None, Doc(description="how long it took to make them")]


@dataclass(slots=True, kw_only=True)
class RunResume(Body):
    """A new process took over the log."""

    kind: ClassVar[str] = "run_resume"
    session: Annotated[Count, Doc(description="1 for the first resume")]
    trusted_seq: Annotated[int, Doc(ge=-1, description="last event taken as true")]
    broken_offset: Annotated[Count | None, Doc(description="byte at which a broken tail began")]
    broken_bytes: Annotated[Count | None, Doc(description="length of that tail")]
    reason: Annotated[str, Doc(description="what was found")]
    host: Annotated[str, Doc(description="machine of the coordinator")]
    pid: Annotated[int, Doc(description="process of the coordinator")]


@dataclass(slots=True, kw_only=True)
class WorkerUp(Body):
    """A worker joined."""

    kind: ClassVar[str] = "worker_up"
    address: Annotated[str, Doc(description="transport and place, such as local:workers/0")]
    facts: Annotated[dict[str, str | int | float], Doc(description="cpus, memory_bytes, gpus, ...")]


@dataclass(slots=True, kw_only=True)
class WorkerDown(Body):
    """A worker left."""

    kind: ClassVar[str] = "worker_down"
    reason: Annotated[str, Doc(description="a word: connect, lost, failures, ...")]
    detail: Annotated[str, Doc(description="what happened, in words")]
    for_good: Annotated[bool, Doc(description="true: not tried again in this run")]
    attempt: Annotated[
        Annotated[int, Doc(ge=1)] | None,
        Doc(description="which try to reach it, in a try of a round, from 1; null elsewhere"),
    ] = None
    injected: Annotated[
        str | None, Doc(description="fault that was put in on purpose: crash, kill, ...; null where none was")
    ] = None


@dataclass(slots=True, kw_only=True)
class RoundStart(Body):
    """A round begins."""

    kind: ClassVar[str] = "round_start"
    active_nodes: Annotated[Count, Doc(description="workers that take part")]
    total_nodes: Annotated[Count, Doc(description="workers the job lists, without spares that stand by")]
    params_sha256: Annotated[Sha256, Doc(description="of the params that are pushed")]
    attempt: Annotated[int, Doc(ge=1, description="which try, from 1")]
    deadline_s: Annotated[Seconds | None, Doc(description="how long it may take; null for any time")] = None


@dataclass(slots=True, kw_only=True)
class _Attempt(Body):
    path: Annotated[str, Doc(description="file, relative to the worker's folder")]
    attempt: Annotated[int, Doc(ge=1, description="which try, from 1")]


@dataclass(slots=True, kw_only=True)
class PushStart(_Attempt):
    """A file begins to travel to the worker."""

    kind: ClassVar[str] = "push_start"


@dataclass(slots=True, kw_only=True)
class PullStart(_Attempt):
    """A file begins to travel from the worker."""

    kind: ClassVar[str] = "pull_start"


@dataclass(slots=True, kw_only=True)
class ExecStart(Body):
    """A command begins on the worker (rank null: on the coordinator)."""

    kind: ClassVar[str] = "exec_start"
    command: Annotated[str, Doc(description="as a shell would take it; secrets masked")]
    attempt: Annotated[int, Doc(ge=1, description="which try, from 1")]


@dataclass(slots=True, kw_only=True)
class Finished(Body):
    """Base of the finished spans: the span began at ``t - duration_s``."""

    duration_s: Annotated[Seconds, Doc(description="how long it took")] = 0.0


@dataclass(slots=True, kw_only=True)
class _Transfer(Finished):
    path: Annotated[str, Doc(description="file, relative to the worker's folder")]
    size_bytes: Annotated[Count | None, Doc(description="size of the file; null where not known")]
    attempt: Annotated[int, Doc(ge=1, description="which try, from 1")]
    error: Annotated[str | None, Doc(description="why it failed; null when it did not")] = None
    reused: Annotated[Count, Doc(description="bytes that were there already and not sent again")] = 0
    plain_bytes: Annotated[
        Count | None, Doc(description="size of the file it stands for, where it travels encoded")
    ] = None
    arrived_bytes: Annotated[
        Count | None, Doc(description="of one that failed: how much had got across; null where not known")
    ] = None
    injected: Annotated[
        str | None, Doc(description="fault that was put in on purpose: crash, kill, ...; null where none was")
    ] = None
    injected_after_s: Annotated[
        Seconds | None, Doc(description="how long after the start of the call that fault struck, in seconds")
    ] = None


@dataclass(slots=True, kw_only=True)
class Push(_Transfer):
    """A file travelled to the worker, or failed to."""

    kind: ClassVar[str] = "push"


@dataclass(slots=True, kw_only=True)
class Pull(_Transfer):
    """A file travelled from the worker, or failed to."""

    kind: ClassVar[str] = "pull"


@dataclass(slots=True, kw_only=True)
class Exec(Finished):
    """A command ended, or failed to run (rank null: on the coordinator)."""

    kind: ClassVar[str] = "exec"
    exit_code: Annotated[
        int | None, Doc(description="negative: the signal that ended it; null where there is none")
    ]
    output_tail: Annotated[str, Doc(description="last line that is not empty, 80 characters")]
    output_bytes: Annotated[Count, Doc(description="what it printed in all")]
    output_path: Annotated[str | None, Doc(description="file with the output, relative to the log")]
    attempt: Annotated[int, Doc(ge=1, description="which try, from 1")]
    error: Annotated[str | None, Doc(description="why it failed; null when it did not")] = None
    injected: Annotated[
        str | None, Doc(description="fault that was put in on purpose: crash, kill, ...; null where none was")
    ] = None
    injected_after_s: Annotated[
        Seconds | None, Doc(description="how long after the start of the call that fault struck, in seconds")
    ] = None


RejectReason = Literal[
    "missing",
    "unexpected",
    "shape",
    "dtype",
    "nonfinite",
    "unreadable",
    "num_samples",
    "outlier",
    "late",
    "deadline",
]
"""Why weights were kept out; ``missing`` and ``unexpected`` are said of a file or of an array in it,
``outlier`` of an update far longer than the others', ``late`` of workers that were not waited
for, ``deadline`` of those that took longer than the round may."""


@dataclass(slots=True, kw_only=True)
class Reject(Body):
    """Weights were not let into the aggregate."""

    kind: ClassVar[str] = "reject"
    reason: RejectReason
    detail: Annotated[str, Doc(description="which array, what was found, what was expected")]


@dataclass(slots=True, kw_only=True)
class Metric(Body):
    """What a command reported (rank null: the evaluation on the coordinator)."""

    kind: ClassVar[str] = "metric"
    values: Annotated[dict[str, float], Doc(description="name to finite number")]
    num_samples: Annotated[NonNegative | None, Doc(description="samples trained on")]
    error: Annotated[str | None, Doc(description="what of the report could not be used")] = None


@dataclass(slots=True, kw_only=True)
class Aggregate(Finished):
    """New params were made from the weights of the survivors, or could not be."""

    kind: ClassVar[str] = "aggregate"
    num_workers: Annotated[Count, Doc(description="workers whose weights entered")]
    ranks: Annotated[list[int], Doc(description="which, in the order in which they were averaged")]
    method: Annotated[str, Doc(description="how weights were combined: mean, median, ...")]
    weighting: Annotated[str, Doc(description="num_samples or uniform")]
    weight_norm: Annotated[NonNegative | None, Doc(description="L2 norm of the new params")]
    delta_norm: Annotated[NonNegative | None, Doc(description="L2 norm of new minus old params")]
    params_sha256: Annotated[Sha256 | None, Doc(description="of the new file of params")]
    params_path: Annotated[str | None, Doc(description="that file, relative to the log")]
    error: Annotated[str | None, Doc(description="why it failed; null when it did not")] = None
    optimizer: Annotated[
        str | None, Doc(description="server optimizer: fedadam, ...; null: the average is the new params")
    ] = None
    shares: Annotated[
        list[float] | None, Doc(description="how much each of ranks counted; of a mean they sum to 1")
    ] = None
    update_norms: Annotated[
        list[float | None] | None, Doc(description="L2 norm of weights minus params, for each of ranks")
    ] = None
    cosines: Annotated[
        list[float | None] | None,
        Doc(description="cosine of each one's update to the combined one; null where one of them is 0"),
    ] = None
    clipped: Annotated[
        list[int] | None, Doc(description="whose updates were shortened to the job's clip_norm")
    ] = None
    state_sha256: Annotated[
        dict[str, Sha256] | None,
        Doc(description="the optimizer's state: files, relative to the log, and their hashes"),
    ] = None


@dataclass(slots=True, kw_only=True)
class RoundEnd(Finished):
    """A round is over."""

    kind: ClassVar[str] = "round_end"
    survivors: Annotated[Count, Doc(description="workers whose weights entered the aggregate")]
    total_nodes: Annotated[Count, Doc(description="workers the job lists, without spares that stand by")]
    outcome: Literal["ok", "failed", "interrupted"]
    reason: Annotated[str | None, Doc(description="why it is not ok; null when it is")] = None
    failed: Annotated[list[int], Doc(description="workers that failed in it")] = field(default_factory=list)
    late: Annotated[list[int], Doc(description="workers that were not waited for")] = field(
        default_factory=list
    )
    workers_s: Annotated[
        Seconds | None, Doc(description="from its start until all workers had delivered or were dropped")
    ] = None
    delivered_s: Annotated[
        Seconds | None,
        Doc(description="from its start until the last weights were let in; null where none were"),
    ] = None
    encode_s: Annotated[
        Seconds | None, Doc(description="to encode the params before they were pushed; null where plain")
    ] = None


@dataclass(slots=True, kw_only=True)
class RunEnd(Finished):
    """The run is over."""

    kind: ClassVar[str] = "run_end"
    status: Literal["completed", "failed", "interrupted"]
    reason: Annotated[str | None, Doc(description="why it is not completed; null when it is")]
    rounds: Annotated[Count, Doc(description="rounds that were aggregated")]
    params_path: Annotated[str | None, Doc(description="the last good params, relative to the log")]


BODIES: tuple[type[Body], ...] = (
    RunStart,
    RunResume,
    WorkerUp,
    WorkerDown,
    RoundStart,
    PushStart,
    Push,
    ExecStart,
    Exec,
    PullStart,
    Pull,
    Reject,
    Metric,
    Aggregate,
    RoundEnd,
    RunEnd,
)
"""Every kind, in the order in which a run shows them."""

BY_KIND: dict[str, type[Body]] = {body.kind: body for body in BODIES}


def field_names(kind: str) -> tuple[str, ...]:
    """Return the names of an event's fields, envelope first.

    Raises:
        KeyError: no such kind.
    """
    return tuple(f.name for f in fields(Envelope)) + tuple(f.name for f in fields(BY_KIND[kind]))
