"""The real command line on jobs that go well and jobs that don't; jobs are plain sh wherever that will do."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from jobs import COPY, PARAMS, Run, environ, processes_under, runner, start, write_job

KINDS = ["push_start", "push", "exec_start", "exec", "pull_start", "pull"]
SECRET = "s3cr3t-t0ken-0123456789"


def case(**scripts: str) -> str:
    """Return a shell script whose part depends on the worker: ``r1="..."``; the others copy."""
    parts = "".join(f"{rank[1:]}) {script} ;; " for rank, script in scripts.items())
    return f'case "$ROUNDLOG_RANK" in {parts} *) {COPY} ;; esac'


def test_a_run_that_goes_well(tmp_path: Path):
    report = '{\\"loss\\": 0.5, \\"num_samples\\": $((ROUNDLOG_RANK + 1))}'
    script = f'{COPY}; echo "{report}" > "$ROUNDLOG_METRICS"; echo ok'
    run = start(write_job(tmp_path, train={"command": script}))
    kinds = [e["kind"] for e in run.events]
    assert kinds[0] == "run_start"
    assert kinds[-1] == "run_end"
    for number in (0, 1):
        inside = [e for e in run.events if e["round"] == number]
        assert inside[0]["kind"] == "round_start"
        assert [e["kind"] for e in inside[-2:]] == ["aggregate", "round_end"]
        for rank in (0, 1):
            way = [e["kind"] for e in inside if e["rank"] == rank and e["kind"] != "worker_up"]
            assert way == [*KINDS, "pull_start", "pull", "metric"]
    assert {e["outcome"] for e in run.kind("round_end")} == {"ok"}
    assert [e["weighting"] for e in run.kind("aggregate")] == ["num_samples"] * 2
    assert [e["ranks"] for e in run.kind("aggregate")] == [[0, 1]] * 2
    digest = hashlib.sha256(run.params.read_bytes()).hexdigest()
    assert digest == run.kind("aggregate")[-1]["params_sha256"]
    assert run.kind("aggregate")[0]["params_sha256"] == run.kind("round_start")[1]["params_sha256"]
    np.testing.assert_array_equal(np.load(run.params), PARAMS)
    assert {e["output_tail"] for e in run.kind("exec")} == {"ok"}
    assert (run.log.parent / run.kind("exec")[0]["output_path"]).read_text().count("ok\n") == 2
    assert run.one("run_end")["status"] == "completed"
    assert not list((run.log.with_suffix("") / "incoming").iterdir())


def test_every_span_adds_up(tmp_path: Path):
    run = start(write_job(tmp_path))
    starts = {
        (e["kind"], e["round"], e["rank"]): round(e["t"] * 1e6)
        for e in run.events
        if e["kind"].endswith("_start")
    }
    for event in run.kind("push", "exec", "pull", "round_end"):
        kind = event["kind"].removesuffix("_end") + "_start"
        began = round(event["t"] * 1e6) - round(event["duration_s"] * 1e6)
        assert began == starts[kind, event["round"], event["rank"]]


def test_what_a_command_sees(tmp_path: Path):
    script = f'env | grep ^ROUNDLOG_; test "$A" = "x y"; pwd; echo $ROUNDLOG_ROUND >> rounds; {COPY}'
    files = ["one.txt", {"source": "shard-{rank}", "target": "data/mine"}, "folder"]
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for name in ("one.txt", "shard-0", "shard-1", "folder/inner/x"):
        (tmp_path / name).write_text(name)
    job = write_job(
        tmp_path, seed=7, train={"command": "set -e; " + script, "env": {"A": "x y"}, "files": files}
    )
    run = start(job)
    workers = run.log.with_suffix("") / "workers"
    for rank in ("0", "1"):
        folder = workers / rank
        assert (folder / "data" / "mine").read_text() == f"shard-{rank}"
        assert (folder / "folder" / "inner" / "x").read_text() == "folder/inner/x"
        assert (folder / "rounds").read_text() == "0\n1\n"
        seen = (run.log.with_suffix("") / "output" / f"worker-{rank}.log").read_text()
        for line in (f"ROUNDLOG_RANK={rank}", "ROUNDLOG_SEED=7", "ROUNDLOG_WORLD_SIZE=2", "ROUNDLOG_ROUND=1"):
            assert f"{line}\n" in seen
        assert f"ROUNDLOG_PARAMS={folder.resolve()}/params-0001.npy\n" in seen
    assert len([e for e in run.kind("push") if e["path"] == "one.txt"]) == 2


BAD = {
    "NaN": ("nan.npy", "nonfinite"),
    "shape": ("shape.npy", "shape"),
    "dtype": ("dtype.npy", "dtype"),
    "pickle": ("pickle.npy", "dtype"),
    "garbage": ("garbage.npy", "unreadable"),
    "empty": ("empty.npy", "unreadable"),
    "cut off": ("cut.npy", "unreadable"),
    "another name": ("other.npz", "missing"),
    "too many": ("more.npz", "unexpected"),
    "too large": ("large.npy", "unreadable"),
}


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture(scope="module")
def bad(tmp_path_factory) -> Run:
    """Run one job whose worker of each rank hands back something else that is wrong."""
    folder = tmp_path_factory.mktemp("bad")
    np.save(folder / "nan.npy", np.where(PARAMS == 4, np.nan, PARAMS).astype(np.float32))
    np.save(folder / "shape.npy", PARAMS.T)
    np.save(folder / "dtype.npy", PARAMS.astype(np.float64))
    np.save(folder / "pickle.npy", np.array([Bomb(str(folder / "boom"))], dtype=object))
    (folder / "garbage.npy").write_bytes(b"this is no array at all")
    (folder / "empty.npy").write_bytes(b"")
    np.save(folder / "cut.npy", PARAMS)
    os.truncate(folder / "cut.npy", 130)
    np.savez(folder / "other.npz", other=PARAMS)
    np.savez(folder / "more.npz", array=PARAMS, more=PARAMS)
    (folder / "large.npy").write_bytes(b"\0" * 3_000_000)
    scripts = {
        f"r{rank + 2}": f'cp {name} "$ROUNDLOG_WEIGHTS"' for rank, (name, _) in enumerate(BAD.values())
    }
    names = [name for name, _ in BAD.values()]
    job = write_job(
        folder, rounds=1, workers=2 + len(BAD), train={"command": case(**scripts), "files": names}
    )
    return start(job)


@pytest.mark.parametrize("what", BAD)
def test_wrong_weights_are_kept_out_and_said_why(bad: Run, what: str):
    event = bad.one("reject", rank=2 + list(BAD).index(what))
    assert event["reason"] == BAD[what][1]
    assert event["detail"]


def test_wrong_weights_cost_only_themselves(bad: Run):
    assert len(bad.kind("reject")) == len(BAD)
    assert bad.one("aggregate")["ranks"] == [0, 1]
    assert bad.one("run_end")["status"] == "completed"
    np.testing.assert_array_equal(np.load(bad.params), PARAMS)
    assert not (bad.log.parents[1] / "boom").exists(), "it was unpickled"
    assert "at (1, 1)" in bad.one("reject", rank=2)["detail"]


ODD = {
    "nothing": "true",
    "symlink": 'cp "$ROUNDLOG_PARAMS" real; ln -sf real "$ROUNDLOG_WEIGHTS"',
    "fifo": 'mkfifo "$ROUNDLOG_WEIGHTS"',
    "folder": 'mkdir "$ROUNDLOG_WEIGHTS"',
    "signal": "kill -9 $$",
    "exit": "echo why not; exit 3",
    "own folder gone": 'rm -rf "$PWD"',
    "folder in the way of metrics": f'{COPY}; mkdir -p "$ROUNDLOG_METRICS/x"',
}


def test_workers_that_go_wrong_in_every_round(tmp_path: Path):
    """They have three rounds for it: what one leaves behind must not hurt the next."""
    scripts = {f"r{rank + 2}": script for rank, script in enumerate(ODD.values())}
    job = write_job(
        tmp_path,
        rounds=3,
        workers=2 + len(ODD),
        train={"command": case(**scripts)},
        policy={"max_failures": 9},
    )
    run = start(job)
    assert run.one("run_end")["status"] == "completed"
    for event in run.kind("aggregate"):
        assert set(event["ranks"]) <= {0, 1, 1 + len(ODD)}
        assert {0, 1} <= set(event["ranks"])
    rank = 2 + list(ODD).index("signal")
    assert {e["exit_code"] for e in run.kind("exec", rank=rank)} == {-9}
    said = {(e["exit_code"], e["output_tail"], e["error"]) for e in run.kind("exec", rank=rank + 1)}
    assert said == {(3, "why not", "exit code 3")}
    assert {e["reason"] for e in run.kind("reject", rank=2)} == {"missing"}


def test_a_command_that_hangs(tmp_path: Path):
    hang = "trap '' TERM; sleep 600 & sleep 600"
    job = write_job(tmp_path, rounds=1, workers=3, train={"command": case(r1=hang), "timeout_s": 0.5})
    run = start(job)
    assert run.one("exec", rank=1)["error"] == "timed out after 500 ms"
    assert run.one("aggregate")["ranks"] == [0, 2]
    assert not list(processes_under(tmp_path))


def test_children_that_stay_behind(tmp_path: Path):
    script = f"sleep 600 & setsid sleep 600 & {COPY}"
    run = start(write_job(tmp_path, rounds=1, train={"command": script}))
    assert run.one("run_end")["status"] == "completed"
    assert not list(processes_under(tmp_path))


def test_a_command_that_prints_50_megabytes(tmp_path: Path):
    script = f"{COPY}; head -c 50000000 /dev/zero | tr '\\0' x; echo; echo done"
    run = start(write_job(tmp_path, rounds=1, train={"command": script, "output_limit_bytes": 1000}))
    assert {(e["output_bytes"], e["output_tail"]) for e in run.kind("exec")} == {(50_000_006, "done")}
    assert (run.log.with_suffix("") / "output" / "worker-0.log").stat().st_size < 2000


METRICS = {
    "NaN": ('{"loss": NaN, "acc": 0.5}', {"acc": 0.5}),
    "no JSON": ("loss=0.5", {}),
    "nested": ('{"a": {"b": 1}, "c": [2], "d": "3", "e": true, "f": 4}', {"f": 4.0}),
    "a list": ("[1, 2]", {}),
    "beyond floats": ('{"loss": 1e999, "n": 1' + "0" * 400 + ', "ok": 1}', {"ok": 1.0}),
    "deep": ("[" * 100_000, {}),
    "too many": (json.dumps({f"m{i}": i for i in range(1500)}), {f"m{i}": float(i) for i in range(1000)}),
    "bytes": ("\udcff\udcfe", {}),
    "negative samples": ('{"num_samples": -1, "ok": 1}', {"ok": 1.0}),
    "huge": ("x" * 3_000_000, None),
}


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("metrics")
    for rank, (text, _) in enumerate(METRICS.values()):
        (folder / f"m-{rank}").write_bytes(text.encode("utf-8", "surrogateescape"))
    script = f'{COPY}; cp m "$ROUNDLOG_METRICS"'
    files = [{"source": "m-{rank}", "target": "m"}]
    return start(write_job(folder, rounds=1, workers=len(METRICS), train={"command": script, "files": files}))


@pytest.mark.parametrize("what", [what for what in METRICS if what != "huge"])
def test_metrics_that_can_not_all_be_used(reported: Run, what: str):
    event = reported.one("metric", rank=list(METRICS).index(what))
    assert event["values"] == METRICS[what][1]
    assert event["error"]


def test_bad_metrics_cost_no_weights(reported: Run):
    ranks = reported.one("aggregate")["ranks"]
    assert ranks == list(range(len(METRICS))), "a report that can't be used cost the weights"


def test_params_command_and_evaluation(tmp_path: Path):
    (tmp_path / "given").mkdir()
    np.savez(tmp_path / "given" / "p.npz", w=PARAMS, n=np.arange(3))
    job = write_job(
        tmp_path,
        params={"file": None, "command": 'cp given/p.npz "$ROUNDLOG_PARAMS"; echo made'},
        evaluate={"command": 'echo "{\\"acc\\": 0.$ROUNDLOG_ROUND}" > "$ROUNDLOG_METRICS"'},
    )
    run = start(job)
    assert [e["values"] for e in run.kind("metric", rank=None)] == [{"acc": 0.0}, {"acc": 0.1}]
    assert [e["exit_code"] for e in run.kind("exec", rank=None)] == [0, 0]
    with np.load(run.params) as made:
        np.testing.assert_array_equal(made["w"], PARAMS)
        np.testing.assert_array_equal(made["n"], np.arange(3))


@pytest.mark.parametrize(
    ("evaluate", "error"),
    [
        ("exit 4", "exit code 4"),
        ("sleep 600", "timed out after 300 ms"),
        (["no-such-program"], "no-such-program"),
    ],
)
def test_an_evaluation_that_fails_costs_its_figures_only(tmp_path: Path, evaluate, error: str):
    job = write_job(tmp_path, rounds=1, evaluate={"command": evaluate, "timeout_s": 0.3})
    run = start(job)
    assert error in run.one("exec", rank=None)["error"]
    assert run.one("round_end")["outcome"] == "ok"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 3", "exit code 3"),
        ("true", "wrote no file"),
        (["no-such-program"], "no-such-program"),
        ('echo x > "$ROUNDLOG_PARAMS"', "is no .npz, .npy or .safetensors"),
        ("sleep 600", "took longer than 0.3"),
    ],
)
def test_no_initial_params(tmp_path: Path, command, said: str):
    run = start(write_job(tmp_path, params={"file": None, "command": command, "timeout_s": 0.3}), code=1)
    assert [e["kind"] for e in run.events] == ["run_start", "run_end"]
    assert said in run.one("run_end")["reason"]
    assert run.err.count("error: ") == 1
    assert not list(processes_under(tmp_path))


def test_a_round_without_a_quorum_is_tried_again_and_then_the_run_has_failed(tmp_path: Path):
    script = f'test "$ROUNDLOG_ROUND" = 0 && {{ {COPY}; exit; }}; ' + case(r1="exit 1", r2="exit 1")
    job = write_job(tmp_path, workers=3, train={"command": script}, policy={"round_retries": 1})
    run = start(job, code=1)
    assert [e["attempt"] for e in run.kind("round_start", round=1)] == [1, 2]
    assert [(e["round"], e["outcome"], e["survivors"]) for e in run.kind("round_end")] == [
        (0, "ok", 3),
        (1, "failed", 0),
        (1, "failed", 0),
    ]
    end = run.one("run_end")
    assert (end["status"], end["rounds"]) == ("failed", 1)
    assert end["reason"].startswith("round 1 failed 2 times: quorum missed: ")
    assert hashlib.sha256(run.params.read_bytes()).hexdigest() == run.one("aggregate")["params_sha256"]
    assert f"error: the run failed: {end['reason']}" in run.err


def test_on_loss_stop(tmp_path: Path):
    job = write_job(tmp_path, workers=3, train={"command": case(r1="exit 1")}, policy={"on_loss": "stop"})
    run = start(job, code=1)
    assert len(run.kind("round_start")) == 1
    assert "worker 1 failed" in run.one("run_end")["reason"]


def test_a_worker_that_keeps_failing_is_left_out(tmp_path: Path):
    job = write_job(
        tmp_path, rounds=4, workers=3, train={"command": case(r1="exit 1")}, policy={"max_failures": 2}
    )
    run = start(job)
    down = run.one("worker_down")
    assert (down["rank"], down["round"], down["for_good"]) == (1, 1, True)
    assert [e["active_nodes"] for e in run.kind("round_start")] == [3, 3, 2, 2]
    assert not [e for e in run.kind("exec", rank=1) if e["round"] > 1]


def test_samples_that_sum_to_nothing(tmp_path: Path):
    script = COPY + """; echo '{"num_samples": 0}' > "$ROUNDLOG_METRICS\""""
    job = write_job(tmp_path, rounds=1, train={"command": script}, policy={"round_retries": 0})
    run = start(job, code=1)
    assert run.one("aggregate")["error"]
    assert run.one("round_end")["outcome"] == "failed"


