"""Faults put in on purpose: planned by the seed alone, real on real workers, told in the log."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from jobs import COPY, Run, processes_under, runner, start, toml, write_job
from simulated import canonical, sim_job

from runner.chaos import Chaos, Injector, Plan
from runner.connection import Ended, Transferred
from runner.errors import WorkerError
from runner.resident import Resident

EXAMPLES = Path(__file__).parents[1] / "examples"


def chaos_file(folder: Path, **given) -> Path:
    path = folder / "chaos.toml"
    path.write_text("".join(f"{key} = {toml(value)}\n" for key, value in given.items()))
    return path


@given(st.integers(0, 1000), st.integers(0, 9), st.booleans())
def test_a_plan_depends_on_seed_and_rank_alone(seed: int, rank: int, per_worker: bool):
    chaos = Chaos(faults_per_hour=60, per_worker=per_worker, seed=seed)
    one, two = (Plan(chaos, rank, 10) for _ in range(2))
    taken = [one.take() for _ in range(20)]
    assert taken == [two.take() for _ in range(20)]
    assert taken != [p.take() for p in [Plan(chaos, rank + 1, 10)] for _ in range(20)]
    assert all(a.at_s < b.at_s for a, b in itertools.pairwise(taken))


@pytest.mark.parametrize(("per_worker", "expected"), [(False, 3000), (True, 60_000)])
def test_the_rate_is_kept(per_worker: bool, expected: int):
    chaos = Chaos(faults_per_hour=300, per_worker=per_worker)
    count = 0
    for rank in range(20):
        plan = Plan(chaos, rank, 20)
        while plan.take().at_s < 36_000:
            count += 1
    assert abs(count - expected) < 0.1 * expected


@given(st.integers(0, 1000), st.floats(0, 10_000))
def test_a_plan_goes_on_where_a_run_does(seed: int, from_s: float):
    chaos = Chaos(faults_per_hour=600, seed=seed, outage_s=30)
    whole, rest = Plan(chaos, 3, 10), Plan(chaos, 3, 10, from_s)
    before = []
    while round(whole.next.at_s, 6) <= from_s:
        before.append(whole.take())
    assert [whole.take() for _ in range(5)] == [rest.take() for _ in range(5)]
    outages = [round(fault.at_s, 6) + 30 for fault in before if fault.kind in {"kill", "cut"}]
    assert rest.back_s == (outages[-1] if outages else 0.0)


def test_a_run_that_is_gone_on_with_meets_the_faults_that_were_to_come(tmp_path: Path):
    given = {"rounds": 20, "policy": {"retries": 0, "max_failures": 99, "quorum": 4, "round_retries": 0}}
    chaos = chaos_file(tmp_path, faults_per_hour=100, kinds=["cut"])
    run = start(sim_job(tmp_path, **given), "-q", "--chaos", chaos, code=1)
    for _ in range(3):
        done = runner("resume", run.log, "-q", code=1)
        run = Run(1, done.stdout, done.stderr, run.log)
    down = run.kind("worker_down")
    assert {e["injected"] for e in down} == {"cut"}
    assert len({e["t"] for e in down}) == len(down) == 4, "each session met a fault of its own"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("cut", {"the connection was cut", "the worker is out of reach"}),
        ("kill", {"the worker was killed", "the worker is out of reach"}),
        ("freeze", {"timed out after 30.0 s", "timed out after 5.00 s"}),
        ("slow", set()),
    ],
)
def test_each_kind_in_simulation(tmp_path: Path, kind: str, said: set[str]):
    given = {
        "rounds": 30,
        "policy": {"retries": 0, "max_failures": 99, "quorum": 1},
        "train": {"timeout_s": 30},
        "deadlines": {"push_s": 5, "pull_s": 5},
    }
    job = sim_job(tmp_path, **given)
    chaos = chaos_file(tmp_path, faults_per_hour=200, kinds=[kind], outage_s=20, slow_factor=2)
    run = start(job, "-q", "--chaos", chaos)
    struck = [e for e in run.events if e.get("injected")]
    assert len(struck) > 5
    assert {e["injected"] for e in struck} <= {kind, "outage"}
    errors = {e.get("error") or e.get("detail") for e in struck} - {None}
    assert errors <= said
    assert run.one("run_start")["job"]["chaos"]["kinds"] == [kind]
    lost = {(e["round"], e["rank"]) for e in run.kind("worker_down")}
    for event in run.kind("aggregate"):
        assert not {rank for round_, rank in lost if round_ == event["round"]} & set(event["ranks"])
    if kind == "slow":
        assert {e["num_workers"] for e in run.kind("aggregate")} == {4}
        assert max(e["duration_s"] for e in run.kind("exec")) == 20.0


class Machine:
    """A worker without a machine: a transfer takes a second, training ten; it can be struck."""

    address = folder = "nowhere"
    mishap = None

    def __init__(self) -> None:
        self.facts: dict[str, int] = {}
        self._struck: dict[signal.Signals, trio.Event] = {}

    async def push(self, source: Path, target: str) -> Transferred:  # noqa: ARG002 - nothing travels
        await trio.sleep(1)
        return Transferred(1)

    async def exec(self, command, *, stdin=None, output, **_: object) -> Ended:  # noqa: ARG002 - nothing is run
        self._struck = {signal.SIGKILL: trio.Event(), signal.SIGSTOP: trio.Event()}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work, stdin, output, nursery.cancel_scope)
            await self._struck[signal.SIGKILL].wait()
            nursery.cancel_scope.cancel()
            return Ended(-9)
        self._struck.clear()
        return Ended(0)

    async def _work(self, stdin, output, scope: trio.CancelScope) -> None:
        while stdin is None or await anext(stdin, None):
            with trio.move_on_after(10):
                await self._struck[signal.SIGSTOP].wait()
                await trio.sleep_forever()
            if stdin is None:
                break
            output.write(b'roundlog:{"round": 1}\n')
        scope.cancel()

    async def close(self, *, done: bool = False) -> None:
        """Do nothing."""

    def strike(self, number: signal.Signals) -> bool:
        if number in self._struck:
            self._struck[number].set()
        return bool(self._struck)


Met = list[tuple[float, str, str | None, str | None]]


def met(chaos: Chaos, *, resident: bool) -> Met:
    """Take a worker through 600 rounds of 11 s under faults; return what each call met: when, call, fault."""

    async def run() -> Met:
        told: Met = []

        async def connect(_: int) -> Machine:
            return Machine()

        injector = Injector(chaos, 1, connect)
        env = dict.fromkeys(("ROUNDLOG_ROUND", "ROUNDLOG_PARAMS", "ROUNDLOG_WEIGHTS"), "1")
        async with trio.open_nursery() as nursery:
            connection = None
            for call in ["push", "exec"] * 600:
                error: str | None = None
                if connection is None:
                    connection = await injector.connect(0)
                    connection = Resident(connection, nursery) if resident else connection
                try:
                    with trio.move_on_after(50) as late:
                        if call == "push":
                            await connection.push(Path("x"), "x")
                        else:
                            ended = await connection.exec("x", env=env, output=Collected())
                            error = f"exit {ended.exit_code}" if ended.exit_code else None
                    error = "late" if late.cancelled_caught else error
                except WorkerError as e:
                    error = str(e)
                told.append(
                    (
                        round(injector.now_s(), 6),
                        call,
                        connection.mishap and connection.mishap.injected,
                        error,
                    )
                )
                if error is not None and call == "push":
                    await connection.close()
                    connection = None
            if connection is not None:
                await connection.close()
        return told

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


class Collected:
    """Takes output."""

    def write(self, chunk: bytes) -> None:
        """Take some."""


@pytest.mark.parametrize("kinds", [("slow",), ("kill",), ("freeze",), ("cut",), ("slow", "kill", "freeze")])
def test_a_command_that_stays_meets_each_fault_once_as_one_that_is_started(kinds: tuple):
    chaos = Chaos(faults_per_hour=12, kinds=kinds, seed=3)  # none comes while another lasts
    stays, ends = (met(chaos, resident=resident) for resident in (True, False))
    assert stays == ends
    plan, planned = Plan(chaos, 0, 1), []
    while plan.next.at_s < stays[-1][0]:
        planned.append(plan.take().kind)
    assert [fault for _, _, fault, _ in stays if fault] == planned
    assert {call for _, call, fault, _ in stays if fault} == {"push", "exec"}


def test_the_same_seed_strikes_the_same(tmp_path: Path):
    job = sim_job(
        tmp_path,
        rounds=10,
        policy={"max_failures": 99, "quorum": 1},
        train={"timeout_s": 30},
        deadlines={"push_s": 5, "pull_s": 5},
    )
    chaos = chaos_file(tmp_path, faults_per_hour=400)
    one, two = (canonical(start(job, "-q", "--chaos", chaos).events) for _ in range(2))
    assert one == two


def test_the_example_keeps_its_promise(tmp_path: Path):
    """32 workers under 125 faults an hour keep 97.7 % of the throughput; more than 16 of 32 take part."""
    job = EXAMPLES / "chaos-sim.toml"
    ends = []
    for chaos in ((), ("--chaos", EXAMPLES / "chaos.toml")):
        done = runner("start", "-q", job, "--runs", tmp_path, *chaos)
        ends.append(Path(done.stdout.strip()))
    seconds, shares = [], []
    for log in ends:
        rounds = [line for line in log.read_text().splitlines() if '"kind":"round_end"' in line]
        seconds.append(float(log.read_text().splitlines()[-1].split('"duration_s":')[1].split(",")[0]))
        shares.append(sum(int(r.split('"survivors":')[1].split(",")[0]) for r in rounds) / len(rounds) / 32)
    assert seconds[0] / seconds[1] >= 0.977
    assert shares[1] > 0.9


def test_a_kill_of_a_local_worker_is_a_real_one(tmp_path: Path):
    script = f"sleep 600 & sleep 0.4; {COPY}"
    job = write_job(
        tmp_path, rounds=8, workers=3, train={"command": script}, policy={"quorum": 1, "max_failures": 99}
    )
    chaos = chaos_file(tmp_path, faults_per_hour=3600, per_worker=True, kinds=["kill"], seed=3)
    run = start(job, "-q", "--chaos", chaos)
    struck = [e for e in run.kind("exec") if e["injected"]]
    assert struck
    assert {(e["exit_code"], e["error"], e["injected"]) for e in struck} <= {
        (-9, "ended by signal 9", "kill"),
        (None, "the worker was killed", "kill"),
    }
    assert any(e["exit_code"] == -9 for e in struck)
    assert not processes_under(tmp_path)


def test_a_frozen_local_worker_is_noticed_and_ended(tmp_path: Path):
    job = write_job(
        tmp_path,
        rounds=2,
        workers=2,
        train={"command": f"sleep 0.3; {COPY}", "timeout_s": 1},
        policy={"quorum": 1, "max_failures": 99},
        deadlines={"push_s": 1, "pull_s": 1, "round_s": 3},
    )
    chaos = chaos_file(tmp_path, faults_per_hour=7200, per_worker=True, kinds=["freeze"], seed=1)
    run = start(job, "-q", "--chaos", chaos, code=None)
    frozen = [e for e in run.events if e.get("injected")]
    assert {e["injected"] for e in frozen} == {"freeze"}
    assert all(0 <= e["injected_after_s"] < e["duration_s"] for e in frozen)
    assert not processes_under(tmp_path)


def test_what_is_wrong_with_a_chaos_file(tmp_path: Path):
    job = write_job(tmp_path)
    chaos = chaos_file(tmp_path, kinds=["explode"], per_wroker=True, outage_s=-1)
    done = runner("start", job, "--runs", tmp_path / "runs", "--chaos", chaos, code=2)
    for said in (
        "faults_per_hour: missing",
        "did you mean 'per_worker'",
        "kinds: received",
        "outage_s: received",
    ):
        assert said in done.stderr
    assert not (tmp_path / "runs").exists()
    assert "can't be read" in runner("start", job, "--chaos", tmp_path / "none", code=2).stderr


@pytest.mark.parametrize(
    ("changes", "kinds", "warned"),
    [
        ({}, '["slow"]', None),
        ({}, '["freeze"]', "1h00m (deadlines.push_s)"),
        ({"train": {"timeout_s": 7200}}, '["freeze"]', "2h00m (train.timeout_s)"),
        ({"deadlines": {"idle_s": 5, "push_s": 20, "pull_s": 90}}, '["freeze"]', "90.0 s (deadlines.pull_s)"),
        ({"deadlines": {"idle_s": 25, "push_s": 20, "pull_s": 9}}, '["freeze"]', "25.0 s (deadlines.idle_s)"),
        ({"policy": {"close_at": 2}}, '["freeze"]', None),
        ({"deadlines": {"round_s": 60}}, '["freeze"]', None),
    ],
)
def test_a_freeze_that_nothing_ends_soon_is_warned_of(
    tmp_path: Path, changes: dict, kinds: str, warned: str | None
):
    (tmp_path / "chaos.toml").write_text(f"faults_per_hour = 0.001\nkinds = {kinds}\n")
    run = start(write_job(tmp_path, **changes), "--chaos", tmp_path / "chaos.toml")
    if warned is None:
        assert "warning: a worker that is frozen" not in run.err
    else:
        assert f"warning: a worker that is frozen holds up its round for up to {warned}; " in run.err
