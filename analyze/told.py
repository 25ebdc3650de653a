"""Tells a run in tables and sentences: summary, losses, damage, state; takes rows, knows no database."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyze.gantt import round_label
from analyze.terminal import Column, Paper, sentence, table
from schemas.text import duration, number, printable, size

Rows = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Table:
    """A table for any renderer."""

    columns: list[Column]
    rows: list[list[str]]
    footer: list[str] | None = None


_NOTHING_LOST = frozenset({"out of place", "repeated seq"})
"""Damage that takes nothing from the figures."""
_OFTEN = 3
"""Losses of a worker that differ in their rounds alone and are told in one sentence."""


def seconds(us: float | None) -> str:
    """Return microseconds as seconds with three decimals, so that a column can be compared and added."""
    return "-" if us is None else f"{us / 1e6:.3f}"


def of(part: Any, whole: Any) -> str:
    """Return ``3/4``."""
    return f"{'?' if part is None else part}/{'?' if whole is None else whole}"


def rounds_table(
    rounds: Rows, metrics: Rows, run: Mapping[str, Any], *, most_metrics: int | None = None
) -> Table:
    """Return a row for each try of a round and one for the totals."""
    names = metric_names(metrics)[:most_metrics]
    by_round = {(m["nth"], m["source"], m["name"]): m["value"] for m in metrics}
    columns = [
        Column("round"),
        Column("survi-\nvors", right=True),
        Column("bytes\nup", right=True),
        Column("bytes\ndown", right=True),
        Column("train\ns", right=True),
        Column("aggr.\ns", right=True),
        Column("total\ns", right=True),
        Column("delta\nnorm", right=True),
        *(Column(f"{printable(name)}\n{_source(source)}", right=True) for source, name in names),
    ]
    rows = []
    for r in rounds:
        values = [by_round.get((r["nth"], source, name)) for source, name in names]
        rows.append(
            [
                round_label(r["round"], r["attempt"], r["tries"])
                + ("" if r["outcome"] == "ok" else f" {r['outcome']}"),
                of(r["survivors"], r["total_nodes"]),
                size(r["bytes_up"]),
                size(r["bytes_down"]),
                seconds(r["longest_train_us"]),
                seconds(r["aggregate_us"]),
                seconds(r["duration_us"]),
                "-" if r["delta_norm"] is None else number(r["delta_norm"]),
                *("-" if value is None else number(value) for value in values),
            ]
        )
    footer = [
        "total",
        "",
        size(run["bytes_up"] or 0),
        size(run["bytes_down"] or 0),
        seconds(run["train_us"]),
        seconds(run["aggregate_us"]),
        seconds(run["rounds_us"]),
        "",
        *("" for _ in names),
    ]
    return Table(columns, rows, footer)


def metrics_table(rounds: Rows, metrics: Rows, names: Sequence[tuple[str, str]]) -> Table:
    """Return the metrics alone, a row a round."""
    by_round = {(m["nth"], m["source"], m["name"]): m["value"] for m in metrics}
    columns = [Column("round")] + [
        Column(f"{printable(name)}\n{_source(source)}", right=True) for source, name in names
    ]
    rows = []
    for r in rounds:
        values = [by_round.get((r["nth"], source, name)) for source, name in names]
        if any(value is not None for value in values):
            shown = ["-" if value is None else number(value) for value in values]
            rows.append([round_label(r["round"], r["attempt"], r["tries"]), *shown])
    return Table(columns, rows)


def metric_names(metrics: Rows) -> list[tuple[str, str]]:
    """Return source and name of each metric, the evaluation's first."""
    places: dict[tuple[str, str], int] = {}
    for m in metrics:
        key = (m["source"], m["name"])
        places[key] = min(places.get(key, m["position"]), m["position"])
    return sorted(places, key=lambda key: (key[0], places[key], key[1]))


def _source(source: str) -> str:
    return "eval" if source == "evaluation" else source


def headline(run: Mapping[str, Any]) -> str:
    """Say in one line which run it is and how it stands."""
    parts = [f"run {run['run']}"]
    if run["job_name"] is not None:
        parts.append(f"job {run['job_name']}")
    status = run["status"]
    parts.append("end not said (a version 0 log)" if status == "not said" else str(status))
    parts.append(
        f"{of(run['rounds_done'], run['rounds_planned'])} rounds"
        if run["rounds_planned"] is not None
        else f"{run['rounds_done']} rounds"
    )
    paused = f", of it {duration(run['paused_s'])} between sessions" if run["paused_us"] > 0 else ""
    parts.append(duration(run["duration_s"]) + paused)
    return printable("  ".join(parts))