def test_samples_nobody_can_have_are_not_counted(tmp_path: Path):
    script = COPY + """; echo '{"num_samples": 1e308}' > "$ROUNDLOG_METRICS\""""
    run = start(write_job(tmp_path, rounds=1, train={"command": script}))
    assert {e["error"] for e in run.kind("metric")} == {"num_samples is above 1e+18"}
    assert run.one("aggregate")["weighting"] == "uniform"


def test_a_spare_takes_over_before_the_run_fails(tmp_path: Path):
    job = write_job(
        tmp_path, spares=1, train={"command": case(r1="exit 1")}, policy={"quorum": 2, "round_retries": 1}
    )
    run = start(job)
    down = run.one("worker_down")
    assert (down["rank"], down["reason"], down["for_good"]) == (1, "failures", True)
    assert down["detail"] == "failed in the last try of round 0: a spare takes over"
    assert [(e["round"], e["attempt"]) for e in run.kind("round_start")] == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert [e["ranks"] for e in run.kind("aggregate")] == [[0, 2], [0, 2]]
    assert "and a spare takes its place (1 stands by), at once where the run would stop" in " ".join(
        runner("check", job).stdout.split()
    )


def test_the_newest_params_stay(tmp_path: Path):
    run = start(write_job(tmp_path, rounds=5, params={"keep": 2}))
    left = sorted(path.name for path in run.log.with_suffix("").glob("params-*"))
    assert left == ["params-0004.npy", "params-0005.npy"]


