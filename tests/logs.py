"""Builds logs of the current version, and of version 0, from a compact description; for tests alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyze.shapes import of_kind

SHA = hashlib.sha256(b"params").hexdigest()
RUN = "20260301-120000-demo"


@dataclass
class Log:
    """Events as dicts, with a clock that is moved by hand."""

    run: str = RUN
    workers: int = 4
    rounds: int = 8
    name: str = "digits"
    t: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind, round_=None, rank=None, *, t=None, **fields):
        self.t = self.t if t is None else max(self.t, t)
        seconds = round(self.t, 6)
        minutes = int(seconds // 60)
        event = {
            "v": 1,
            "run": self.run,
            "seq": len(self.events),
            "t": seconds,
            "ts": f"2026-03-01T{12 + minutes // 60:02}:{minutes % 60:02}:{seconds % 60:09.6f}Z",
            "kind": kind,
            "round": round_,
            "rank": rank,
            **fields,
        }
        for name, shape in of_kind(kind).items():
            if shape.required and shape.nullable:
                event.setdefault(name, None)
        self.events.append(event)
        return event

    def start(self, **job):
        self.add(
            "run_start",
            job={"name": self.name, "rounds": self.rounds, **job},
            total_nodes=self.workers,
            versions={"roundlog": "0.1.0", "python": "3.11.9"},
            host="coordinator",
            pid=4711,
            params_sha256=SHA,
            params_path=f"{self.run}/params-init.npz",
            params_bytes=9400,
        )

    def up(self, rank, round_=None):
        self.add("worker_up", round_, rank, address=f"local:workers/{rank}", facts={"cpus": 2})

    def round_start(self, round_, attempt=1, active=None):
        self.began = self.t
        self.add(
            "round_start",
            round_,
            active_nodes=self.workers if active is None else active,
            total_nodes=self.workers,
            params_sha256=SHA,
            attempt=attempt,
        )

    def round_end(self, round_, survivors, outcome="ok", reason=None):
        self.add(
            "round_end",
            round_,
            survivors=survivors,
            total_nodes=self.workers,
            duration_s=round(self.t - self.began, 6),
            outcome=outcome,
            reason=reason,
        )

    def aggregate(self, round_, ranks, took=0.012, *, error=None):
        self.t += took
        self.add(
            "aggregate",
            round_,
            num_workers=len(ranks),
            ranks=ranks,
            method="mean",
            weighting="num_samples",
            weight_norm=None if error else round(12.5 - 3.0 / (round_ + 1), 4),
            delta_norm=None if error else round(1.9 / (round_ + 1), 4),
            duration_s=took,
            params_sha256=None if error else SHA,
            params_path=None if error else f"{self.run}/params-{round_:04}.npz",
            error=error,
            shares=[round(1 / len(ranks), 6)] * len(ranks) if ranks else [],
            update_norms=[1, 0.25, None][: len(ranks)],
            cosines=[0.9] * len(ranks),
            clipped=[],
            state_sha256={},
        )

    def evaluate(self, round_, values, took=0.18):
        self.add("exec_start", round_, command="python evaluate.py", attempt=1)
        self.t += took
        self.add("exec", round_, **_exec(self.run, None, took, 0, "ok", None))
        self.add("metric", round_, values=values, num_samples=359)

    def end(self, rounds, status="completed", reason=None):
        self.add(
            "run_end",
            status=status,
            reason=reason,
            rounds=rounds,
            duration_s=round(self.t, 6),
            params_path=f"{self.run}/params-{max(rounds - 1, 0):04}.npz",
        )

    def down(
        self, rank, round_, reason="lost", detail="connection closed by the far side", *, for_good=False
    ):
        self.add("worker_down", round_, rank, reason=reason, detail=detail, for_good=for_good)

    def lines(self):
        return [
            json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() for event in self.events
        ]

    def text(self):
        return b"".join(line + b"\n" for line in self.lines())

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.run}.jsonl"
        path.write_bytes(self.text())
        return path


def _exec(run, rank, took, code, *said):
    tail, error = said
    return {
        "exit_code": code,
        "output_tail": tail,
        "output_bytes": 80,
        "output_path": None if rank is None else f"{run}/output/worker-{rank}.log",
        "duration_s": took,
        "attempt": 1,
        "error": error,
    }


def transfer(took, path="params.npz", size=9400, *, error=None, attempt=1, reused=0):
    return {
        "path": path,
        "size_bytes": size,
        "duration_s": took,
        "attempt": attempt,
        "error": error,
        "reused": reused,
    }


@dataclass
class Turn:
    """What one worker does in one round; what follows a failure doesn't happen."""

    train: float = 0.5
    push: float = 0.02
    pull: float = 0.03
    fails: str | None = None
    reject: tuple[str, str] | None = None
    open: bool = False
    silent: bool = False


