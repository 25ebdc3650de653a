"""Writes job files, starts the real runner on them and reads their logs; the one place for all of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import jsonschema
import numpy as np
import trio

from schemas import jsonschema as contract

RUNNER = Path(sys.executable).parent / "runner"
COPY = 'cp "$ROUNDLOG_PARAMS" "$ROUNDLOG_WEIGHTS"'
PATIENCE_S = 60.0
PARAMS = np.arange(6, dtype=np.float32).reshape(2, 3)


def toml(value: Any) -> str:
    """Return a value as TOML writes it on one line."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            shown = json.dumps(value, ensure_ascii=False)
            return shown.replace("\x7f", "\\u007f")
        case dict():
            return "{ " + ", ".join(f"{toml(str(k))} = {toml(v)}" for k, v in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return str(value)


def job_text(job: Mapping[str, Any]) -> str:
    return "".join(f"{toml(key)} = {toml(value)}\n" for key, value in job.items())


def write_job(folder: Path, **changes: Any) -> Path:
    """Write a job of two rounds and two workers that hand back the params, and its file of params.

    A dict changes keys of that table, None takes a key away, any other value takes its place.
    """
    job: dict[str, Any] = {
        "name": "t",
        "rounds": 2,
        "workers": 2,
        "params": {"file": "params.npy"},
        "train": {"command": COPY, "timeout_s": 60},
    }
    for key, value in changes.items():
        job[key] = {**job.get(key, {}), **value} if isinstance(value, dict) else value
    train = job["train"]
    command = train.get("command") if isinstance(train, dict) else None
    if isinstance(command, list) and command[:1] in (["{python}"], [sys.executable]):
        # Nothing of ours runs in it: to measure its coverage would only take a third of its time.
        train["env"] = {"COVERAGE_PROCESS_CONFIG": "", **train.get("env", {})}
    for place in [job, *(v for v in job.values() if isinstance(v, dict))]:
        for key in [key for key, value in place.items() if value is None]:
            del place[key]
    folder.mkdir(exist_ok=True)
    np.save(folder / "params.npy", PARAMS)
    path = folder / "job.toml"
    path.write_text(job_text(job), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Run:
    """What the runner said and wrote."""

    code: int
    out: str
    err: str
    log: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_log(self.log)

    def kind(self, *kinds: str, **fields: Any) -> list[dict[str, Any]]:
        return [
            e for e in self.events if e["kind"] in kinds and all(e[name] == v for name, v in fields.items())
        ]

    def one(self, kind: str, **fields: Any) -> dict[str, Any]:
        (event,) = self.kind(kind, **fields)
        return event

    @property
    def params(self) -> Path:
        return self.log.parent / self.one("run_end")["params_path"]


def read_log(path: Path, *, torn: bool = False) -> list[dict[str, Any]]:
    """Return the events of a log; each must be valid by the schema, and the numbers without a gap.

    With `torn`, lines that a kill has cut are passed over.
    """
    data = path.read_bytes()
    assert data.endswith(b"\n")
    events = []
    for line in data.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            assert torn, line
    assert [e["seq"] for e in events] == list(range(len(events)))
    assert [e["t"] for e in events] == sorted(e["t"] for e in events)
    for event in events:
        assert_valid(event)
    return events


@cache
def _validator(kind: str) -> jsonschema.Draft202012Validator:
    schema = contract.generate()["$defs"][kind]
    return jsonschema.Draft202012Validator({**schema, "additionalProperties": False})


def assert_valid(event: Mapping[str, Any]) -> None:
    """See that an event is what the schema says, and has no field that it doesn't."""
    problems = [e.message for e in _validator(event["kind"]).iter_errors(event)]
    assert not problems, (event, problems)


def unmeasured() -> dict[str, str]:
    """Return the environment of a process whose coverage can't be kept: it couldn't write it."""
    return {name: value for name, value in environ().items() if not name.startswith("COVERAGE_")}


def environ(**more: str | None) -> dict[str, str]:
    given = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}
    return {name: value for name, value in given.items() if value is not None}


def runner(*args: object, code: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end; `code` is the exit code that is expected, None for any."""
    options.setdefault("env", environ())
    done = subprocess.run(
        [RUNNER, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
    return done


def start(job: Path, *args: object, code: int | None = 0, **options: Any) -> Run:
    """Run a job in `runs` beside its file; stdout must be the path of its log, alone."""
    runs = job.parent / "runs"
    done = runner("start", job, "--runs", runs, *args, code=code, **options)
    (log,) = done.stdout.splitlines()
    return Run(done.returncode, done.stdout, done.stderr, Path(log))


class Started:
    """A run that is under way; `within` begins its command."""

    def __init__(self, job: Path, *args: object, within: Sequence[str] = (), **options: Any) -> None:
        self.runs = job.parent / "runs"
        self.process = subprocess.Popen(
            [*within, RUNNER, "start", job, "--runs", self.runs, *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=options.pop("env", None) or environ(),
            **options,
        )

    def end(self, number: signal.Signals | None = None) -> Run:
        """Send a signal, wait for the end, and return what was written."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err, err
        return Run(self.process.returncode, out, err, Path(out.strip()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def eventually(holds: Callable[[], Any], what: str = "it", within_s: float = PATIENCE_S) -> None:
    """Ask again and again until it holds; fail at the deadline."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s} s"
        time.sleep(0.01)


async def eventually_async(holds: Callable[[], Any], what: str = "it", within_s: float = PATIENCE_S) -> None:
    """Likewise, while other tasks go on."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s} s"
        await trio.sleep(0.01)


def alive(pid: int) -> bool:
    """Say whether a process of this machine runs; one that only waits to be reaped doesn't."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def marked(run: str) -> list[int]:
    """Return the processes that a run has started and that are still there."""
    mark = f"ROUNDLOG_PROCESS={run}.".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            ours = any(part.startswith(mark) for part in entry.read_bytes().split(b"\0"))
        except OSError:
            continue
        if ours and alive(int(entry.parent.name)):
            found.append(int(entry.parent.name))
    return found


def processes_under(folder: Path) -> list[int]:
    """Return the processes of all runs whose logs are below a folder."""
    return [pid for log in folder.rglob("*.jsonl") for pid in marked(log.stem)]