def standing(run: Mapping[str, Any], open_work: Rows) -> list[str]:
    """Say what is open where the log does not end with the run, and why it failed where it did."""
    told = []
    if run["reason"]:
        told.append(f"{run['status']}: {run['reason']}")
    if run["status"] not in {"running", "crashed"}:
        return [printable(line) for line in told]
    verb = (
        "is running" if run["status"] == "running" else "crashed: the log has no end and no runner holds it"
    )
    where = "" if run["open_round"] is None else f"; round {run['open_round']} is open"
    told.append(f"The run {verb}{where}.")
    if run["status"] == "crashed" and run["job"] is not None and str(run["file"]).endswith(".jsonl"):
        told.append(f"To go on with it: runner resume {shlex.quote(run['file'])}")
    last = [w for w in open_work if run["open_round"] is None or w["round"] == run["open_round"]]
    so_far = "for {} so far" if run["status"] == "running" else "open for {} or more, until the log stops"
    for work in last[:20]:
        who = "scheduler" if work["rank"] is None else f"w{work['rank']}"
        told.append(f"{who}: {work['phase']} {so_far.format(duration(work['so_far_s']))} ({work['doing']})")
    if len(last) > 20:
        told.append(f"and {len(last) - 20} more open spans")
    return [printable(line) for line in told]


def loss_sentences(losses: Rows) -> list[str]:
    """Tell each loss: round, who, what and why; what came over a worker again and again, once."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for loss in losses:
        alike.setdefault((loss["rank"], loss["what"], loss["text"]), []).append(loss)
    told = []
    for loss in losses:
        same = alike[loss["rank"], loss["what"], loss["text"]]
        if len(same) < _OFTEN or loss["rank"] is None or None in {one["round"] for one in same}:
            told.append(_loss(loss))
        elif loss is same[0]:
            told.append(_losses(same))
    return [printable(line) for line in told]


def _losses(same: Sequence[Mapping[str, Any]]) -> str:
    """Tell what came over a worker again and again."""
    rounds = sorted({one["round"] for one in same})
    where = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    text = f": {same[0]['text']}" if same[0]["text"] else ""
    return f"{where}, w{same[0]['rank']}: {same[0]['what']}{text} ({len(same)} times)"


def _loss(loss: Mapping[str, Any]) -> str:
    label = round_label(loss["round"], loss["attempt"], loss["tries"] or 1)
    where = "" if loss["round"] is None else f"round {label}, "
    who = "scheduler" if loss["rank"] is None else f"w{loss['rank']}"
    what = loss["what"]
    if what == "no trace":
        return f"{who}: no trace {loss['text']}"
    after = "" if loss["duration_s"] is None else f" after {duration(loss['duration_s'])}"
    text = f": {loss['text']}" if loss["text"] else ""
    if what.startswith("round "):
        return f"round {label}: {what.removeprefix('round ')}{after}{text}"
    return f"{where}{who}: {what}{after}{text}"


def cost_sentence(row: Mapping[str, Any]) -> str:
    """Tell what a run's workers cost: ``priced`` of ``workers``, ``cost``, ``idle_cost``, ``connected_s``."""
    whose = f"{row['priced']} of {row['workers']}" if row["priced"] < row["workers"] else str(row["workers"])
    return (
        f"{row['cost']:.4g} for {whose} workers, connected for {duration(row['connected_s'])} together, "
        f"by the job's price_per_hour; {row['idle_cost']:.4g} of it while they moved no files nor trained"
    )


def resilience_sentences(
    row: Mapping[str, Any] | None, against: Mapping[str, Any] | None = None
) -> list[str]:
    """Tell how a run stood faults; nothing where there were none and it isn't compared.

    Args:
        row: its row of the view ``resilience``.
        against: that of a run without faults.
    """
    if row is None or not (row["faults"] or against):
        return []
    faults = f"{_count(row['faults'], 'fault')} (the first of a worker in a try of a round)"
    told = [
        f"{faults}, {row['injected']} of them by --chaos or [sim]",
        f"liveness {_percent(row['liveness'])}: share of worker time in which workers were connected",
        f"participation {_percent(row['participation'])}: mean share of {row['workers']} workers in a round",
        f"committed: {_count(row['committed'], 'round')} in {_count(row['tries'], 'try', 'tries')}",
        _recovery("next committed round", row["to_commit_s"], row["longest_to_commit_s"]),
        _recovery("next one at full strength", row["to_strength_s"], row["longest_to_strength_s"]),
    ]
    if against is not None:
        kept = row["commits_per_hour"] / against["commits_per_hour"] if against["commits_per_hour"] else None
        told.append(
            f"throughput {_percent(kept)} of that of run {against['run']}, in committed rounds an hour"
        )
    elif row["throughput"] is not None:
        calm = _count(row["calm_rounds"], "round")
        told.append(
            f"throughput {_percent(row['throughput'])} of what it would be if all rounds took as long as the "
            f"{calm} without a fault ({duration(row['calm_s'])}); --against compares with another run"
        )
    return [printable(line) for line in told]


