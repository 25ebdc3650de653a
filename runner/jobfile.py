"""Reads and checks a job file, telling all its mistakes at once; runs nothing of it."""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from runner import simjob
from runner.arrays import FORMS
from runner.chaos import Chaos
from runner.errors import JobError, Problem
from runner.hosts import Host, parse_line, resolved
from runner.job import (
    COMMAND,
    RANK,
    ROUNDS,
    ROUNDS_HERE,
    SHARD,
    WIRE,
    Aggregate,
    FileEntry,
    Job,
    LoadedJob,
    count_of,
    named,
)
from runner.optimizers import USES, Settings
from runner.recipe import METHODS

_SHOWN = 60
_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def load(file: Path, environ: Mapping[str, str] = os.environ) -> LoadedJob:
    """Read a job file.

    Args:
        file: a TOML file.
        environ: where the values of secrets are looked up.

    Raises:
        JobError: it can't be read or is wrong; has every mistake that was found.
    """
    raw, check = _read(file)
    folder = file.resolve().parent
    check.hosts(raw, folder)
    check.table(raw, Job, "")
    check.meaning(raw, folder, environ)
    check.done(str(file))
    job = msgspec.convert(raw, Job)
    return LoadedJob(
        job=job,
        file=file.resolve(),
        folder=folder,
        secrets={name: environ[name] for name in job.train.secrets},
    )


def load_chaos(file: Path) -> Chaos:
    """Read a chaos file.

    Raises:
        JobError: it can't be read or is wrong; has every mistake that was found.
    """
    raw, check = _read(file)
    check.table(raw, Chaos, "")
    check.done(str(file))
    return msgspec.convert(raw, Chaos)


def _read(file: Path) -> tuple[dict[str, Any], _Check]:
    """Return what a TOML file says, and what its mistakes are to be added to.

    Raises:
        JobError: it can't be read.
    """
    shown = str(file)
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as e:
        raise JobError(
            shown, [Problem("file", f"can't be read ({e.strerror})", "the path of a readable TOML file")]
        ) from e
    except UnicodeDecodeError as e:
        raise JobError(shown, [Problem("file", f"byte {e.start} is not UTF-8", "UTF-8 text")]) from e
    try:
        return tomllib.loads(text), _Check(_lines(text))
    except tomllib.TOMLDecodeError as e:
        raise JobError(shown, [_syntax(str(e))]) from e


def _syntax(message: str) -> Problem:
    found = re.search(r" \(at line (\d+), column (\d+)\)", message)
    if found is None:
        return Problem("syntax", message, "TOML 1.0")
    said = message.replace(found[0], "")
    return Problem("syntax", f"{said} in column {found[2]}", "TOML 1.0", int(found[1]))


