"""The command line of the runner; talks on stderr, gives data on stdout."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path

import click
import trio
from rich.console import Console

from runner import check as checking
from runner import jobfile
from runner.connection import Connection
from runner.coordinator import Coordinator, Result
from runner.errors import JobError, RoundlogError
from runner.job import LoadedJob
from runner.live import Bar, Lines, Listener
from runner.recorder import Recorder
from runner.runfolder import RunFolder
from runner.transports import local

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.group(context_settings=_SETTINGS)
@click.version_option(package_name="roundlog", prog_name="runner")
def cli() -> None:
    """Run round-based training over workers, and write down what happened."""


@cli.command()
@click.argument("job", required=False, type=click.Path(path_type=Path))
@click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder that gets the log and the files of the run.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show nothing while it runs, except errors.")
@click.option("--progress", is_flag=True, help="On a terminal, show a bar instead of a line an event.")
@click.option("-v", "--verbose", is_flag=True, help="Also show when pushes, commands and pulls begin.")
def start(job: Path | None, runs: Path, quiet: bool, progress: bool, verbose: bool) -> None:
    """Run JOB, a TOML file; without one, the built-in digits job.

    Prints the path of the log at the end. Exit code: 0 the run completed, 1 it failed,
    2 wrong usage or job file, 130 ended by Ctrl-C.
    """
    loaded = jobfile.load(builtin_job() if job is None else job)
    checking.describe(loaded)
    folder = RunFolder.create(runs, loaded.job.name, datetime.now(UTC))
    code = trio.run(_run, loaded, folder, _listeners(quiet=quiet, progress=progress, verbose=verbose), quiet)
    click.echo(folder.log)
    sys.exit(code)


@cli.command()
@click.argument("job", type=click.Path(path_type=Path))
def check(job: Path) -> None:
    """Check JOB and show what would happen, without doing it."""
    for topic, text in checking.describe(jobfile.load(job)):
        click.echo(f"{topic + ':':<11}{text}")


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def init(directory: Path) -> None:
    """Write a small job into DIRECTORY that runs as it is, to be turned into your own."""
    made = [directory / name for name in ("job.toml", "train.py")]
    for path in made:
        if path.exists():
            raise click.ClickException(f"{path} exists already; nothing was written")
    directory.mkdir(parents=True, exist_ok=True)
    for path in made:
        path.write_bytes((files("runner") / "scaffold" / path.name).read_bytes())
        click.echo(path)
    _hint(f"runner check {made[0]}; runner start {made[0]}; then edit both")


def builtin_job() -> Path:
    """Return the job file of the built-in job."""
    return Path(str(files("runner"))) / "builtin" / "job.toml"


def _listeners(*, quiet: bool, progress: bool, verbose: bool) -> list[Listener]:
    if quiet:
        return []
    if progress and Console(file=sys.stderr).is_terminal:
        return [Bar(sys.stderr)]
    return [Lines(sys.stderr, beginnings=verbose)]


async def _run(loaded: LoadedJob, folder: RunFolder, listeners: list[Listener], quiet: bool) -> int:
    """Run a job until it ends or a signal ends it, and return the exit code."""
    with (
        trio.open_signal_receiver(*_SIGNALS) as signals,
        Recorder(
            folder.log,
            folder.run,
            folder.folder,
            clock=trio.current_time,
            secrets=loaded.secrets.values(),
            listeners=listeners,
        ) as recorder,
    ):
        coordinator = Coordinator(loaded, folder, recorder, partial(_connect, folder))
        caught: list[int] = []
        result: Result | None = None
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(_watch, signals, coordinator, scope, caught)
                result = await coordinator.run()
            nursery.cancel_scope.cancel()
    if result is None:
        return 128 + caught[0]
    if result.status == "failed":
        _error(f"the run failed: {result.reason}")
    if not quiet and result.params is not None:
        click.echo(f"params: {result.params}", err=True)
        click.echo(f"report: analyze report {folder.log}", err=True)
    return 0 if result.status == "completed" else 1


async def _watch(
    signals: AsyncIterator[int], coordinator: Coordinator, scope: trio.CancelScope, caught: list[int]
) -> None:
    async for number in signals:
        if not caught:
            caught.append(number)
            coordinator.interrupted_by = f"interrupted by {signal.Signals(number).name}"
            scope.cancel()


async def _connect(folder: RunFolder, rank: int) -> Connection:
    return await local.connect(folder.worker(rank), f"{folder.run}.{rank}")


def _error(text: str) -> None:
    click.echo(f"error: {text}", err=True)


def _hint(text: str) -> None:
    click.echo(f"hint: {text}", err=True)


def main() -> None:
    """Run the command line and exit: 2 for wrong usage or job file, 1 for a run that failed."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except JobError as e:
        for problem in e.problems:
            _error(problem.render(e.file))
        _hint(f"mend {e.file} and try it with: runner check {e.file}")
        sys.exit(2)
    except RoundlogError as e:
        _error(str(e))
        sys.exit(1)
    except OSError as e:
        _error(str(e))
        sys.exit(1)