def worker_events(log: Log, round_, rank, turn: Turn):
    """Return (t, kind, fields) of a worker in a round."""
    t, made = log.t, []

    def span(kind, took, start, end):
        nonlocal t
        made.append((t, f"{kind}_start", start))
        t = round(t + took, 6)
        made.append((t, kind, end))

    if turn.silent:
        return made
    error = "push: connection refused" if turn.fails == "push" else None
    span("push", turn.push, {"path": "params.npz", "attempt": 1}, transfer(turn.push, error=error))
    if error:
        return made
    if turn.open:
        made.append((t, "exec_start", {"command": "python train.py", "attempt": 1}))
        return made
    failing = turn.fails == "exec"
    span(
        "exec",
        turn.train,
        {"command": "python train.py", "attempt": 1},
        _exec(
            log.run,
            rank,
            turn.train,
            3 if failing else 0,
            "RuntimeError: planned failure" if failing else f"loss {0.9 / (round_ + 1):.3f}",
            "exit 3" if failing else None,
        ),
    )
    if failing:
        return made
    error = "pull: timed out after 5 s" if turn.fails == "pull" else None
    span(
        "pull",
        turn.pull,
        {"path": "weights.npz", "attempt": 1},
        transfer(turn.pull, "weights.npz", error=error),
    )
    if error:
        return made
    span("pull", 0.004, {"path": "metrics.json", "attempt": 1}, transfer(0.004, "metrics.json", 61))
    values = {"loss": round(0.9 / (round_ + 1) + rank / 50, 4)}
    made.append((t, "metric", {"values": values, "num_samples": 200 + 100 * rank, "error": None}))
    if turn.reject:
        made.append((t, "reject", {"reason": turn.reject[0], "detail": turn.reject[1]}))
    return made


def play_round(
    log: Log, round_, turns: dict[int, Turn] | None = None, *, attempt=1, evaluate=True, fail=None, cut=False
):
    """Add a round; returns the survivors."""
    turns = turns or {}
    all_turns = {
        rank: turns.get(rank, Turn(train=0.30 + 0.12 * rank + 0.03 * ((round_ * 7 + rank * 3) % 5)))
        for rank in range(log.workers)
    }
    log.round_start(round_, attempt, active=sum(not t.silent for t in all_turns.values()))
    happened = [
        (t, rank, i, kind, fields)
        for rank, turn in all_turns.items()
        for i, (t, kind, fields) in enumerate(worker_events(log, round_, rank, turn))
    ]
    for t, rank, _, kind, fields in sorted(happened, key=lambda h: h[:3]):
        log.add(kind, round_, rank, t=t, **fields)
    if cut:
        return []
    survivors = [r for r, t in all_turns.items() if not (t.fails or t.reject or t.silent or t.open)]
    if fail:
        log.round_end(round_, 0, "failed", fail)
        return survivors
    log.aggregate(round_, survivors)
    if evaluate:
        log.evaluate(
            round_, {"accuracy": round(0.93 - 0.5 / (round_ + 2), 4), "loss": round(0.8 / (round_ + 1), 4)}
        )
    log.round_end(round_, len(survivors))
    return survivors


def demo(*, crash=False) -> Log:
    """Return 4 workers x 8 rounds: a failed exec, a reject, a retried round, a worker lost for good."""
    log = Log()
    log.start(seed=7, quorum=2)
    for rank in range(log.workers):
        log.up(rank)
    log.t = 0.05
    for round_ in range(log.rounds):
        turns: dict[int, Turn] = {}
        if round_ == 2:
            turns[1] = Turn(train=0.21, fails="exec")
        if round_ == 3:
            turns[0] = Turn(reject=("nonfinite", "array 'w1': 3 values are not finite"))
        if round_ == 4:
            play_round(
                log,
                round_,
                {r: Turn(fails="pull", pull=0.05) for r in (0, 1, 2)},
                evaluate=False,
                fail="1 of 4 workers, the quorum is 2",
            )
            play_round(log, round_, attempt=2)
            continue
        if round_ == 5:
            turns[3] = Turn(fails="push", push=0.09)
        if round_ > 5:
            turns[3] = Turn(silent=True)
        if crash and round_ == 6:
            play_round(log, round_, {3: Turn(silent=True), 2: Turn(open=True)}, cut=True)
            return log
        play_round(log, round_, turns)
        if round_ == 5:
            log.down(3, round_, for_good=True)
    log.end(log.rounds)
    return log


def big(workers: int, rounds: int, *, name="big") -> Log:
    """Return a run without a failure but for a worker in 97."""
    log = Log(run=f"20260302-090000-{name}", workers=workers, rounds=rounds, name=name)
    log.start()
    for rank in range(workers):
        log.up(rank)
    for round_ in range(rounds):
        turns = {
            rank: Turn(
                train=0.4 + 0.3 * ((rank * 31 + round_ * 17) % 23) / 23,
                push=0.02 + 0.001 * (rank % 7),
                fails="exec" if (rank + 5 * round_) % 97 == 96 else None,
            )
            for rank in range(workers)
        }
        play_round(log, round_, turns)
    log.end(rounds)
    return log


OLD_KINDS = ("push", "pull", "exec", "round_start", "round_end", "aggregate")


def as_version_0(log: Log, *, epoch=1_772_366_400.0) -> bytes:
    """Return the same run as version 0 wrote it."""
    lines = []
    for event in log.events:
        if event["kind"] not in OLD_KINDS:
            continue
        envelope = ("v", "run", "seq", "t", "ts", "kind", "rank")
        data = {("round_num" if k == "round" else k): v for k, v in event.items() if k not in envelope}
        old = {
            "time": round(epoch + event["t"], 6),
            "kind": event["kind"],
            "rank": event["rank"],
            "data": data,
        }
        lines.append(json.dumps(old).encode() + b"\n")
    return b"".join(lines)


def only_old_kinds(log: Log) -> Log:
    """Return the run with the kinds of version 0 alone, numbered anew, from the time of its first event."""
    kept = [dict(event) for event in log.events if event["kind"] in OLD_KINDS]
    began = kept[0]["t"]
    for seq, event in enumerate(kept):
        event["seq"] = seq
        event["t"] = round(event["t"] - began, 6)
    return Log(run=log.run, workers=log.workers, rounds=log.rounds, name=log.name, events=kept)
