"""Makes the next params of a round's deliveries, and tells of it in the log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import trio

from runner.aggregate import Aggregated, Combine, Contribution, StateFile, aggregate
from runner.arrays import ArraySpec
from runner.decide import Verdict
from runner.errors import ArrayError, plain
from runner.job import LoadedJob
from runner.recorder import Recorder
from runner.recycle import set_aside
from runner.robust import outliers
from runner.runfolder import RunFolder
from runner.simtime import in_thread, stop_point
from runner.weights import Checked
from schemas.events import Aggregate, Metric, Reject


@dataclass(frozen=True, slots=True)
class CurrentParams:
    """The params a round pushes, and what the optimizer remembers: a file for each of its slots."""

    path: Path
    sha256: str
    specs: Mapping[str, ArraySpec]
    state: Mapping[str, Path] = field(default_factory=dict)

    @property
    def form(self) -> str:
        """``npz``, ``npy`` or ``safetensors``."""
        return self.path.suffix[1:]


@dataclass(slots=True)
class Delivery:
    """What one worker handed back; ``checked`` once its weights were let in.

    ``shared``: its file is that of other workers, too.
    """

    path: Path
    metrics_bytes: int | None = None
    num_samples: float | None = None
    checked: Checked | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Stepped:
    """What came of it: new params, or why there are none; and the verdict without who was left out.

    ``hopeless``: the same would fail again, since it is the job's own method that does.
    """

    params: CurrentParams | None
    failure: str | None
    verdict: Verdict
    hopeless: bool = False


class ServerStep:
    """Turns deliveries into params, as the job says.

    Args:
        loaded: the job.
        folder: the files of the run.
        recorder: the log.
        combine: the user's own function, if the job names one.
    """

    def __init__(
        self, loaded: LoadedJob, folder: RunFolder, recorder: Recorder, combine: Combine | None
    ) -> None:
        self._given = loaded.job.aggregate
        self._recipe = self._given.recipe
        self._keep = loaded.job.params.keep
        self._folder = folder
        self._recorder = recorder
        self._combine = combine

    async def take(
        self, number: int, params: CurrentParams, deliveries: Mapping[int, Delivery], verdict: Verdict
    ) -> Stepped:
        """Make new params; emit the aggregate, and whom it left out."""
        began = self._recorder.now_us()
        verdict = self._without_changed(number, deliveries, verdict)
        verdict = self._without_outliers(number, deliveries, verdict)
        if verdict.reason is not None:
            return Stepped(None, verdict.reason, verdict)
        ranks = verdict.survivors
        weighting, contributions = weigh(deliveries, ranks, self._given.weighting)
        if weighting != self._given.weighting:
            self._tell_unweighted(number, deliveries, ranks)
        event = partial(
            Aggregate,
            num_workers=len(ranks),
            ranks=list(ranks),
            method=self._recipe.method,
            weighting=weighting,
            optimizer=self._recipe.optimizer,
            update_norms=[_short(c.norm) for c in contributions],
        )
        none = partial(event, weight_norm=None, delta_norm=None, params_sha256=None, params_path=None)
        target = self._folder.params(number + 1, params.form)
        states = [
            StateFile(slot, params.state.get(slot), self._folder.state(number + 1, slot))
            for slot in self._recipe.slots
        ]
        try:
            made = await in_thread(
                partial(
                    aggregate,
                    params.path,
                    contributions,
                    target,
                    self._recipe,
                    number=number,
                    state=states,
                    combine=self._combine,
                    between=stop_point(),
                    spare=self._folder.spare,
                )
            )
        except (ArrayError, OSError) as e:
            if _changed(deliveries, ranks):
                return await self.take(number, params, deliveries, verdict)
            said = f"can't write {target.name}: {plain(e)}" if isinstance(e, OSError) else str(e)
            self._recorder.emit(none(error=said), round=number, since_us=began)
            hopeless = isinstance(e, ArrayError) and e.reason == "method"
            return Stepped(None, f"no aggregate: {said}", verdict, hopeless)
        except trio.Cancelled:
            self._recorder.emit(none(error="cancelled"), round=number, since_us=began)
            raise
        if _changed(deliveries, ranks):
            for path in (target, *(file.target for file in states)):
                path.unlink(missing_ok=True)
            return await self.take(number, params, deliveries, verdict)
        done = event(
            weight_norm=made.weight_norm,
            delta_norm=made.delta_norm,
            params_sha256=made.sha256,
            params_path=self._recorder.relative(target),
            shares=[float(f"{share:.6g}") for share in made.shares],
            cosines=[_short(cosine) for cosine in made.cosines],
            clipped=[rank for rank, scale in zip(ranks, made.scales, strict=True) if scale < 1.0],
            state_sha256=self._told(made, states),
        )
        self._recorder.emit(done, round=number, since_us=began)
        new = CurrentParams(target, made.sha256, params.specs, {file.slot: file.target for file in states})
        return Stepped(new, None, verdict)

    def check_patterns(self, params: CurrentParams) -> None:
        """See that every pattern of the job matches an array.

        Raises:
            ArrayError: one doesn't: it would silently leave out, or average, what was not meant.
        """
        for pattern in (*self._recipe.include, *self._recipe.exclude):
            if not any(fnmatchcase(name, pattern) for name in params.specs):
                names = ", ".join(list(params.specs)[:8])
                raise ArrayError(
                    "missing", f"aggregate: the pattern {pattern!r} matches no array; there are {names}"
                )

    def keep_newest(self, number: int, params: CurrentParams) -> None:
        """Delete the params, and their states, that are too old for the job to keep."""
        old = number - self._keep
        if old < 0:
            return
        path = self._folder.params(old, params.form)
        if not set_aside(path, self._folder.spare):
            path.unlink(missing_ok=True)
        for slot in self._recipe.slots:
            self._folder.state(old, slot).unlink(missing_ok=True)

    def state_files(self, number: int) -> dict[str, Path]:
        """Return the files of the optimizer's state that belong to the params a round pushes."""
        return {slot: self._folder.state(number, slot) for slot in self._recipe.slots} if number else {}

    def _told(self, made: Aggregated, states: list[StateFile]) -> dict[str, str]:
        return {self._recorder.relative(file.target): made.state_sha256[file.slot] for file in states}

    def _tell_unweighted(
        self, number: int, deliveries: Mapping[int, Delivery], ranks: tuple[int, ...]
    ) -> None:
        """Say who told no samples, where others did; where nobody does, that is how the job is."""
        silent = [rank for rank in ranks if deliveries[rank].num_samples is None]
        if len(silent) == len(ranks):
            return
        said = (
            f"no num_samples, which {len(ranks) - len(silent)} of {len(ranks)} told: all workers count alike"
        )
        for rank in silent:
            self._recorder.emit(Metric(values={}, num_samples=None, error=said), round=number, rank=rank)

    def _without_changed(self, number: int, deliveries: Mapping[int, Delivery], verdict: Verdict) -> Verdict:
        """Reject weights that were written to after they were checked, as by a command that stays."""
        changed = _changed(deliveries, verdict.survivors)
        for rank in changed:
            said = (
                "its file was written to after it was handed back: a command has to be done with it by then"
            )
            self._recorder.emit(Reject(reason="unreadable", detail=said), round=number, rank=rank)
        return _without(verdict, changed)

    def _without_outliers(self, number: int, deliveries: Mapping[int, Delivery], verdict: Verdict) -> Verdict:
        """Reject the updates that are far longer than the others', if the job says so."""
        k = self._given.outlier_k
        if k is None or verdict.reason is not None:
            return verdict
        norms = [_norm(deliveries[rank]) for rank in verdict.survivors]
        far = [verdict.survivors[index] for index in outliers(norms, k)]
        for rank in far:
            norm = norms[verdict.survivors.index(rank)]
            said = f"its update has the norm {norm:.6g}, more than {k:g} median deviations above the others'"
            self._recorder.emit(Reject(reason="outlier", detail=said), round=number, rank=rank)
        return _without(verdict, far)


