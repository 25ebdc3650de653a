"""Job files: all mistakes are told at once, with file, line, key, what was received and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import job_text, write_job

from runner.errors import JobError
from runner.job import LoadedJob, environment
from runner.jobfile import load


def problems(path: Path, **environ: str) -> dict[str, str]:
    """Return what is wrong with a job, by key; there must be something."""
    with pytest.raises(JobError) as caught:
        load(path, environ)
    rendered = str(caught.value).splitlines()
    assert len(rendered) == len(caught.value.problems)
    for line in rendered:
        assert line.startswith(str(path))
        assert "; allowed: " in line
    return {problem.key: problem.render("job.toml") for problem in caught.value.problems}


def text(folder: Path, content: str | bytes) -> Path:
    write_job(folder)
    path = folder / "job.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_job_with_all_there_is(tmp_path: Path):
    (tmp_path / "a").write_text("")
    job = write_job(
        tmp_path,
        seed=2**63 - 1,
        workers=3,
        price_per_hour=0.25,
        params={"keep": 1},
        train={
            "command": ["python", "t.py"],
            "env": {"A": "b", "N": 3, "F": 0.5},
            "secrets": ["TOKEN"],
            "files": ["a", {"source": "a", "target": "d/b"}],
            "output_limit_bytes": 0,
        },
        evaluate={"command": "true", "timeout_s": 0.5},
        aggregate={"method": "mean", "weighting": "uniform"},
        policy={"quorum": 3, "round_retries": 0, "max_failures": 1, "on_loss": "stop"},
    )
    loaded = load(job, {"TOKEN": "secret"})
    assert loaded.secrets == {"TOKEN": "secret"}
    assert (loaded.folder, loaded.file) == (tmp_path.resolve(), job)
    assert environment(loaded.job.train.env) == {"A": "b", "N": "3", "F": "0.5"}
    described = loaded.describe()
    assert "secret" not in str(described["train"]["env"])
    assert (described["policy"]["quorum"], described["folder"]) == (3, str(tmp_path.resolve()))
    assert [loaded.job.price(rank) for rank in range(2)] == [0.25, 0.25]
    assert [str(target) for _, target in loaded.files_for(0, 0)] == ["a", "d/b"]


@pytest.mark.parametrize(("workers", "quorum"), [(1, 1), (2, 2), (9, 2)])
def test_the_quorum_that_nobody_chose(tmp_path: Path, workers: int, quorum: int):
    assert load(write_job(tmp_path, workers=workers)).job.quorum == quorum


def test_all_mistakes_at_once(tmp_path: Path):
    path = text(
        tmp_path,
        """name = "no spaces please"
