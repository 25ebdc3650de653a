"""Simulated workers: exact times, the same events for the same seed, each fault as it was planned."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from conformance import Anywhere, Site
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import Run, runner, start
from simulated import canonical, of, sim_job, simulate
from test_job import problems

from runner.connection import Connection
from runner.draws import Draw, LogNormal
from runner.errors import ConnectionLostError
from runner.sharing import SharedLine
from runner.simjob import Fault, Sim
from runner.simtime import Clock, in_thread, instants, simulated
from runner.transports.sim import World

EXAMPLES = Path(__file__).parents[1] / "examples"


def timed(work, *args, clock: Clock | None = None):
    """Run something in simulated time; return what it returned and the seconds it took."""

    async def run():
        with trio.fail_after(1e6):
            return await work(*args), trio.current_time()

    return trio.run(run, clock=clock or Clock())


def test_a_round_takes_exactly_what_the_job_says():
    events = simulate(rounds=2)
    assert [(e["t"], e["duration_s"]) for e in of(events, "exec", round=0)] == [(11.0, 10.0)] * 4
    assert [(e["duration_s"], e["size_bytes"]) for e in of(events, "pull")] == [(1.0, 1_000_000)] * 8
    assert [(e["t"], e["survivors"]) for e in of(events, "round_end")] == [(12.0, 4), (24.0, 4)]
    assert of(events, "run_end")[0]["duration_s"] == 24.0
    norms = [e["delta_norm"] for e in of(events, "aggregate")]
    assert all(norm > 0 for norm in norms), "the workers' weights are averaged for real"


def test_ts_is_the_beginning_and_simulated_seconds():
    events = simulate(rounds=1)
    began = datetime.fromisoformat(events[0]["ts"])
    for event in events:
        assert (datetime.fromisoformat(event["ts"]) - began).total_seconds() == pytest.approx(event["t"])


@pytest.mark.parametrize(("line", "ends"), [(None, [12.0]), (2_000_000, [14.0]), (500_000, [20.0])])
def test_pushes_share_the_coordinators_line(line: int | None, ends: list[float]):
    sim = {} if line is None else {"uplink_bytes_per_s": line}
    assert [e["t"] for e in of(simulate(rounds=1, sim=sim), "round_end")] == [
        end if line is None else 11.0 + 4_000_000 / line for end in ends
    ]


def test_a_line_is_shared_equally_and_each_goes_on_faster_when_another_is_done():
    async def carry(line: SharedLine, begin: float, size: float, ends: list[float]) -> None:
        await trio.sleep(begin)
        await line.carry(size, 0.0)
        ends.append(trio.current_time())

    async def run() -> list[float]:
        line, ends = SharedLine(100.0, instants()), []
        async with trio.open_nursery() as nursery:
            for begin, size in ((0, 300), (0, 100), (1, 50)):
                nursery.start_soon(carry, line, begin, size, ends)
        return ends

    # Two get 50 a second each, three a third part of 100; at 2.5 s two are done, at 4.5 s the last.
    assert timed(run)[0] == pytest.approx([2.5, 2.5, 4.5])


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1e6), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=60)
def test_a_line_carries_all_and_never_more_than_it_can(transfers):
    async def carry(line: SharedLine, begin: float, size: float, gives_up: bool, ends: list) -> None:
        await trio.sleep(begin)
        with trio.move_on_after(5 if gives_up else 1e9):
            await line.carry(size, 0.0)
            ends.append((begin, size, trio.current_time()))

    async def run() -> list:
        line, ends = SharedLine(1000.0, instants()), []
        async with trio.open_nursery() as nursery:
            for begin, size, gives_up in transfers:
                nursery.start_soon(carry, line, begin, size, gives_up, ends)
        return ends

    ends, _ = timed(run)
    assert len(ends) >= sum(not gives_up for _, _, gives_up in transfers)
    for begin, size, end in ends:
        assert end - begin >= size / 1000.0 - 1e-6
    if ends:
        assert max(end for *_, end in ends) >= sum(size for _, size, _ in ends) / 1000.0 - 1e-3


def test_work_is_done_inline_and_the_end_of_an_instant_comes_last():
    async def run() -> list[str]:
        said: list[str] = []

        async def late(name: str, sleeps: int) -> None:
            await instants().sleep_until(5)
            for _ in range(sleeps):
                await trio.lowlevel.checkpoint()
            said.append(await in_thread(str, name))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(late, f"task {number}", number * 3)
            instants().call_at(5, partial(instants().at_end, partial(said.append, "end")))
        await trio.sleep(1)
        assert simulated()
        return said

    said, seconds = timed(run)
    assert (sorted(said), said[-1], seconds) == (["end", "task 0", "task 1", "task 2"], "end", 6.0)


PARTS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "workers": st.integers(1, 6),
        "rounds": st.integers(1, 3),
        "spares": st.integers(0, 2),
        "policy": st.fixed_dictionaries(
            {
                "quorum": st.just(1),
                "close_at": st.sampled_from([0.5, 1.0]),
                "grace_s": st.sampled_from([0, 3]),
                "backoff_s": st.sampled_from([0, 1]),
                "max_failures": st.integers(1, 3),
            }
        ),
        "deadlines": st.sampled_from(
            [{"round_s": 30}, {"round_s": 12}, {"round_s": "auto", "auto_ceiling_s": 40}]
        ),
        "sim": st.sampled_from([{}, {"train_s": {"uniform": [5, 15]}, "uplink_bytes_per_s": 2_000_000}]),
        "faults": st.lists(
            st.fixed_dictionaries(
                {
                    "what": st.sampled_from(["crash", "hang", "slow", "nan", "shape", "vanish"]),
                    "during": st.sampled_from(["push", "exec", "pull"]),
                    "probability": st.sampled_from([0.2, 1.0]),
                }
            ),
            max_size=2,
        ),
    }
)


@given(PARTS)
@settings(max_examples=25)
def test_the_same_seed_gives_the_same_events(parts):
    """Ties abound here: all train for ten seconds; which task trio wakes first must not show."""
    faults = parts["faults"]
    changes = {name: value for name, value in parts.items() if name != "faults"}
    one, two = (canonical(simulate(*faults, **changes)) for _ in range(2))
    assert one == two


def test_another_seed_gives_other_events():
    sim = {"train_s": {"lognormal": {"median": 10, "sigma": 0.5}}}
    one, two = (simulate(seed=seed, sim=sim) for seed in (1, 2))
    assert canonical(one) != canonical(two)


@pytest.mark.parametrize(
    ("fault", "kind", "error"),
    [
        ({"what": "crash"}, "exec", "ended by signal 9"),
        ({"what": "crash", "during": "push", "times": 9}, "push", "the worker crashed"),
        ({"what": "crash", "during": "pull", "times": 9}, "pull", "the worker crashed"),
        ({"what": "hang"}, "exec", "timed out after 1m40s"),
        ({"what": "hang", "during": "push", "times": 9}, "push", "timed out after 50.0 s"),
        ({"what": "partition", "at_s": 5, "for_s": 100}, "exec", "the network is partitioned"),
    ],
    ids=lambda x: x["what"] if isinstance(x, dict) else None,
)
def test_a_fault_costs_its_worker_alone_and_is_told_as_injected(fault: dict, kind: str, error: str):
    events = simulate(
        {**fault, "ranks": [2], "rounds": [0]}, rounds=1, train={"timeout_s": 100}, deadlines={"push_s": 50}
    )
    struck = of(events, kind, rank=2)
    assert (struck[0]["error"], struck[0]["injected"]) == (error, fault["what"])
    if fault["what"] == "hang":
        assert 0 < struck[0]["injected_after_s"] < struck[0]["duration_s"] / 2  # not when it was given up
    else:
        assert struck[0]["injected_after_s"] == struck[0]["duration_s"]
    assert of(events, "aggregate")[0]["ranks"] == [0, 1, 3]
    assert {e["injected"] for e in events if e["rank"] != 2 and "injected" in e} == {None}


@pytest.mark.parametrize("during", ["push", "pull"])
@pytest.mark.parametrize(
    ("fault", "seconds", "got"),
    [
        ({"what": "crash"}, None, None),
        ({"what": "hang"}, 50.0, None),
        ({"what": "slow", "factor": 200}, 50.0, 250_000),
    ],
    ids=["crash", "hang", "slow"],
)
def test_a_cut_transfer_tells_what_had_got_across(
    during: str, fault: dict, seconds: float | None, got: int | None
):
    """Alone on its line a transfer carries a megabyte a second, from the first instant."""
    events = simulate(
        {**fault, "during": during, "times": 9, "ranks": [1]},
        workers=2,
        rounds=1,
        policy={"quorum": 1, "retries": 0},
        deadlines={"push_s": 50, "pull_s": 50},
    )
    assert {e["arrived_bytes"] for e in of(events, during, rank=0)} == {None}
    (cut,) = of(events, during, rank=1)
    if seconds is None:
        assert cut["arrived_bytes"] == pytest.approx(cut["duration_s"] * 1e6, abs=2)
    else:
        assert cut["duration_s"] == seconds
        assert 0 < cut["arrived_bytes"] < 1_000_000
    assert got in (None, cut["arrived_bytes"])


@pytest.mark.parametrize(("line", "got"), [(None, 500_000), (2_000_000, 250_000)])
def test_a_transfer_cut_off_on_a_shared_line_has_its_share(line: int | None, got: int):
    """A partition begins half a second after four pushes of a megabyte each."""
    cut = simulate(
        {"what": "partition", "at_s": 0.5, "for_s": 1000},
        sim={} if line is None else {"uplink_bytes_per_s": line},
        rounds=1,
        policy={"round_retries": 0, "retries": 0},
    )
    assert [(e["size_bytes"], e["arrived_bytes"]) for e in of(cut, "push")] == [(1_000_000, got)] * 4


@pytest.mark.parametrize("line", [None, 2_000_000])
@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"train": {"timeout_s": 4}}, "timed out after 4.00 s"),
        ({"deadlines": {"push_s": 0.4}}, "timed out after 400 ms"),
        ({"deadlines": {"pull_s": 0.4}}, "timed out after 400 ms"),
        ({"deadlines": {"push_s": 1.5}}, "timed out after 1.50 s"),
        ({"deadlines": {"round_s": 11.5}}, "ended: the round's deadline had passed"),
    ],
)
def test_what_takes_too_long_is_ended_likewise_with_faults_and_without(
    line: int | None, limits: dict[str, Any], error: str
):
    """Where there are none, the workers keep the time themselves."""
    sim = {"uplink_bytes_per_s": line} if line else {}
    policy = {"round_retries": 0, "retries": 1, "backoff_s": 3}
    never = {"what": "slow", "probability": 0}
    one, two = (simulate(*faults, sim=sim, policy=policy, **limits) for faults in ((), (never,)))
    assert canonical(one) == canonical(two)
    fine = line is None and "1.50" in error
    assert any(e.get("error") == error for e in one) != fine


def test_a_fault_that_strikes_once_is_survived_by_a_retry():
    events = simulate({"what": "crash", "during": "pull", "ranks": [1]}, rounds=1)
    assert [e["attempt"] for e in of(events, "pull", rank=1)] == [1, 2]
    assert of(events, "round_end")[0]["survivors"] == 4


@pytest.mark.parametrize(("what", "reason"), [("nan", "nonfinite"), ("shape", "shape")])
def test_bad_weights_are_rejected(what: str, reason: str):
    events = simulate({"what": what, "ranks": [0], "rounds": [1]}, rounds=2)
    assert [(e["rank"], e["round"], e["reason"]) for e in of(events, "reject")] == [(0, 1, reason)]
    assert [e["num_workers"] for e in of(events, "aggregate")] == [4, 3]


def test_a_slow_worker_is_waited_for():
    events = simulate({"what": "slow", "ranks": [3], "factor": 4}, rounds=1)
    assert of(events, "round_end")[0]["t"] == 42.0
    assert of(events, "exec", rank=3)[0]["injected"] == "slow"
    assert of(events, "exec", rank=3)[0]["injected_after_s"] == 0


@pytest.mark.parametrize(("rest_s", "status"), [(0, "failed"), (5, "completed")])
def test_an_outage_of_all_workers_is_waited_for(rest_s: float, status: str):
    policy = {"round_backoff_s": rest_s, "retries": 0, "max_failures": 9}
    events = simulate({"what": "partition", "at_s": 5, "for_s": 12}, policy=policy, rounds=8)
    assert of(events, "run_end")[0]["status"] == status
    failed = of(events, "round_end", outcome="failed")
    told = [e["reason"].partition("; lost workers get ")[2] for e in failed]
    assert told == (
        ["", "", ""] if status == "failed" else ["5.00 s to return", "10.0 s to return"][: len(told)]
    )
    for end in failed if rest_s else []:
        begun = next(e for e in of(events, "round_start") if e["seq"] > end["seq"])
        assert begun["t"] - end["t"] == pytest.approx(5 if end is failed[0] else 10)


def test_a_minute_without_network_is_outlived_by_default():
    events = simulate({"what": "partition", "at_s": 5, "for_s": 60}, rounds=3)
    assert of(events, "run_end")[0]["status"] == "completed"
    assert not [e for e in of(events, "worker_down") if e["for_good"]]
    tries = [e["attempt"] for e in of(events, "worker_down", reason="connect", rank=0, round=0)]
    assert tries == [2, 3, 1, 2, 3], "the first of them was lost in its training"


def test_a_learnt_deadline_is_of_those_who_deliver():
    """Hangs that it has to cut off must not make it longer."""
    hang = {"what": "hang", "during": "exec", "probability": 0.15}
    events = simulate(hang, workers=8, rounds=12, deadlines={"round_s": "auto"}, policy={"quorum": 0.5})
    starts = of(events, "round_start")
    assert [e["deadline_s"] for e in starts] == [3600] + [36] * 2 + [30] * (len(starts) - 3)
    cut = of(events, "round_end", delivered_s=12.0, workers_s=30.0)
    assert len(cut) >= 3, "some had to be cut off"


def test_a_worker_vanishes_for_some_rounds_and_returns():
    events = simulate({"what": "vanish", "ranks": [1], "rounds": [1], "for_rounds": 2}, rounds=5)
    assert [e["survivors"] for e in of(events, "round_end")] == [4, 3, 3, 4, 4]
    downs = of(events, "worker_down")
    assert {e["reason"] for e in downs} == {"lost", "connect"}
    assert {(e["round"], e["injected"]) for e in downs} == {(1, "vanish"), (2, "vanish")}
    assert len({(e["t"], e["reason"]) for e in downs}) == len(downs), "each leaving is told once"


def test_samples_weight_the_mean():
    events = simulate(rounds=1, sim={"samples": {"uniform": [10, 20]}})
    assert of(events, "aggregate")[0]["weighting"] == "num_samples"
    assert all(10 <= e["num_samples"] <= 20 for e in of(events, "metric"))


def test_numbers_from_a_file(tmp_path: Path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "seconds").write_text("3\n\n7.5\n")
    job = sim_job(tmp_path / "job", sim={"train_s": {"empirical": "seconds"}}, rounds=5)
    run = start(job, "-q")
    assert {e["duration_s"] for e in run.kind("exec")} == {3.0, 7.5}
    assert "seconds" in run.one("run_start")["job"]["sent_sha256"]


def test_it_runs_from_the_command_line_and_is_read_like_any_other(tmp_path: Path):
    job = EXAMPLES / "sim.toml"
    shown = runner("check", job).stdout
    assert "32 simulated" in shown
    assert "fault: workers 0, 1, 2, 3 cut off from 11m40s for 5m00s" in shown
    done = runner("start", job, "-v", "--runs", tmp_path)
    run = Run(0, done.stdout, done.stderr, Path(done.stdout.strip()))
    assert run.one("run_end")["rounds"] == 20
    assert run.one("run_end")["t"] > 1000


def test_a_stopped_simulation_goes_on_in_simulated_time(tmp_path: Path):
    fault = {"what": "crash", "ranks": [1], "rounds": [1]}
    job = sim_job(tmp_path, fault, rounds=3, policy={"round_retries": 0, "max_failures": 9, "quorum": 4})
    failed = start(job, "-q", code=1)
    at = failed.one("run_end")["t"]
    done = runner("resume", failed.log, "-q", code=1)
    run = Run(1, done.stdout, done.stderr, failed.log)
    assert [e["t"] for e in run.kind("run_resume")] == [at]
    assert run.events[-1]["t"] < at + 100, "real time must not enter"


def test_what_is_wrong_with_a_simulation(tmp_path: Path):
    job = sim_job(
        tmp_path,
        {"what": "explode", "ranks": [9]},
        {"what": "crash", "probability": 2, "ranks": [9], "wat": 1},
        sim={
            "train_s": {"fixed": 1, "uniform": [1, 2]},
            "slowness": {"uniform": [3, 1]},
            "latency_s": {"empirical": "none"},
            "line_bytes_per_s": {"lognormal": {"median": 0, "sigma": 1}},
            "uplink_bytes_per_s": 0,
            "samples": -1,
        },
        train={"command": "true"},
        evaluate={"command": "true"},
        deadlines={"idle_s": 3},
        worker=[{"host": f"h{i}.example.org"} for i in range(4)],
    )
    found = problems(job)
    assert set(found) == {
        "sim.train_s",
        "sim.slowness",
        "sim.latency_s",
        "sim.line_bytes_per_s.lognormal.median",
        "sim.uplink_bytes_per_s",
        "sim.samples",
        "sim.faults[0].what",
        "sim.faults[0].ranks",
        "sim.faults[1].probability",
        "sim.faults[1].ranks",
        "sim.faults[1].wat",
        "train.command",
        "evaluate.command",
        "deadlines.idle_s",
        "worker",
        "workers",  # hosts are counted, so it may not be given beside them
    }
    assert "a list of ranks, whole numbers from 0 to 3" in found["sim.faults[0].ranks"]


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "true", '"x"', "{ fixed = nan }", "{}"])
def test_a_distribution_that_is_none(tmp_path: Path, value: str):
    job = sim_job(tmp_path)
    text = job.read_text().replace('"train_s" = 10', f'"train_s" = {value}')
    job.write_text(text)
    assert f"train_s = {value}" in text or value in text
    assert any(key.startswith("sim.train_s") for key in problems(job))


class Simulated(Clock, Site):
    """A site of simulated workers; the clock that its tests run under, too."""

    def __init__(self, folder: Path, *faults: Fault) -> None:
        super().__init__()
        sim = Sim(params_bytes=10, faults=faults, train_s=Draw(lognormal=LogNormal(median=5, sigma=1)))
        self.world = World(sim, 1, folder, folder / "scratch", self)

    async def connect(self, rank: int = 0) -> Connection:
        return await self.world.connect(rank)

    def files(self, rank: int = 0) -> set[str]:  # noqa: ARG002 - nobody has any
        return set()

    # What follows is for the suites of real files and processes, which are not run here.

    def read(self, name: str, rank: int = 0) -> bytes:
        raise NotImplementedError

    def shell(self, script: str, rank: int = 0) -> str:
        raise NotImplementedError

    def alive(self, pid: int) -> bool:
        raise NotImplementedError


@pytest.fixture(params=["calm", "under faults"])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Simulated:
    never = [Fault(what="slow", probability=0), Fault(what="partition", ranks=(9,))]
    return Simulated(tmp_path, *(never if request.param == "under faults" else ()))


class TestAnywhere(Anywhere):
    """What of the suite makes sense where no bytes travel and no command runs."""


@pytest.mark.trio
async def test_a_worker_that_has_vanished_can_not_be_reached(tmp_path: Path):
    gone = Simulated(tmp_path, Fault(what="vanish"))
    with pytest.raises(ConnectionLostError, match="vanished") as caught:
        await gone.connect()
    assert caught.value.injected == "vanish"