def weigh(
    deliveries: Mapping[int, Delivery], survivors: tuple[int, ...], weighting: str
) -> tuple[str, list[Contribution]]:
    """Return how the survivors are weighted, and what each contributes, in rank order.

    With ``num_samples`` each counts by its samples, if all of them told theirs; else all count alike.
    """
    samples = [deliveries[rank].num_samples for rank in survivors]
    uniform = weighting == "uniform" or any(count is None for count in samples)
    contributions = []
    for rank, count in zip(survivors, samples, strict=True):
        checked = deliveries[rank].checked
        assert checked is not None  # noqa: S101 - no survivor without
        weight = 1.0 if uniform else count or 0.0
        contributions.append(Contribution(rank, checked.file, weight, checked.norm))
    return "uniform" if uniform else "num_samples", contributions


def _without(verdict: Verdict, ranks: list[int]) -> Verdict:
    """Return a verdict in which some survivors have failed."""
    return replace(
        verdict,
        survivors=tuple(rank for rank in verdict.survivors if rank not in ranks),
        failed=tuple(sorted({*verdict.failed, *ranks})),
    )


def _changed(deliveries: Mapping[int, Delivery], ranks: Iterable[int]) -> list[int]:
    """Return whose weights are no longer those that were checked; what simulated workers share stays."""
    return [
        rank
        for rank in ranks
        if (checked := deliveries[rank].checked) and not deliveries[rank].shared and checked.changed
    ]


def _norm(delivery: Delivery) -> float:
    return delivery.checked.norm if delivery.checked else math.inf


def _short(number: float | None) -> float | None:
    """Return a number with the six digits that mean something, or None if it is not finite."""
    return float(f"{number:.6g}") if number is not None and math.isfinite(number) else None