rounds = 0
wrokers = 2
[params]
file = "params.npy"
command = "x"
[train]
comand = "y"
timeout_s = "long"
secrets = ["MISSING"]
files = ["nowhere", { source = "params.npy", target = "../up" }]
[train.env]
ROUNDLOG_RANK = 1
[policy]
quorum = 1.5
""",
    )
    assert problems(path) == {
        "name": "job.toml:1: name: received 'no spaces please'; allowed: "
        "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit",
        "rounds": "job.toml:2: rounds: received 0; allowed: a whole number, 1 or more",
        "wrokers": "job.toml:3: wrokers: unknown key (did you mean 'workers'?); allowed: "
        "name, rounds, seed, workers, spares, hosts, worker, ssh, price_per_hour, params, train, sim, "
        "evaluate, aggregate, wire, deadlines, policy",
        "workers": "job.toml: workers: missing; allowed: a whole number from 1 to 10000; "
        "where hosts are listed they are counted",
        "params": "job.toml:4: params: both file and command; allowed: exactly one of: "
        "file (path of an .npz, .npy or .safetensors file), command (writes $ROUNDLOG_PARAMS)",
        "train.comand": "job.toml:8: train.comand: unknown key (did you mean 'command'?); allowed: "
        "command, timeout_s, env, secrets, files, resident, retries, output_limit_bytes",
        "train.command": "job.toml:7: train.command: missing; allowed: a list of strings (run as it is) "
        "or a string (run by /bin/sh -c), not empty",
        "train.timeout_s": "job.toml:9: train.timeout_s: received 'long'; allowed: "
        "a number of seconds above 0, at most 31536000 (a year)",
        "train.secrets": "job.toml:10: train.secrets: 'MISSING' is not set in this environment; allowed: "
        "names of variables that are set: export MISSING=... first",
        "train.files[0]": "job.toml:11: train.files[0]: no such file or folder: "
        f"{str(path.parent / 'nowhere')!r}; allowed: a path that exists",
        "train.files[1]": "job.toml:11: train.files[1]: target '../up'; allowed: "
        "a relative path inside the worker's folder",
        "train.env.ROUNDLOG_RANK": "job.toml:13: train.env.ROUNDLOG_RANK: received the name 'ROUNDLOG_RANK'; "
        "allowed: letters, digits and '_', not beginning with a digit or ROUNDLOG_",
        "policy.quorum": "job.toml:15: policy.quorum: received 1.5; allowed: "
        "1 to the number of workers, or a share: above 0.0, at most 1.0",
    }


def test_files_are_judged_although_another_key_is_wrong(tmp_path: Path):
    path = write_job(
        tmp_path, rounds=0, train={"files": ["nowhere", {"source": "job.toml", "target": "../up"}]}
    )
    found = problems(path)
    assert set(found) == {"rounds", "train.files[0]", "train.files[1]"}


WRONG: list[tuple[str, list[Any]]] = [
    ("name", [1, "", "-x", "a b", "x" * 65, "a\nb", "a\n", "\u00fc"]),
    ("rounds", [0, -1, 1.0, "1", True, [1]]),
    ("seed", [-1, 2**63, 0.5, "0", False]),
    ("workers", [0, 10_001, -1, 2.0, "2", True]),
    ("params", [1, "params.npy", ["params.npy"]]),
    ("params.file", [1, "", ["x"], "missing.npy", "job.toml", "."]),
    ("params.format", ["pt", 1, ""]),
    ("params.keep", [0, -1, 1.5, "3"]),
    ("train", ["x", 1]),
    ("train.command", ["", [], [""], ["a", 1], 5, {"a": 1}, "a\0b"]),
    ("train.timeout_s", [0, -1, "1", 31_536_001, float("inf"), float("nan"), True]),
    ("train.env", ["A=1", ["A"], {"A": [1]}, {"A": {"b": 1}}, {"A": True}]),
    ("train.secrets", ["TOKEN", [1], [""], ["NOT_SET"], ["EMPTY"]]),
    ("train.files", ["a", [1], [{"target": "a"}], [{"source": "a", "what": "b"}], [""]]),
    ("train.output_limit_bytes", [-1, 1.5, "1 GB"]),
    ("evaluate", [1, "true"]),
    ("evaluate.command", ["", [], 1]),
    ("evaluate.timeout_s", [0, "1"]),
    ("aggregate.method", ["fedavg", 1, "own:", ":f", "a-b:c", "../x:f"]),
    ("aggregate.optimizer", ["adam", 1]),
    ("aggregate.learning_rate", [0.1]),
    ("aggregate.clip_norm", [0, -1, "1"]),
    ("aggregate.outlier_k", [0, True]),
    ("aggregate.include", ["*", [""], [1]]),
    ("aggregate.trim", [0.1]),
    ("aggregate.byzantine", [1]),
    ("aggregate.keep", [1]),
    ("aggregate.weighting", ["loss", True]),
    ("policy", [1, "strict"]),
    ("policy.quorum", [0, 3, -1, 1.5, "2", True]),
    ("policy.round_retries", [-1, 0.5, "2"]),
    ("policy.max_failures", [0, -1, 1.5]),
    ("policy.on_loss", ["ignore", 1]),
]
TOGETHER = [
    ({"method": "trimmed_mean", "trim": 0.5}, "aggregate.trim"),
    ({"method": "trimmed_mean", "trim": -0.1}, "aggregate.trim"),
    ({"method": "krum", "byzantine": 1}, "aggregate.byzantine"),
    ({"method": "krum", "keep": 2}, "aggregate.keep"),
    ({"optimizer": "diloco", "beta_1": 0.5}, "aggregate.beta_1"),
    ({"optimizer": "fedadam", "momentum": 0.5}, "aggregate.momentum"),
    ({"optimizer": "fedadam", "beta_2": 1.0}, "aggregate.beta_2"),
    ({"optimizer": "fedadam", "bias_correction": 1}, "aggregate.bias_correction"),
]


@pytest.mark.parametrize(("aggregate", "key"), TOGETHER, ids=[key for _, key in TOGETHER])
def test_what_does_not_go_together_in_the_aggregate(tmp_path: Path, aggregate: dict[str, Any], key: str):
    assert list(problems(write_job(tmp_path, aggregate=aggregate))) == [key]


EACH = [(key, value) for key, values in WRONG for value in values]


@pytest.mark.parametrize(("key", "value"), EACH, ids=[f"{k}={str(v)[:20]!r}" for k, v in EACH])
def test_a_wrong_value_is_named_with_its_key(tmp_path: Path, key: str, value: Any):
    table, _, name = key.partition(".")
    changes: dict[str, Any] = {table: value}
    if name:
        changes = {table: {name: value}}
    if table == "evaluate" and name:
        changes = {table: {"command": "true", **changes[table]}}
    found = problems(write_job(tmp_path, **changes), EMPTY="")
    assert all(k == key or k.startswith((f"{key}[", f"{key}.")) for k in found), found


TARGETS = [
    "../x",
    "/x",
    "a/../../x",
    "..",
    ".",
    "a\0b",
    "params-0001.npz",
    "d/weights-3.npy",
    "metrics-12.json",
]


@pytest.mark.parametrize("target", TARGETS)
def test_targets_stay_inside_and_off_the_rounds_own_names(tmp_path: Path, target: str):
    files = [{"source": "params.npy", "target": target}]
    assert "train.files[0]" in problems(write_job(tmp_path, train={"files": files}))


@pytest.mark.parametrize("target", ["a//b", "a/", "./a", "a/./b"])
def test_a_target_that_passes_can_be_pushed(tmp_path: Path, target: str):
    """What check lets through must be a name that a connection takes."""
    from runner.connection import checked_name

    files = [{"source": "params.npy", "target": target}]
    for _, name in load(write_job(tmp_path, train={"files": files})).files_for(0, 0):
        checked_name(str(name))


def test_one_target_for_two_files(tmp_path: Path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "params.npy").write_text("")
    found = problems(write_job(tmp_path, train={"files": ["params.npy", "d/params.npy"]}))
    assert "as train.files[0]" in found["train.files[1]"]


def test_files_for_each_worker(tmp_path: Path):
    (tmp_path / "s-0").write_text("")
    job = write_job(tmp_path, workers=4, train={"files": ["s-{rank}"]})
    assert "s-1" in problems(job)["train.files[0]"]
    assert "2 more of them" in problems(job)["train.files[0]"]
    for rank in (1, 2, 3):
        (tmp_path / f"s-{rank}").mkdir()
        (tmp_path / f"s-{rank}" / "x").write_text("")
    loaded = load(job)
    assert [str(target) for _, target in loaded.files_for(0, 0)] == ["s-0"]
    assert [str(target) for _, target in loaded.files_for(3, 3)] == ["s-3/x"]


@pytest.mark.parametrize("source", ["x" * 300, "a\0b", "params.npy/below"])
def test_sources_that_no_file_can_have(tmp_path: Path, source: str):
    assert "train.files[0]" in problems(write_job(tmp_path, train={"files": [source]}))


def test_params_of_a_name_that_no_file_can_have(tmp_path: Path):
    assert "params.file" in problems(write_job(tmp_path, params={"file": "x" * 300 + ".npy"}))


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        ("name = 'x'\nrounds = = 2\n", 2, "syntax"),
        ("name = 'x'\n[train\n", 2, "syntax"),
        ("a = 1\na = 2\n", 2, "syntax"),
        (b"name = 'x'\n# \xff\n", None, "not UTF-8"),
        ("", None, "missing"),
    ],
)
def test_what_is_no_toml(tmp_path: Path, content: str | bytes, line: int | None, said: str):
    path = text(tmp_path, content)
    found = problems(path)
    assert any(said in told for told in found.values())
    if line:
        assert found["syntax"].startswith(f"job.toml:{line}: ")


def test_what_can_not_be_read(tmp_path: Path):
    assert "No such file" in problems(tmp_path / "missing.toml")["file"]
    assert "directory" in problems(tmp_path)["file"].lower()


def test_a_byte_order_mark_is_no_riddle(tmp_path: Path):
    """Editors on Windows put one in front; either it is read past, or the error says what it is."""
    path = write_job(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    try:
        load(path)
    except JobError as e:
        assert "byte order mark" in str(e) or "BOM" in str(e)  # noqa: PT017 - one of two good ends


KEYS = [
    "name",
    "rounds",
    "seed",
    "workers",
    "params",
    "train",
    "evaluate",
    "aggregate",
    "policy",
    "command",
    "env",
]
KEYS += ["file", "timeout_s", "files", "secrets", "quorum", "source", "target", "x", "", "a b", "ROUNDLOG_X"]
SCALARS = (
    st.integers()
    | st.booleans()
    | st.floats()
    | st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8)
    | st.sampled_from(["params.npy", "1979-05-27", "..", "{rank}", "{"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=4))
def test_anything_at_all_is_a_job_or_a_job_error(tmp_path: Path, changes: dict[str, Any]):
    path = write_job(tmp_path)
    base: dict[str, Any] = {"name": "t", "rounds": 1, "workers": 2, "params": {"file": "params.npy"}}
    path.write_text(job_text({**base, "train": {"command": "x"}, **changes}), encoding="utf-8")
    try:
        loaded = load(path, {})
    except JobError as e:
        found = e.problems
    else:
        assert isinstance(loaded, LoadedJob)
        return
    assert found
    assert not any(problem.key == "syntax" for problem in found), "the test's own TOML is wrong"


@pytest.mark.parametrize(
    ("policy", "fine"),
    [
        ({"quorum": 0.75, "close_at": 0.5}, False),
        ({"close_at": 1}, False),
        ({"grace_s": 0}, True),
        ({"quorum": 2, "close_at": 3}, True),
        ({"quorum": 1.0, "close_at": 1.0}, True),
    ],
)
def test_a_round_is_not_closed_before_it_can_count(tmp_path: Path, policy: dict[str, Any], fine: bool):
    path = write_job(tmp_path, workers=4, policy=policy)
    if fine:
        assert load(path)
    else:
        assert set(problems(path)) == {"policy.close_at"}


def test_a_grace_that_nothing_gives_is_a_mistake(tmp_path: Path):
    found = problems(write_job(tmp_path, policy={"grace_s": 3}))
    assert set(found) == {"policy.grace_s"}