def _lines(text: str) -> dict[str, int]:
    """Find the line of each key that stands at the start of one; for messages only."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[+)\s*([\w.-]+)\s*\]+", line):
            name = header[2]
            if header[1] == "[[":
                name += f"[{sum(key.startswith(name + '[') and key.endswith(']') for key in found)}]"
            table = name + "."
            found.setdefault(name, number)
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            found.setdefault(table + key[1], number)
    return found


def _show(value: Any) -> str:
    text = repr(value)
    return f"received {text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}"


def _hints(cls: type[Struct]) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _there(path: Path, test: Callable[[Path], bool]) -> bool:
    try:
        return test(path)
    except (OSError, ValueError):  # no file can have such a name
        return False


def _struct_in(hint: Any) -> type[Struct] | None:
    """Return the table type of an annotation, if it is one."""
    if get_origin(hint) is Annotated:
        return _struct_in(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return next((found for arg in get_args(hint) if (found := _struct_in(arg))), None)
    return hint if isinstance(hint, type) and issubclass(hint, Struct) else None


def _allowed(hint: Any) -> str:
    return next(
        (a.description for a in get_args(hint)[1:] if isinstance(a, Meta) and a.description), "another value"
    )


def _structs_in(hint: Any) -> type[Struct] | None:
    """Return the table type of an annotation of a list of tables, if it is one."""
    args = get_args(get_args(hint)[0]) if get_origin(hint) is Annotated else ()
    return _struct_in(args[0]) if len(args) == 2 and args[1] is ... and isinstance(args[0], type) else None


class _Check:
    """Collects the mistakes of one job file."""

    def __init__(self, lines: dict[str, int]) -> None:
        self.lines = lines
        self.problems: list[Problem] = []
        self.wrong: set[str] = set()

    def done(self, file: str) -> None:
        """Raise what was found.

        Raises:
            JobError: something was.
        """
        if self.problems:
            raise JobError(file, sorted(self.problems, key=lambda problem: problem.line or 0))

    def add(self, key: str, received: str, allowed: str) -> None:
        whole = re.sub(r"\[\d+\]$", "", key)  # an entry of a list stands at its list's line
        line = self.lines.get(key) or self.lines.get(whole) or self.lines.get(key.rpartition(".")[0])
        self.problems.append(Problem(key, received, allowed, line))
        self.wrong.add(key)

    def hosts(self, raw: dict[str, Any], folder: Path) -> None:
        """Put the workers that are listed as hosts, here or in a file, into one list, and count them."""
        tables = raw.get("worker", [])
        if not ("hosts" in raw or "worker" in raw) or not isinstance(tables, list):
            return
        listed: list[Host] = []
        for number, entry in enumerate(tables):
            key = f"worker[{number}]"
            before = len(self.problems)
            if not isinstance(entry, dict):
                self.add(key, _show(entry), "a table with a host")
                continue
            self.table(entry, Host, f"{key}.")
            if len(self.problems) == before:
                try:
                    listed.append(resolved(msgspec.convert(entry, Host)))
                except ValueError as e:
                    self.add(f"{key}.host", str(e), _allowed(_hints(Host)["host"]))
        if isinstance(raw.get("hosts"), str):
            listed += self._hosts_file(folder / raw["hosts"])
        for index, host in enumerate(listed):
            if host.host_key not in {None, "known", "accept-new"} and " " not in str(host.host_key):
                self.add(
                    f"worker[{index}].host_key", _show(host.host_key), _allowed(_hints(Host)["host_key"])
                )
        spares = raw.get("spares", 0)
        if "workers" in raw:
            self.add("workers", f"{_show(raw['workers'])} beside listed hosts", "none: hosts are counted")
        elif "sim" in raw:
            self.add("worker", "is given", "none beside [sim]: simulated workers have no host")
        elif not self.problems and isinstance(spares, int) and len(listed) <= spares:
            self.add("spares", f"{_show(spares)} with {len(listed)} hosts", "fewer than there are hosts")
        raw["worker"] = [msgspec.to_builtins(host) for host in listed]
        if isinstance(spares, int):
            raw["workers"] = max(len(listed) - spares, 1)

    def _hosts_file(self, path: Path) -> list[Host]:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            self.add("hosts", f"can't read {str(path)!r}: {getattr(e, 'strerror', e)}", "a file of hosts")
            return []
        listed: list[Host] = []
        for number, line in enumerate(lines, start=1):
            try:
                host = parse_line(line)
            except ValueError as e:
                self.add("hosts", f"{path.name}:{number}: {e}", "a host and key=value, one a line")
            else:
                listed += [host] if host is not None else []
        if not lines or not (listed or self.problems):
            self.add("hosts", f"{path.name} lists no host", "one a line")
        return listed

    def table(self, raw: Any, cls: type[Struct], prefix: str) -> None:
        """Check the types and ranges of one table, key by key."""
        hints = _hints(cls)
        for key in raw:
            if key not in hints:
                near = difflib.get_close_matches(key, hints, 1)
                meant = f" (did you mean {near[0]!r}?)" if near else ""
                self.add(prefix + key, f"unknown key{meant}", ", ".join(hints))
        for field in msgspec.structs.fields(cls):
            key, hint = prefix + field.encode_name, hints[field.name]
            if field.encode_name not in raw:
                if field.required:
                    self.add(key, "missing", _allowed(hint))
                continue
            value = raw[field.encode_name]
            nested = _struct_in(hint)
            if nested is not None and isinstance(value, dict):
                self.table(value, nested, key + ".")
                continue
            each = _structs_in(hint)
            if each is not None and isinstance(value, list) and all(isinstance(v, dict) for v in value):
                for number, inner in enumerate(value):
                    self.table(inner, each, f"{key}[{number}].")
                continue
            try:
                msgspec.convert(value, hint)
            except msgspec.ValidationError:
                self.add(key, _show(value), _allowed(hint))

    def meaning(self, raw: dict[str, Any], folder: Path, environ: Mapping[str, str]) -> None:
        """Check what types can't say, as far as the parts it needs are right."""
        simulated = "sim" in raw
        self._params(self._part(raw, "params"), folder, needed=not simulated)
        if simulated:
            self._sim(raw, folder)
        else:
            self._train(raw)
        for key in ("quorum", "close_at"):
            self._count(f"policy.{key}", self._part(raw, "policy").get(key), raw.get("workers"))
        self._closing(self._part(raw, "policy"), raw.get("workers"))
        self._deadlines(self._part(raw, "deadlines"))
        self._aggregate(self._part(raw, "aggregate"), raw.get("workers"))
        for table in ("params", "train", "evaluate"):
            part = self._part(raw, table)
            self._command(f"{table}.command", part.get("command"))
            self._env(f"{table}.env", part.get("env"))
        train = self._part(raw, "train")
        if "train.secrets" not in self.wrong:
            for name in train.get("secrets", ()):
                if not environ.get(name):
                    self.add(
                        "train.secrets",
                        f"{name!r} is not set in this environment",
                        f"names of variables that are set: export {name}=... first",
                    )
        workers, spares = raw.get("workers"), raw.get("spares", 0)
        if "train.files" not in self.wrong:
            counts = (1, 0)
            if not {"workers", "spares"} & self.wrong and isinstance(workers, int):
                counts = (workers, spares)
            taken = {WIRE.name: "[wire] does"} if self._part(raw, "wire") else {}
            self._files(train.get("files", ()), counts, folder, taken)

    def _part(self, raw: dict[str, Any], name: str) -> dict[str, Any]:
        part = raw.get(name)
        return part if isinstance(part, dict) else {}

    def _train(self, raw: dict[str, Any]) -> None:
        if "train" not in raw:
            self.add("train", "missing", "a table; or [sim]: workers are simulated")
        elif isinstance(raw["train"], dict) and "command" not in raw["train"]:
            self.add("train.command", "missing", COMMAND)

    def _sim(self, raw: dict[str, Any], folder: Path) -> None:
        """Check a job of simulated workers: what is for real ones has no place in it."""
        never = "none beside [sim]: "
        for table, name, why in (
            ("train", "command", "the training is simulated"),
            ("params", "command", "params.file, or params made up"),
            ("evaluate", "command", "there is nothing to measure"),
            ("train", "resident", "no command stays"),
            ("deadlines", "idle_s", "a simulated command prints nothing"),
        ):
            if name in self._part(raw, table):
                self.add(f"{table}.{name}", "is given", never + why)
        for name in ("hosts", "worker", "ssh", "wire"):
            if name in raw:
                self.add(name, "is given", never + "no machine is used")
        workers, spares = raw.get("workers"), raw.get("spares", 0)
        known = isinstance(workers, int) and isinstance(spares, int)
        nodes = workers + spares if known else None
        for problem in simjob.mistakes(self._part(raw, "sim"), self.wrong, folder, nodes):
            self.add(*problem)

    def _params(self, params: dict[str, Any], folder: Path, *, needed: bool) -> None:
        if {"params.file", "params.command", "params"} & self.wrong:
            return
        ways = [way for way in ("file", "command") if way in params]
        if not ways and not needed:
            return
        if len(ways) != 1:
            self.add(
                "params",
                "both file and command" if ways else "neither file nor command",
                "exactly one of: file (path of an .npz, .npy or .safetensors file), "
                "command (writes $ROUNDLOG_PARAMS)",
            )
        elif ways == ["file"]:
            file = folder / params["file"]
            if file.suffix.removeprefix(".") not in FORMS:
                ends = " or ".join(f".{form}" for form in FORMS)
                self.add("params.file", _show(params["file"]), f"a path that ends in {ends}")
            elif not _there(file, Path.is_file):
                self.add("params.file", f"no such file: {str(file)!r}", "a file that exists")

    def _count(self, key: str, given: Any, workers: Any) -> None:
        if key in self.wrong or not isinstance(given, int | float):
            return
        known = isinstance(workers, int) and "workers" not in self.wrong
        most = workers if known else math.inf
        fits = 1 <= given <= most if isinstance(given, int) else 0 < given <= 1
        if not fits:
            shown = f"1 to {workers} (workers)" if known else "1 to the number of workers"
            self.add(key, _show(given), f"{shown}, or a share: above 0.0, at most 1.0")

    def _closing(self, policy: dict[str, Any], workers: Any) -> None:
        """See that a round is not closed before it can count."""
        at = policy.get("close_at")
        if at is None and policy.get("grace_s") and "policy.grace_s" not in self.wrong:
            said = f"{_show(policy['grace_s'])} without policy.close_at"
            self.add("policy.grace_s", said, "only with policy.close_at: else all workers are waited for")
        if (
            at is None
            or {"policy.quorum", "policy.close_at", "workers"} & self.wrong
            or not isinstance(workers, int)
        ):
            return
        needed = count_of(policy.get("quorum", min(2, workers)), workers)
        if count_of(at, workers) < needed:
            said = f"{_show(at)}: the round is closed with {count_of(at, workers)} and counts with {needed}"
            self.add("policy.close_at", said, "no less than policy.quorum")

    def _deadlines(self, deadlines: dict[str, Any]) -> None:
        for name in ("idle_s", "round_s"):
            given = deadlines.get(name)
            key = f"deadlines.{name}"
            if key not in self.wrong and isinstance(given, int | float) and not 0 < given <= 31_536_000:
                self.add(key, _show(given), "a number of seconds above 0, at most 31536000 (a year)")
        floor, ceiling = deadlines.get("auto_floor_s", 30), deadlines.get("auto_ceiling_s", 3600)
        known = isinstance(floor, int | float) and isinstance(ceiling, int | float)
        if known and floor > ceiling:
            self.add("deadlines.auto_floor_s", _show(floor), f"at most auto_ceiling_s, which is {ceiling}")

    def _aggregate(self, given: dict[str, Any], workers: Any) -> None:
        method, optimizer = given.get("method", "mean"), given.get("optimizer")
        if "aggregate.method" not in self.wrong and method not in METHODS and not _OWN.match(method):
            self.add("aggregate.method", _show(method), _allowed(_hints(Aggregate)["method"]))
        of_methods = {"trim": ("trimmed_mean",), "byzantine": ("krum", "multi_krum"), "keep": ("multi_krum",)}
        for key, methods in of_methods.items():
            if key in given and method not in methods:
                only = " or ".join(f'"{name}"' for name in methods)
                shown = f"{_show(given[key])} with method {method!r}"
                self.add(f"aggregate.{key}", shown, f"only with {only}")
        for key in Settings.__slots__:
            if key in given and key not in USES.get(str(optimizer), ()):
                having = ", ".join(f'"{name}"' for name, keys in USES.items() if key in keys)
                beside = "without an optimizer" if optimizer is None else f"with optimizer {optimizer!r}"
                shown = f"{_show(given[key])} {beside}"
                self.add(f"aggregate.{key}", shown, f"only with one of {having}")
        trim, liars = given.get("trim", 0.1), given.get("byzantine", 0)
        if "aggregate.trim" not in self.wrong and not 0 <= trim < 0.5:
            self.add("aggregate.trim", _show(trim), _allowed(_hints(Aggregate)["trim"]))
        known = not {"aggregate.byzantine", "workers"} & self.wrong and isinstance(workers, int)
        if known and liars and workers < 2 * liars + 3:
            said = f"{_show(liars)} with {workers} workers"
            self.add("aggregate.byzantine", said, f"2 x byzantine + 3 workers or more: {2 * liars + 3}")

    def _command(self, key: str, command: Any) -> None:
        if key not in self.wrong and isinstance(command, list) and not command:
            self.add(key, "received []", "a list with at least the program's name, or a string")
        words = command if isinstance(command, list) else [command]
        if key not in self.wrong and any(isinstance(word, str) and "\0" in word for word in words):
            self.add(key, "received a NUL character", "text without NUL characters")

    def _env(self, key: str, env: Any) -> None:
        if key in self.wrong or not isinstance(env, dict):
            return
        for name, value in env.items():
            if not _VARIABLE.match(name) or name.startswith("ROUNDLOG_"):
                self.add(
                    f"{key}.{name}",
                    f"received the name {name!r}",
                    "letters, digits and '_', not beginning with a digit or ROUNDLOG_",
                )
            if isinstance(value, bool) or "\0" in str(value):
                self.add(f"{key}.{name}", _show(value), "a string without NUL characters, or a number")

    def _files(self, files: Any, counts: tuple[int, int], folder: Path, targets: dict[str, str]) -> None:
        for number, entry in enumerate(files):
            given = FileEntry(source=entry) if isinstance(entry, str) else msgspec.convert(entry, FileEntry)
            key = f"train.files[{number}]"
            ours = given.source == ROUNDS_HERE
            name = given.target or (ROUNDS.name if ours else PurePosixPath(given.source).name)
            target = PurePosixPath(name)
            if target.is_absolute() or ".." in target.parts or not target.parts or "\0" in name:
                self.add(key, f"target {name!r}", "a relative path inside the worker's folder")
            elif re.match(r"(params|weights|metrics)-\d+\.", target.name):
                self.add(key, f"target {name!r}", "a name the rounds don't use (params-, weights-, metrics-)")
            if name in targets:
                self.add(key, f"target {name!r}, as {targets[name]}", "a target of its own")
            targets[name] = key
            wanted = {named(given.source, rank, rank) for rank in range(sum(counts))}
            if SHARD in given.source and RANK not in given.source:
                wanted = {named(given.source, shard, shard) for shard in range(counts[0])}
            if ours:
                wanted = set()
            missing = sorted(path for path in wanted if not _there(folder / path, Path.exists))
            if missing:
                others = f" (nor {len(missing) - 1} more of them)" if len(missing) > 1 else ""
                path = folder / missing[0]
                self.add(key, f"no such file or folder: {str(path)!r}{others}", "a path that exists")
