"""Answers each command's questions from the views, hands rows to renderers, writes the report's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analyze import html, sofar, told
from analyze.database import Database, Row, parsed
from analyze.export import write_whole
from analyze.gantt import Chart, charts, states_of
from analyze.source import shown
from analyze.terminal import Paper, gantt, sentence, shown_width, table
from analyze.told import Table

_COSTS = """
SELECT run_no, count(*) AS workers, count(cost) AS priced, sum(cost) AS cost, sum(idle_cost) AS idle_cost,
       sum(connected_s) FILTER (cost IS NOT NULL) AS connected_s
FROM costs GROUP BY run_no HAVING count(cost) > 0"""
_FEW = 5
"""Damaged logs that are told one by one."""


@dataclass(slots=True)
class Story:
    """The rows that tell one run."""

    run: Row
    rounds: list[Row]
    metrics: list[Row]
    losses: list[Row]
    open_work: list[Row]
    damage: list[Row]
    resilience: Row | None = None
    against: Row | None = None
    """The resilience of the run it is compared with."""
    cost: Row | None = None
    """What its workers cost, where the job names prices."""
    silent_us: int = 0
    """For how long it has been running without a further event; the rows above reach up to now."""


def stories(database: Database, against: Path | None = None) -> Iterator[Story]:
    """Yield each run of the loaded logs, but for the one that they are compared with."""
    resilience = {row["run_no"]: row for row in database.rows("SELECT * FROM resilience")}
    costs = {row["run_no"]: row for row in database.rows(_COSTS)}
    files = {run["run_no"]: run["file"] for run in database.rows("SELECT run_no, file FROM runs")}
    other = next((no for no, file in files.items() if against is not None and file == shown(against)), None)
    for run in database.rows("SELECT * FROM runs ORDER BY run_no"):
        no = run["run_no"]
        if no == other:
            continue
        story = Story(
            resilience=resilience.get(no),
            against=resilience.get(other) if other is not None else None,
            cost=costs.get(no),
            run=run,
            rounds=database.rows("SELECT * FROM rounds WHERE run_no = ? ORDER BY nth", no),
            metrics=database.rows(
                "SELECT * FROM round_metrics WHERE run_no = ? ORDER BY nth, source, position", no
            ),
            losses=database.rows("SELECT * FROM losses WHERE run_no = ? ORDER BY seq, rank", no),
            open_work=database.rows(
                "SELECT * FROM open_work WHERE run_no = ? ORDER BY rank NULLS FIRST, seq", no
            ),
            damage=database.rows(
                "SELECT * FROM damage WHERE file = ? ORDER BY first_line, reason", run["file"]
            ),
            silent_us=sofar.silent_us(run, datetime.now(UTC)),
        )
        sofar.extend(story.run, story.rounds, story.open_work, story.silent_us)
        yield story


def charts_of(database: Database, story: Story, wanted: set[int] | None = None) -> list[Chart]:
    """Return the charts of a run, of the wanted rounds alone where some are named."""
    rounds = [r for r in story.rounds if wanted is None or r["round"] in wanted]
    query = "SELECT nth, rank, state, phase, open, start_us, end_us FROM segments WHERE run_no = ?"
    if wanted is not None:
        query += " AND list_contains(?, round)"
        made = charts(rounds, database.rows(query, story.run["run_no"], sorted(wanted)))
    else:
        made = charts(rounds, database.rows(query, story.run["run_no"]))
    sofar.extend_charts(made, story.silent_us)
    return made


def gantt_lines(
    database: Database, story: Story, paper: Paper, *, workers: int, wanted: set[int] | None
) -> Iterator[str]:
    """Yield the Gantt chart of a run."""
    made = charts_of(database, story, wanted)
    if made:
        yield from gantt(made, paper, workers=workers)
    else:
        yield "no such round" if story.rounds else "no round has begun"


def _fits(made: Table, paper: Paper) -> bool:
    return max(map(shown_width, table(made.columns, made.rows, footer=made.footer))) <= paper.width


def summary_lines(story: Story, paper: Paper) -> Iterator[str]:
    """Yield the summary of a run."""
    yield from sentence(told.headline(story.run), paper, indent="")
    for line in told.standing(story.run, story.open_work):
        yield from sentence(line, paper)
    yield ""
    names = told.metric_names(story.metrics)
    count = len(names)
    made = told.rounds_table(story.rounds, story.metrics, story.run)
    while count and not _fits(made, paper):
        count -= 1
        made = told.rounds_table(story.rounds, story.metrics, story.run, most_metrics=count)
    yield from table(made.columns, made.rows, footer=made.footer)
    left = names[count:]
    while left:
        count = len(left)
        while count > 1 and not _fits(told.metrics_table(story.rounds, story.metrics, left[:count]), paper):
            count -= 1
        more = told.metrics_table(story.rounds, story.metrics, left[:count])
        yield ""
        yield from table(more.columns, more.rows)
        left = left[count:]
    if story.losses:
        yield from ("", paper.paint("rejected or lost", bold=True))
        for line in told.loss_sentences(story.losses):
            yield from sentence(line, paper)
    told_of = told.resilience_sentences(story.resilience, story.against)
    if told_of:
        yield from ("", paper.paint("how it stood faults", bold=True))
        for line in told_of:
            yield from sentence(line, paper)
    if story.cost:
        yield from ("", paper.paint("what it cost", bold=True))
        yield from sentence(told.cost_sentence(story.cost), paper)
    if story.damage:
        yield from ("", paper.paint("damage of the log", bold=True))
        for line in told.damage_sentences(story.damage):
            yield from sentence(line, paper)


def write_report(database: Database, story: Story, folder: Path, stem: str) -> list[Path]:
    """Write page and pictures of a run; returns the paths, the page first."""
    from analyze import pictures  # noqa: PLC0415 - matplotlib takes half a second to import

    made = charts_of(database, story)
    phases = database.rows("SELECT * FROM phases WHERE run_no = ? ORDER BY nth", story.run["run_no"])
    name = story.run["job_name"] or story.run["run"]
    draw: dict[str, Callable[[pictures.Theme], Any]] = {
        "timeline": lambda theme: pictures.timeline(made, f"Timeline of {name}", theme),
        "metrics": lambda theme: pictures.metrics(story.rounds, story.metrics, f"Metrics of {name}", theme),
        "time": lambda theme: pictures.where_time_went(
            phases, story.rounds, f"Where the time of {name} went", theme
        ),
    }
    if not story.metrics:
        del draw["metrics"]
    damage = told.damage_note(story.damage)
    if damage:
        draw = {what: pictures.noted(make, damage) for what, make in draw.items()}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    inline: dict[str, dict[str, str]] = {}
    for what, make in draw.items():
        figure = pictures.in_style(make, pictures.LIGHT)
        svg = pictures.rendered(figure, "svg")
        for form, content in (("svg", svg), ("png", pictures.rendered(figure, "png"))):
            path = folder / f"{stem}.{what}.{form}"
            write_whole(path, content)
            written.append(path)
        if what != "timeline":
            dark = pictures.rendered(pictures.in_style(make, pictures.DARK), "svg")
            inline[what] = {"light": html.data_uri(svg), "dark": html.data_uri(dark)}
    path = folder / f"{stem}.html"
    write_whole(path, _page(database, story, made, inline).encode())
    return [path, *written]


def _page(database: Database, story: Story, made: list[Chart], inline: dict[str, dict[str, str]]) -> str:
    run = story.run
    workers = database.rows("SELECT * FROM workers WHERE run_no = ? ORDER BY rank", run["run_no"])
    return html.page(
        {
            "run": run,
            "figures": html.figures(run),
            "standing": told.standing(run, story.open_work),
            "damage": told.damage_sentences(story.damage),
            "states": states_of(made),
            "t": html.timeline(made),
            "rounds": told.rounds_table(story.rounds, story.metrics, run),
            "workers_metrics": any(m["source"] == "workers" for m in story.metrics),
            "losses": told.loss_sentences(story.losses),
            "resilience": told.resilience_sentences(story.resilience, story.against),
            "cost": None if story.cost is None else told.cost_sentence(story.cost),
            "has_metrics": "metrics" in inline,
            "pictures": inline,
            "workers": html.workers_table(workers),
            "job": html.pretty(parsed(run["job"])),
            "versions": parsed(run["versions"]) or {},
            "log_name": Path(run["file"]).name,
        }
    )


def damage_notes(database: Database) -> list[str]:
    """Return a line for each damaged log, for the first few of them."""
    damaged = [log for log in database.logs if log.damaged]
    notes = []
    for log in damaged[:_FEW]:
        rows = database.rows(
            "SELECT * FROM damage WHERE file = ? ORDER BY first_line, reason", shown(log.path)
        )
        notes.append(f"{log.path}: {told.damage_note(rows)}; the view 'rejects' has the lines")
    if len(damaged) > _FEW:
        notes.append(f"and {len(damaged) - _FEW} more damaged logs: see the view 'damage'")
    return notes
