"""The command line of the runner; talks on stderr, gives data on stdout."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from itertools import count as count_from
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
import msgspec
import trio
from msgspec import structs
from rich.console import Console
from rich.table import Table

from runner import check as checking
from runner import hostcheck, jobfile
from runner import past as reading
from runner.chaos import Chaos, Injector
from runner.connection import Connection
from runner.coordinator import Coordinator, Result
from runner.errors import JobError, LogError, RoundlogError, RunError
from runner.fleet import Connect
from runner.grouped import leaf
from runner.job import LoadedJob
from runner.jobagain import from_log
from runner.live import Background, Bar, Lines, Recent
from runner.past import Past
from runner.recorder import Continue, Listener, Recorder, lock
from runner.runfolder import RunFolder
from runner.transports import local
from schemas.text import printable

if TYPE_CHECKING:
    from runner.simulation import Simulation

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_UNREAD: list[TextIO] = []
"""What stands in for a stderr that nobody reads."""
_ENDLESS = 1 << 20
"""Columns of what is no terminal: a line stays one, for grep."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _showing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what is shown while a run goes on."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Also show when pushes, commands, pulls begin."),
        click.option("--progress", is_flag=True, help="On a terminal, show a bar instead of lines."),
        click.option("-q", "--quiet", is_flag=True, help="Show nothing while it runs, except errors."),
    ):
        command = option(command)
    return command


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
@click.option(
    "--chaos",
    type=click.Path(path_type=Path),
    help="A TOML file that says what faults to put in: see what the job survives.",
)
@_showing
def start(  # noqa: PLR0917 - click gives them by name
    job: Path | None, runs: Path, chaos: Path | None, quiet: bool, progress: bool, verbose: bool
) -> None:
    """Run JOB, a TOML file; without one, the built-in digits job.

    Prints the path of the log at the end. Exit code: 0 the run completed, 1 it failed,
    2 wrong usage or job file, 130 ended by Ctrl-C.
    """
    loaded = jobfile.load(builtin_job() if job is None else job)
    given = None if chaos is None else jobfile.load_chaos(chaos)
    if given is not None:
        loaded = structs.replace(loaded, chaos=structs.asdict(given))
    checking.describe(loaded)
    if given is not None and not quiet and (warning := checking.frozen(loaded.job, given.kinds)):
        _say(f"warning: {warning}")
    folder = RunFolder.create(runs, loaded.job.name, datetime.now(UTC))
    simulation = _simulation(loaded, folder)
    with Recorder(
        folder.log,
        folder.run,
        folder.folder,
        clock=_clock(simulation),
        began=None if simulation is None else simulation.began,
        secrets=loaded.secrets.values(),
        listeners=_listeners(simulation, quiet=quiet, progress=progress, verbose=verbose),
    ) as recorder:
        _execute(loaded, folder, recorder, simulation=simulation, quiet=quiet)


@cli.command()
@click.argument("log", type=click.Path(path_type=Path))
@_showing
def resume(log: Path, quiet: bool, progress: bool, verbose: bool) -> None:
    """Go on with the run of LOG, which was interrupted, failed or killed.

    At most the round that was open is repeated. Exit codes are those of start.
    """
    fd = lock(log)
    past = reading.read(log)
    if past.status == "completed":
        raise RunError(f"{log}: nothing to resume: the run is complete")
    if past.params_sha256 is None:
        raise RunError(f"{log}: nothing to resume: the run never had params; start the job anew")
    loaded = from_log(past.job)
    reading.verify(past, log)
    folder = RunFolder.of(log)
    simulation = _simulation(loaded, folder, past)
    gone = 0 if simulation else max(round((datetime.now(UTC) - past.ts).total_seconds() * 1e6), 0)
    with Recorder(
        log,
        past.run,
        folder.folder,
        clock=_clock(simulation),
        began=None if simulation is None else simulation.began,
        secrets=loaded.secrets.values(),
        listeners=_listeners(simulation, quiet=quiet, progress=progress, verbose=verbose),
        after=Continue(past.seq, past.t_us + gone, not past.has_newline),
        fd=fd,
    ) as recorder:
        _execute(loaded, folder, recorder, past=past, simulation=simulation, quiet=quiet)


@cli.command()
@click.argument("log", type=click.Path(path_type=Path))
def stop(log: Path) -> None:
    """Ask the running coordinator of LOG to stop after the current round."""
    try:
        os.close(lock(log, wait_s=0))
    except LogError:
        if not log.is_file():
            raise
    else:
        raise RunError(f"{log}: no coordinator is running this; there is nothing to stop")
    RunFolder.of(log).stop.touch()
    _say(f"{log}: will stop after the current round; go on with: runner resume {log}")


@cli.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--offline", is_flag=True, help="Don't connect to the hosts of the job.")
def check(job: Path, offline: bool) -> None:
    """Check JOB and show what would happen, without doing it.

    Hosts that are listed are tried, all at once. Exit code: 1 if one of them can't serve, 2 wrong job file.
    """
    loaded = jobfile.load(job)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _ENDLESS
    for topic, text in checking.describe(loaded):
        click.echo(_wrapped(f"{topic + ':':<11}", text, width))
    if loaded.job.worker and not offline:
        tried = trio.run(hostcheck.try_all, loaded)
        _show_hosts(tried)
        bad = [one for one in tried if one.wrong is not None]
        for one in bad:
            _error(f"worker {one.rank}, {one.host}: {one.wrong}")
        sys.exit(1 if bad else 0)