def _recovery(what: str, median_s: float | None, longest_s: float | None) -> str:
    times = "there was none"
    if median_s is not None:
        times = f"{duration(median_s)} (median), {duration(longest_s)} (longest)"
    return f"from a fault to the {what}: {times}"


def _percent(share: float | None) -> str:
    """Return a share as a percentage; what falls short of all is not rounded up to it."""
    if share is None:
        return "not known"
    percent = f"{share * 100:.1f} %"
    return "99.9 %" if percent == "100.0 %" and share < 1 else percent


def _count(number_: int, one: str, many: str | None = None) -> str:
    return f"{number_} {one if number_ == 1 else many or one + 's'}"


def query_error(error: Exception) -> str:
    """Return the lines the database says of a query: what is wrong, names that come close, and where."""
    lines = [printable(line).rstrip() for line in str(error).splitlines() if line.strip()]
    return "\n".join(lines) or "the query failed"


def damage_sentences(damage: Rows) -> list[str]:
    """Tell what of the log is lost, and what that may distort."""
    told = []
    for row in damage:
        if row["reason"] == "missing seq":
            events = _count(row["lines"], "event")
            told.append(f"{events} missing without a trace, first before line {row['first_line']}")
        elif row["reason"] in {"out of place", "cut off"}:
            told.append(
                f"{_count(row['lines'], 'event')} out of place: {row['example']}"
                if row["reason"] == "out of place"
                else row["example"]
            )
        else:
            example = f" ({row['example']})" if row["example"] else ""
            told.append(
                f"{_count(row['lines'], 'line')}: {row['reason']}, first line {row['first_line']}{example}"
            )
    if any(row["reason"] not in _NOTHING_LOST for row in damage):
        told.append("What these said is in no figure here: spans, bytes and metrics may be missing.")
    return [printable(line) for line in told]


def damage_note(damage: Rows) -> str:
    """Tell in one line what of a log is lost; empty if nothing is."""
    told = [
        f"{_count(row['lines'], 'event')} {row['reason']}"
        if row["reason"] in {"missing seq", "out of place"}
        else row["reason"]
        if row["reason"] == "cut off"
        else f"{_count(row['lines'], 'line')} {row['reason']}"
        for row in damage
    ]
    if not told:
        return ""
    more = f" and {_count(len(told) - 4, 'more kind')}" if len(told) > 4 else ""
    lost = any(row["reason"] not in _NOTHING_LOST for row in damage)
    return f"damaged log: {', '.join(told[:4])}{more}" + (
        "; spans, bytes and metrics may be missing" if lost else ""
    )


def runs_table(runs: Iterable[Mapping[str, Any]]) -> Table:
    """Return a line a run."""
    columns = [
        Column("run"),
        Column("job", wrap=True),
        Column("began (UTC)"),
        Column("rounds", right=True),
        Column("status"),
        Column("survivors", right=True),
        Column("last metric", wrap=True),
    ]
    rows = []
    for r in runs:
        metric = "-" if r["last_metric"] is None else f"{r['last_metric']} {number(r['last_value'])}"
        began = "-" if not r["began"] else str(r["began"])[:16].replace("T", " ")
        planned = r["rounds_planned"]
        done = str(r["rounds_done"]) if planned is None else of(r["rounds_done"], planned)
        rows.append(
            [
                r["run"],
                r["job_name"] or "-",
                began,
                done,
                r["status"],
                "-" if r["last_survivors"] is None else of(r["last_survivors"], r["total_nodes"]),
                metric,
            ]
        )
    return Table(columns, rows)


def schema_lines(
    views: Iterable[tuple[str, str, list[tuple[str, str, str]]]], paper: Paper, wanted: str = ""
) -> Iterator[str]:
    """Yield what `Database.documented` says of each view, or of those whose names begin so."""
    first = True
    for view, doc, columns in views:
        if not view.startswith(wanted):
            continue
        if not first:
            yield ""
        first = False
        yield paper.paint(view, bold=True)
        yield from sentence(doc, paper)
        heads = [Column("  column"), Column("type"), Column("meaning", wrap=True)]
        rows = [[f"  {name}", kind, meaning] for name, kind, meaning in columns]
        yield from table(heads, rows, width=paper.width if paper.wrap else None)
