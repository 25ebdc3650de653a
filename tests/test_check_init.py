"""``runner check`` and ``runner init``."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import environ, runner, start, write_job

from runner import jobfile

EXAMPLES = Path(__file__).parents[1] / "examples"


def rows(job: Path, **options) -> dict[str, str]:
    lines = runner("check", job, **options).stdout.splitlines()
    return {topic: text.strip() for topic, _, text in (line.partition(":") for line in lines)}


def test_check_tells_what_would_happen(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(b"x" * 1000)
    job = write_job(
        tmp_path,
        seed=3,
        train={"command": "train it", "files": ["data"], "env": {"A": 1}, "secrets": ["TOKEN"]},
        evaluate={"command": ["true", "a b"]},
    )
    told = rows(job, env=environ(TOKEN="hidden"))
    assert told["job"] == f"t ({job})"
    assert told["rounds"] == "2, seed 3"
    assert told["workers"].startswith("2 local processes")
    assert told["params"] == "params.npy: 1 array, 24 B"
    assert told["train"] == "sh -c 'train it', at most 1m00s a round" or "60.0 s" in told["train"]
    assert told["files"] == "data/x; sent once to each worker, 2.0 KB in all"
    assert told["env"] == "A=1"
    assert told["secrets"].startswith("TOKEN ")
    assert "hidden" not in str(told)
    assert "true 'a b' here after each round" in told["evaluate"]
    assert told["policy"].startswith("needs 2 of 2 workers, else")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"round_retries": 0}, "else stops"),
        ({"round_retries": 1}, "retries the round once (lost workers get 30.0 s to return), then stops"),
        (
            {"round_retries": 5, "round_backoff_s": 120},
            "5 times (lost workers get 2m00s to return, twice as long each time), then stops",
        ),
        ({"round_backoff_s": 0}, "else retries the round twice, then stops"),
        ({"on_loss": "stop"}, "needs all 2 workers"),
        ({"quorum": 1}, "needs 1 of 2"),
    ],
)
def test_check_tells_the_policy(tmp_path: Path, policy: dict, said: str):
    assert said in rows(write_job(tmp_path, policy=policy))["policy"]


def test_check_warns(tmp_path: Path):
    job = write_job(tmp_path, train={"command": ["no-such-program"]}, policy={"quorum": 1})
    out = runner("check", job).stdout
    assert "no program 'no-such-program'" in out
    assert "policy.quorum is 1" in out


@pytest.mark.parametrize("program", ["no-such-python", "/no/such/python"])
def test_check_warns_of_a_python_for_the_wire_that_is_not_there(tmp_path: Path, program: str):
    out = runner("check", write_job(tmp_path, wire={"pull": "int8", "python": program})).stdout
    assert f"no program '{program}'" in " ".join(out.split())
    assert "wire.python" not in runner("check", write_job(tmp_path, wire={"pull": "int8"})).stdout


def test_check_of_wrong_jobs(tmp_path: Path):
    job = write_job(tmp_path)
    (tmp_path / "params.npy").write_bytes(b"nothing of the kind")
    done = runner("check", job, code=2)
    assert "params.file" in done.stderr
    assert done.stdout == ""
    done = runner("check", tmp_path / "missing.toml", code=2)
    assert "can't be read" in done.stderr


def test_init_runs_as_it_is(tmp_path: Path):
    folder = tmp_path / "new" / "job"
    done = runner("init", folder)
    assert done.stdout.splitlines() == [str(folder / "job.toml"), str(folder / "train.py")]
    assert "hint: runner check" in done.stderr
    assert "warning" not in rows(folder / "job.toml")
    run = start(folder / "job.toml")
    losses = [e["values"]["loss"] for e in run.kind("metric", rank=None)]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("name", ["job.toml", "train.py"])
def test_init_overwrites_nothing(tmp_path: Path, name: str):
    (tmp_path / name).write_text("precious")
    done = runner("init", tmp_path, code=1)
    assert "exists already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


def test_init_where_it_can_not(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert runner("init", tmp_path / "file", code=2).stdout == ""
    done = runner("init", tmp_path / "file" / "below", code=1)
    assert done.stderr.startswith("error: ")
    assert done.stdout == ""


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.toml")), ids=lambda path: path.name)
def test_every_example_is_a_job_or_chaos(path: Path):
    if path.name == "chaos.toml":
        jobfile.load_chaos(path)
    else:
        jobfile.load(path)


@pytest.mark.parametrize(
    ("workers", "trim", "said", "warning"),
    [
        (4, 0.25, "25% at each end (1 of 4; nobody where fewer than 4 deliver)", None),
        (10, 0.3, "30% at each end (3 of 10; nobody where fewer than 4 deliver)", None),
        (
            4,
            0.2,
            "20% at each end (0 of 4)",
            "of 4 workers that is nobody, and the plain mean is left; say 0.25 or",
        ),
        (3, None, "10% at each end (0 of 3)", "say 0.34 or more"),
        (2, 0.4, "40% at each end (0 of 2)", 'that takes 3 workers, or method = "median"'),
    ],
)
def test_a_share_to_cut_off_that_is_of_nobody(
    tmp_path: Path, workers: int, trim: float | None, said: str, warning: str | None
):
    method = {"method": "trimmed_mean"} | ({} if trim is None else {"trim": trim})
    told = rows(write_job(tmp_path, workers=workers, aggregate=method))
    assert said in told["aggregate"]
    assert "warning" not in told if warning is None else warning in told["warning"]