def test_secrets_reach_the_command_but_not_the_log(tmp_path: Path):
    script = (
        f'test "$TOKEN" = {SECRET} && {COPY}; echo "token $TOKEN"; '
        'echo "{\\"$TOKEN\\": 1}" > "$ROUNDLOG_METRICS"'
    )
    job = write_job(tmp_path, train={"command": script.replace(SECRET, '"$EXPECTED"'), "secrets": ["TOKEN"]})
    run = start(job, "-v", env=environ(TOKEN=SECRET, EXPECTED=SECRET))
    assert {e["output_tail"] for e in run.kind("exec")} == {"token ***"}
    assert run.one("run_start")["job"]["train"]["secrets"] == ["TOKEN"]
    assert SECRET not in run.log.read_text() + run.out + run.err


@pytest.mark.parametrize("pad", [60, 75])
def test_no_part_of_a_secret_is_in_the_log(tmp_path: Path, pad: int):
    """The tail is cut at 80 characters; what is left of a secret there is still a secret's part."""
    script = f"{COPY}; printf '%{pad}s|' x | tr ' ' x; echo $TOKEN"
    job = write_job(tmp_path, rounds=1, train={"command": script, "secrets": ["TOKEN"]})
    run = start(job, env=environ(TOKEN=SECRET))
    assert SECRET[:4] not in run.log.read_text() + run.err


