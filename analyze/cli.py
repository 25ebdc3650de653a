"""The command line: parses arguments, prints, and says by the exit code how it went; knows no SQL of its own.

Exit codes: 0 clean; 3 usable, but a log is damaged; 1 nothing usable; 2 wrong usage.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import duckdb

from analyze import export, lake, options, told
from analyze.compare import comparison, letter
from analyze.database import DEFAULT_FOLDER, Database, NothingUsableError, alone, empty, opened
from analyze.glance import glanced
from analyze.report import damage_notes, gantt_lines, stories, summary_lines, write_report
from analyze.source import found, stem
from analyze.terminal import fitted, joined, sentence
from schemas.text import printable

DAMAGED = 3


def _version() -> str:
    try:
        return version("roundlog")
    except PackageNotFoundError:
        return "unknown"


def _say(text: str) -> None:
    click.echo(printable(text), err=True)


@contextmanager
def _logs(
    paths: Iterable[str | Path], *, documented: bool = False, tells: bool = False
) -> Iterator[Database]:
    """Open logs, warn of what the user should know, and exit with 3 afterwards where some are damaged.

    `tells`: what is printed tells of damage.
    """
    with opened([Path(path) for path in paths], documented=documented, cache=options.kept_in()) as database:
        for warning in database.warnings():
            _say(f"warning: {warning}")
        for problem in database.problems:
            _say(f"warning: {problem}")
        yield database
        damaged = database.damaged
        notes = [] if tells else damage_notes(database)
    if damaged:
        sys.stdout.flush()
        for note in notes:
            _say(f"warning: {note}")
        raise click.exceptions.Exit(DAMAGED)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(_version(), prog_name="analyze")
def cli() -> None:
    """Read logs of runs: who did what when, what was lost, and what came of it.

    \b
    Exit codes: 0 clean; 3 usable, but the log is damaged; 1 nothing usable; 2 wrong usage.
    """


@cli.command()
@options.LOG
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder; default: the log's."
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    help="Log of the same job without faults, to compare throughput with.",
)
@options.WIDTH
@options.GLYPHS
@options.WORKERS
@options.NO_CACHE
def report(  # noqa: PLR0917 - click gives them by name
    log: Path, output: Path | None, against: Path | None, width: int | None, glyphs: str, workers: int
) -> None:
    """Print Gantt chart and summary; write an HTML page and the pictures as SVG and PNG."""
    paper = options.paper(width, glyphs)
    name = stem(log)
    with _logs([log] if against is None else [log, against], tells=True) as database:
        for i, story in enumerate(stories(database, against)):
            if i:
                click.echo()
            click.echo(joined(gantt_lines(database, story, paper, workers=workers, wanted=None)))
            click.echo(joined(summary_lines(story, paper)), nl=False)
            sys.stdout.flush()
            folder = output or log.parent
            for path in write_report(database, story, folder, name if not i else f"{name}-{i + 1}"):
                _say(f"wrote {path}")


@cli.command()
@options.LOG
@options.WIDTH
@click.option("--round", "rounds", multiple=True, metavar="N|A-B", help="Only these rounds; may be repeated.")
@options.GLYPHS
@options.WORKERS
@options.NO_CACHE
def gantt(log: Path, width: int | None, rounds: tuple[str, ...], glyphs: str, workers: int) -> None:
    """Draw each round: a row for the scheduler and one for each worker."""
    wanted, paper = options.rounds(rounds), options.paper(width, glyphs)
    with _logs([log]) as database:
        all_of = list(stories(database))
        there = {r["round"] for story in all_of for r in story.rounds}
        if wanted and there and not wanted & there:
            raise click.UsageError(f"no such round; the log has {min(there)} to {max(there)}")
        for i, story in enumerate(all_of):
            if i:
                click.echo()
            click.echo(joined(gantt_lines(database, story, paper, workers=workers, wanted=wanted)), nl=False)


@cli.command()
@options.LOG
@options.WIDTH
@options.NO_CACHE
def summary(log: Path, width: int | None) -> None:
    """Print a row for each round, the totals, what was rejected or lost, and damage of the log."""
    paper = options.paper(width)
    with _logs([log], tells=True) as database:
        for i, story in enumerate(stories(database)):
            if i:
                click.echo()
            click.echo(joined(summary_lines(story, paper)), nl=False)


def _found(names: Iterable[str], folder: str) -> list[Path]:
    """Return the logs named, those in the folders named, or those in the default folder."""
    wanted = list(names) or [folder]
    paths = found(wanted)
    if all(path.is_dir() for path in paths):
        raise NothingUsableError(
            f"no logs in {paths[0]}", "a log is written by 'runner start' as runs/<run>.jsonl"
        )
    return paths


@cli.command()
@click.argument("query", required=False)
@click.argument("logs", nargs=-1)
@options.RUNS
@click.option(
    "--format", "form", type=click.Choice(export.FORMATS), default="table", help="How to write the result."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File; default: stdout."
)
@click.option("-f", "--file", "script", type=click.Path(path_type=Path), help="Read the query from a file.")
@click.option("-p", "--param", "given", multiple=True, metavar="NAME=VALUE", help="Value of $NAME, as text.")
@click.option("--unsafe", is_flag=True, help="Let the query reach files and the network.")
@click.option("--schema", is_flag=True, help="Show every view and column, or one view, and read no log.")
@options.NO_CACHE
def sql(  # noqa: PLR0917 - click passes options by name
    query: str | None,
    logs: tuple[str, ...],
    folder: str,
    form: str,
    output: Path | None,
    script: Path | None,
    given: tuple[str, ...],
    *,
    unsafe: bool,
    schema: bool,
) -> None:
    """Ask QUERY of one log, several, or all in a folder; "-" reads it from stdin.

    \b
    analyze sql "SELECT run, round, duration_s FROM rounds ORDER BY duration_s DESC LIMIT 5"
    analyze sql --schema [VIEW]
    """
    if schema:
        _show_schema(query or "")
        return
    if script is not None:
        logs = (query, *logs) if query else logs
        query = script.read_text(encoding="utf-8")
    elif query == "-":
        query = sys.stdin.read()
    parameters = options.parameters(given)
    if not query or not query.strip():
        raise click.UsageError("no query; 'analyze sql --schema' shows what can be asked")
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("parquet is no text: name a file by -o")
    # Only DuckDB's own tables show comments, which take as long as all else of a small log.
    documented = re.search(r"duckdb_|pg_|query", query, re.IGNORECASE) is not None
    with _logs(_found(logs, folder), documented=documented) as database:
        if form == "parquet":
            _parquet(database, query, output, parameters, unsafe=unsafe)
            return
        if not unsafe:
            database.fence()
        cursor = database.asked(query, parameters)
        described = cursor.description or []
        names, types = [d[0] for d in described], [d[1] for d in described]
        text = export.text(
            names, types, cursor.fetchall(), form, width=None if output else options.paper().limit
        )
        if output is None:
            click.echo(text, nl=False)
        else:
            export.write_whole(output, text.encode())
            _say(f"wrote {output}")


def _parquet(
    database: Database, query: str, output: Path | None, parameters: dict[str, str], *, unsafe: bool
) -> None:
    with export.parquet_room(database.con) as room:
        if not unsafe:
            database.fence()
        alone(query)
        export.write_parquet(database.con, query, room, parameters)
        if output is None:
            sys.stdout.buffer.write(room.read_bytes())
            sys.stdout.buffer.flush()
        else:
            export.move_into_place(room, output)
            _say(f"wrote {output}")


@cli.command("explain", context_settings={"ignore_unknown_options": True})
@click.argument("place", metavar="LOG:LINE")
def explain_(place: str) -> None:
    """Show one line of a log as it is, each step that brings it up, and what it became or why not.

    \b
    analyze explain runs/x.jsonl:123
    gunzip < x.gz | analyze explain -:123
    """
    name, _, line = place.rpartition(":")
    if not name or not re.fullmatch(r"[1-9]\d{0,17}", line):
        raise click.UsageError(f"{place!r} names no line; write LOG:LINE, such as runs/x.jsonl:123")
    path, number = Path(name), int(line)
    with _logs([path]) as database:
        if number > database.logs[0].lines:
            raise click.UsageError(f"{name} has {database.logs[0].lines} lines")
        click.echo("\n".join(database.explained(path, number)))


def _show_schema(wanted: str = "") -> None:
    lines = list(told.schema_lines(Database(empty()).documented(), options.paper(), wanted))
    if not lines:
        raise click.UsageError(f"no view is called {wanted!r}; 'analyze sql --schema' shows them all")
    click.echo(joined(lines), nl=False)


@cli.command("shell")
@click.argument("logs", nargs=-1)
@options.RUNS
@click.option(
    "--format",
    "form",
    type=click.Choice([f for f in export.FORMATS if f != "parquet"]),
    default="table",
    help="How to write results.",
)
@click.option("--unsafe", is_flag=True, help="Let queries reach files and the network.")
@options.NO_CACHE
def shell_(logs: tuple[str, ...], folder: str, form: str, *, unsafe: bool) -> None:
    """Ask one query after the other of LOGS, or of all in a folder, at a prompt."""
    if not sys.stdin.isatty():
        raise click.UsageError("stdin is no terminal; 'analyze sql -' reads a query from it")
    from analyze import shell  # noqa: PLC0415 - no other command needs a prompt

    with _logs(_found(logs, folder), documented=True) as database:
        asked = shell.asked(database)
        if not unsafe:
            database.fence()
        shell.talk(
            database,
            asked,
            form,
            echo=lambda text: click.echo(text, nl=False),
            say=_say,
            schema=_show_schema,
            width=lambda: options.paper().limit,
        )


@cli.command()
@click.argument("logs", nargs=-1)
@options.RUNS
@options.WIDTH
@click.option("--whole", is_flag=True, help="Read every log to its end, and tell what is damaged.")
@options.NO_CACHE
def runs(logs: tuple[str, ...], folder: str, width: int | None, *, whole: bool) -> None:
    """List runs, a line each; LOGS are logs or folders with logs.

    Of a log that looks as it should, its head and its tail are read: damage in between shows with --whole,
    and in all other commands.
    """
    paths = _found(logs, folder)
    rows, left = ([], paths) if whole else glanced(paths, options.kept_in())
    code = 0
    if left:
        try:
            with _logs(left) as database:
                rows += database.rows("SELECT * FROM runs")
        except click.exceptions.Exit as e:
            code = e.exit_code
        except NothingUsableError as e:
            if not rows:
                raise
            _say(f"warning: {e}")
            code = DAMAGED
    made = told.runs_table(sorted(rows, key=lambda row: (row["run"], row["run_no"])))
    click.echo(joined(fitted(made.columns, made.rows, options.paper(width).limit)), nl=False)
    if code:
        raise click.exceptions.Exit(code)


@cli.command()
@click.argument("logs", nargs=-1, required=True)
@options.WIDTH
@options.NO_CACHE
def compare(logs: tuple[str, ...], width: int | None) -> None:
    """Put runs side by side; differences are to the first."""
    paper = options.paper(width)
    with _logs(_found(logs, DEFAULT_FOLDER)) as database:
        everyone = database.rows(
            "SELECT r.run, r.run_no, r.file, r.job_name, m.* EXCLUDE (run, run_no) FROM runs r "
            "LEFT JOIN run_medians m USING (run_no) ORDER BY run_no"
        )
        if len(everyone) < 2:
            raise click.UsageError("one run alone can't be compared; name two or more")
        for i, run in enumerate(everyone):
            job = f"  {run['job_name']}" if run["job_name"] else ""
            yet = "" if run["rounds"] else "  (no round has ended)"
            for line in sentence(f"{letter(i)}  {run['run']}{job}  {run['file']}{yet}", paper, indent=""):
                click.echo(line)
        click.echo()
        last = [
            {
                m["name"]: m
                for m in database.rows(
                    "SELECT * FROM last_metrics WHERE run_no = ? ORDER BY source, name", r["run_no"]
                )
            }
            for r in everyone
        ]
        made = comparison(everyone, last)
        click.echo(joined(fitted(made.columns, made.rows, paper.limit)), nl=False)


@cli.command("export")
@click.argument("logs", nargs=-1)
@options.RUNS
@click.option(
    "--parquet",
    "target",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write, or to add to.",
)
@options.NO_CACHE
def export_(logs: tuple[str, ...], folder: str, target: Path) -> None:
    """Write runs as Parquet files, partitioned by run, for any other engine.

    \b
    analyze export --parquet lake
    duckdb -c "SELECT run, count(*) FROM read_parquet('lake/rounds/**', hive_partitioning = true) GROUP BY 1"
    """
    with _logs(_found(logs, folder)) as database:
        for _, place in lake.write(database, target):
            click.echo(printable(str(place)))


def _fail(message: str, hint: str, code: int) -> int:
    for line in f"error: {message}".splitlines():
        _say(line)
    _say(f"hint: {hint}")
    return code


def run(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        result = cli.main(args=arguments, prog_name="analyze", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.ClickException as e:
        context = getattr(e, "ctx", None)
        path = context.command_path if context else "analyze"
        if isinstance(e, click.exceptions.NoArgsIsHelpError):
            e.show()
            return 2
        return _fail(e.format_message(), f"'{path} -h' shows how", 2)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except NothingUsableError as e:
        return _fail(str(e), e.hint, 1)
    except export.NoResultError as e:
        return _fail(str(e), "ask for rows, by SELECT", 2)
    except duckdb.Error as e:
        return _fail(told.query_error(e), "'analyze sql --schema' shows every view and column", 2)
    except (BrokenPipeError, SystemExit):  # click makes the one into the other
        # Whoever read our output has gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as e:
        said = f"{e.filename or 'output'}: {(e.strerror or str(e)).lower()}"
        return _fail(said, "see that it is there and may be read or written; -o names another place", 1)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run())


if __name__ == "__main__":
    main()