def _wrapped(head: str, text: str, width: int) -> str:
    """Return text beside its head, on as many lines as it needs; long names and commands stay whole."""
    lines = textwrap.wrap(text, max(width - len(head), 40), break_long_words=False, break_on_hyphens=False)
    return f"\n{'':{len(head)}}".join([head + (lines[0] if lines else ""), *lines[1:]])


def _show_hosts(tried: list[hostcheck.Tried]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker", justify="right")
    table.add_column("host", no_wrap=True)
    for name in hostcheck.COLUMNS:
        table.add_column(name, justify="right")
    for one in tried:
        figures = [one.figures.get(name, "-") for name in hostcheck.COLUMNS]
        table.add_row(str(one.rank), printable(one.host), *(printable(text) for text in figures))
    width = None if sys.stdout.isatty() else 200
    Console(file=sys.stdout, width=width, highlight=False, markup=False).print(table)


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


@cli.command()
@click.option("--seeds", metavar="A-B", help="The seeds to run, such as 0-99; or one of them.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Run seeds from 0, or from where --seeds begins, for so long.",
)
def soak(seeds: str | None, seconds: float | None) -> None:
    """Run random jobs of simulated workers under random faults, and check what their logs say.

    A seed that fails is shown with the command that runs it again. Exit code: 0 all is well, 1 it isn't.
    """
    from runner import soak as soaking  # noqa: PLC0415 - few need it

    if seeds is None and seconds is None:
        raise click.UsageError("say how many: --seeds 0-99, or --seconds 60")
    numbers = _numbers(seeds, endless=seconds is not None)
    began = time.monotonic()
    count = failed = 0
    for number in numbers:
        if seconds is not None and time.monotonic() - began > seconds:
            break
        count += 1
        wrong = soaking.soak(number)
        failed += bool(wrong)
        for what in wrong[:10]:
            _error(f"seed {number}: {what}")
        if wrong:
            _hint(f"runner soak --seeds {number}")
    click.echo(f"{count} seeds, {failed} failed")
    if failed:
        sys.exit(1)


def _numbers(seeds: str | None, *, endless: bool) -> Iterable[int]:
    """Return the seeds named as ``7`` or ``0-99``; on without end where the time is what is limited."""
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", seeds or "0")
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise click.BadParameter(
            f"{seeds!r} is neither a seed nor a range such as 0-99", param_hint="--seeds"
        )
    first = int(found[1])
    open_end = endless and (seeds is None or found[2] is None)
    return count_from(first) if open_end else range(first, int(found[2] or first) + 1)


def builtin_job() -> Path:
    """Return the job file of the built-in job."""
    return Path(str(files("runner"))) / "builtin" / "job.toml"


def _listeners(
    simulation: Simulation | None, *, quiet: bool, progress: bool, verbose: bool
) -> list[Listener]:
    listeners: list[Listener] = [] if simulation is None else [simulation.world]
    if not quiet:
        bar = progress and Console(file=sys.stderr).is_terminal
        listeners.append(Background(Bar(sys.stderr) if bar else Lines(sys.stderr, beginnings=verbose)))
    return listeners


def _simulation(loaded: LoadedJob, folder: RunFolder, past: Past | None = None) -> Simulation | None:
    if loaded.job.sim is None:
        return None
    from runner.simulation import Simulation  # noqa: PLC0415 - few need it

    return Simulation.of(loaded, folder, datetime.now(UTC), past)


def _clock(simulation: Simulation | None) -> Callable[[], float]:
    return time.perf_counter if simulation is None else simulation.clock.current_time


def _execute(
    loaded: LoadedJob,
    folder: RunFolder,
    recorder: Recorder,
    *,
    past: Past | None = None,
    simulation: Simulation | None,
    quiet: bool,
) -> None:
    """Run to the end, say how it went, and exit."""
    connect = _connector(loaded, folder) if simulation is None else simulation.connect
    if loaded.chaos is not None:
        chaos = msgspec.convert(loaded.chaos, Chaos)
        began_s = recorder.now_us() / 1e6
        connect = Injector(chaos, loaded.job.total_nodes, connect, began_s).connect
    coordinator = Coordinator(loaded, folder, recorder, connect, past)
    recent = Recent()
    recorder.listeners.append(recent)
    caught: list[int] = []
    result: Result | None = None
    failure: BaseException | None = None
    try:
        far = bool(loaded.job.worker)
        clock = None if simulation is None else simulation.clock
        result = trio.run(partial(_run, far=far), coordinator, folder, caught, clock=clock)
    except BaseExceptionGroup as group:
        failure = leaf(group)
        if not isinstance(failure, RunError):
            raise
    finally:
        for shown in recorder.listeners:
            shown.close()
            if isinstance(shown, Background) and shown.stuck:
                _leave_stderr()
    if failure is not None or (result is not None and result.status == "failed"):
        _error(f"the run failed: {failure or (result and result.reason)}")
        for line in recent.lines() if quiet else ():
            _say(line)
        _say(f"what was printed: {folder.folder / 'output'}")
    completed = result is not None and result.status == "completed"
    for worker in () if quiet else coordinator.out_of_reach:
        _say(f"{worker} was out of reach at the end: what it ran may still run there")
    if coordinator.out_of_reach and completed and not quiet:
        _hint(f"their processes there have ROUNDLOG_PROCESS={folder.run}.RANK. in their environment")
    if coordinator.resumable and not completed:
        _show_way_on(folder, failure, ends=bool(coordinator.out_of_reach), quiet=quiet)
    if result is not None and not quiet and result.params is not None:
        _say(f"params: {result.params}")
        _say(f"report: analyze report {folder.log}")
    click.echo(folder.log)
    codes = {"completed": 0, "failed": 1, "interrupted": 130}
    sys.exit(codes[result.status] if result is not None else 1 if failure is not None else 128 + caught[0])


def _show_way_on(folder: RunFolder, failure: BaseException | None, *, ends: bool, quiet: bool) -> None:
    """Say how to go on; `ends`: that ends first what runs where nobody was in reach."""
    if isinstance(failure, LogError):
        first = "make room on the disk" if folder.log.is_file() else "put the log back where it was"
        _hint(f"to go on, {first}, then: runner resume {folder.log}")
    elif not quiet:
        _say(f"to go on: runner resume {folder.log}" + (", which ends that first" if ends else ""))


async def _run(coordinator: Coordinator, folder: RunFolder, caught: list[int], *, far: bool) -> Result | None:
    """Run until it ends or a signal ends it; return None then, the signal is in `caught`."""
    result: Result | None = None
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(partial(_watch, signals, coordinator, folder, scope, caught, far=far))
                async with _session(far=far):
                    result = await coordinator.run()
            nursery.cancel_scope.cancel()
    return result


async def _watch(
    signals: AsyncIterator[int],
    coordinator: Coordinator,
    folder: RunFolder,
    scope: trio.CancelScope,
    caught: list[int],
    *,
    far: bool,
) -> None:
    async for number in signals:
        caught.append(number)
        if len(caught) > 1:  # asked twice: end at once, but leave no process behind
            local.end_marked(folder.run)
            if far:
                _say("ended at once: commands may still run on the workers, and their files are there")
                _hint(f"runner resume {folder.log} ends them and goes on; or end them there by hand")
            elif coordinator.resumable:
                _hint(f"to go on: runner resume {folder.log}")
            os._exit(128 + number)
        coordinator.interrupted_by = f"interrupted by {signal.Signals(number).name}"
        scope.cancel()


async def _connect(folder: RunFolder, rank: int) -> Connection:
    return await local.connect(folder.worker(rank), f"{folder.run}.{rank}")


def _connector(loaded: LoadedJob, folder: RunFolder) -> Connect:
    """Return what makes connections: to processes here, or to the hosts that are listed."""
    if not loaded.job.worker:
        return partial(_connect, folder)
    from runner.transports.ssh import Machines  # noqa: PLC0415 - asyncssh is slow to import

    return Machines(loaded.job.ssh, loaded.machines(), folder.run, folder.folder / "host_keys").connect


@asynccontextmanager
async def _session(*, far: bool) -> AsyncIterator[None]:
    """Have asyncio's loop run beside trio's tasks while there are connections over SSH."""
    if not far:
        yield
        return
    from runner.transports.ssh import session  # noqa: PLC0415 - likewise

    async with session():
        yield


def _say(text: str) -> None:
    """Talk on stderr, if anyone listens, without what could steer the terminal."""
    with suppress(OSError, ValueError):
        click.echo(printable(text), err=True)


def _error(text: str) -> None:
    _say(f"error: {text}")


def _hint(text: str) -> None:
    _say(f"hint: {text}")


def _leave_stderr() -> None:
    """Say no more on stderr, whose reader doesn't read: what waits for it would wait for ever."""
    sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - stays open to the end
    _UNREAD.append(sys.stderr)


def _open_standard_streams() -> None:
    """Give streams that were closed to /dev/null, or else the log would become one of them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - lives as long as we
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 - likewise


def main() -> None:
    """Run the command line and exit: 2 for wrong usage or job file, 1 for a run that failed."""
    try:
        _main()
    except SystemExit as e:
        if _UNREAD:  # Python would wait at its exit for the thread that waits for the reader
            sys.stdout.flush()
            os._exit(e.code if isinstance(e.code, int) else 1)
        raise


def _main() -> None:
    _open_standard_streams()
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        sys.exit(2)
    except click.ClickException as e:
        _error(e.format_message())
        if isinstance(e, click.UsageError):
            _hint(f"{e.ctx.command_path if e.ctx else 'runner'} -h shows how")
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
    except BrokenPipeError:  # whoever read stdout has gone; Python must not complain about it at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except OSError as e:
        _error(str(e))
        sys.exit(1)