def test_the_same_seed_gives_the_same_params(tmp_path: Path):
    runner("init", tmp_path / "job")
    job = tmp_path / "job" / "job.toml"
    short = re.sub(r"rounds = 5\b", "rounds = 2", re.sub(r"workers = 3\b", "workers = 2", job.read_text()))
    job.write_text(short.partition("[evaluate]")[0])
    runs = [start(job, "-q") for _ in range(2)]
    assert runs[0].params.read_bytes() == runs[1].params.read_bytes()
    shas = [[e["params_sha256"] for e in run.kind("aggregate")] for run in runs]
    assert shas[0] == shas[1]
    assert len(set(shas[0])) == 2
    job.write_text(re.sub(r"seed = 1\b", "seed = 2", job.read_text()))
    assert start(job, "-q").params.read_bytes() != runs[0].params.read_bytes()


def test_a_spare_that_stands_by_is_not_missed(tmp_path: Path, analyze):
    fails = "[ $ROUNDLOG_RANK != 1 ] || [ $ROUNDLOG_ROUND -lt 1 ] || exit 3; "
    job = write_job(
        tmp_path,
        workers=2,
        spares=2,
        rounds=3,
        train={"command": fails + COPY},
        policy={"quorum": 1, "max_failures": 1},
    )
    run = start(job)
    assert [(e["active_nodes"], e["total_nodes"]) for e in run.kind("round_start")] == [
        (2, 2),
        (2, 2),
        (2, 3),
    ]
    assert [(e["survivors"], e["total_nodes"]) for e in run.kind("round_end")] == [(2, 2), (1, 2), (2, 3)]
    code, summary, _ = analyze("summary", run.log)
    assert code == 0
    assert "no trace" not in summary
