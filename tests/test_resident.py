"""Commands that stay from round to round do as others; what they do wrong costs their round only."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import Run, Started, eventually, processes_under, start, write_job

from runner.resident import Answers

SCRIPT = """
import os, sys, time
import numpy as np
from roundlog_rounds import rounds
rank = int(os.environ["ROUNDLOG_RANK"])
print("started")
for r in rounds():
    params = np.load(r.params)
    print("training", r.round, flush=True)
    if (rank, r.round) == (1, 1):
        {fault}
    with open(r.weights, "wb") as file:
        np.save(file, params + np.float32(rank + 1))
    r.report(loss=0.5, num_samples=rank + 1)
"""


def job(folder: Path, fault: str = "pass", **changes: Any) -> Path:
    """Write a job of three rounds and two workers; worker 1 does something in round 1."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT.replace("{fault}", fault))
    train = {
        "command": ["{python}", "train.py"],
        "files": ["train.py", "{rounds}"],
        "resident": True,
        **changes.pop("train", {}),
    }
    return write_job(folder, **{"rounds": 3, "train": train, **changes})


def output(run: Run, rank: int) -> str:
    return (run.log.with_suffix("") / "output" / f"worker-{rank}.log").read_text()


def test_it_does_as_one_that_is_started_each_round(tmp_path: Path):
    stays, ends = start(job(tmp_path / "a")), start(job(tmp_path / "b", train={"resident": False}))
    assert stays.params.read_bytes() == ends.params.read_bytes()
    assert [e["kind"] for e in stays.events if e["rank"] is None] == [
        e["kind"] for e in ends.events if e["rank"] is None
    ]
    for run, starts in ((stays, 1), (ends, 3)):
        assert output(run, 0).count("started") == starts
        assert output(run, 0).count("training") == 3
        assert "roundlog:" not in output(run, 0)
        assert [e["values"] for e in run.kind("metric", rank=1)] == [{"loss": 0.5}] * 3
        assert all(e["num_samples"] == 2 for e in run.kind("metric", rank=1))
    assert {e["exit_code"] for e in stays.kind("exec")} == {None}
    assert {e["output_tail"] for e in stays.kind("exec", round=2)} == {"training 2"}
    left = {path.name for path in (stays.log.with_suffix("") / "workers" / "0").iterdir()}
    assert left >= {"train.py", "roundlog_rounds.py"}
    assert not {name for name in left if "0000" in name or "0001" in name}, "files of old rounds are gone"
    assert not list(processes_under(tmp_path))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("sys.exit()", "the resident command ended before it had answered"),
        ("os.kill(os.getpid(), 9)", "ended by signal 9"),
        ("time.sleep(600)", "timed out after 2"),
        ("os.write(1, b'\\nroundlog:garbage\\n'); time.sleep(600)", "and answered 'garbage'"),
        (
            "os.write(1, b'\\nroundlog:{\"round\": 7}\\n'); time.sleep(600)",
            "round 1 and answered '{\"round\": 7}'",
        ),
        ("os.write(1, b'\\nroundlog:[]\\n'); time.sleep(600)", "answered '[]'"),
        ("continue", "no weights were written"),
        ("sys.stdin.close(); os.close(0); os.close(1); os.close(2); time.sleep(600)", "timed out"),
    ],
)
def test_what_goes_wrong_costs_one_round(tmp_path: Path, fault: str, error: str):
    run = start(job(tmp_path, fault, train={"timeout_s": 2}, policy={"quorum": 1}))
    assert [e["survivors"] for e in run.kind("round_end")] == [2, 1, 2]
    (failed,) = [e for e in run.kind("exec") if e["error"]]
    assert (failed["round"], failed["rank"]) == (1, 1)
    assert error in failed["error"]
    assert not list(processes_under(tmp_path))


def test_one_that_answers_without_reading_ends_no_run(tmp_path: Path):
    made = job(tmp_path, rounds=4, policy={"quorum": 1, "max_failures": 9})
    (tmp_path / "train.py").write_text(
        "import os, shutil, time\nos.close(0)\n"
        "for number in range(4):\n"
        "    params, weights = f'params-{number:04}.npy', f'weights-{number:04}.npy'\n"
        "    while not os.path.exists(params): time.sleep(0.001)\n"
        "    shutil.copy(params, weights)\n"
        "    os.write(1, b'roundlog:{\"round\": %d}\\n' % number)\n"
    )
    run = start(made, code=1)
    assert run.one("run_end")["reason"].startswith("round ")
    errors = {e["error"] for e in run.kind("exec")}
    assert "the resident command no longer reads its standard input" in errors


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("sys.exit(3)", {"train": {"retries": 1}}),
        ("params = np.float32([[np.nan] * 3] * 2)", {}),
        ("os.symlink('/dev/null', r.weights)", {}),
    ],
)
def test_the_events_are_those_of_a_command_that_is_started_each_round(
    tmp_path: Path, fault: str, changes: dict[str, Any]
):
    policy = {"quorum": 1, "backoff_s": 0}
    given = changes.pop("train", {})
    kept = ("kind", "round", "rank", "attempt", "error", "reason", "survivors", "failed", "output_tail")
    told = []
    for resident in (True, False):
        made = job(
            tmp_path / str(resident), fault, train={"resident": resident, **given}, policy=policy, **changes
        )
        text = (made.parent / "train.py").read_text()
        (made.parent / "train.py").write_text(text.replace('print("started")\n', ""))
        run = start(made)
        events = [
            {name: e.get(name) for name in kept}
            for e in run.events
            if e["kind"] in {"exec", "reject", "aggregate", "round_end", "worker_down", "run_end"}
        ]
        told.append(
            sorted(events, key=lambda e: (e["round"] or 0, e["rank"] or 0, e["kind"], e["attempt"] or 0))
        )
    assert told[0] == told[1]


def test_weights_that_are_written_to_when_they_should_be_done_are_rejected(tmp_path: Path):
    made = job(tmp_path, policy={"quorum": 1})
    script = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(
        script.replace("from roundlog_rounds", "import threading\nfrom roundlog_rounds")
        + "    if (rank, r.round) == (0, 1):\n"
        "        time.sleep(1)\n"  # so that the other's are taken first, and written to
        "    if (rank, r.round) == (1, 1):\n"
        "        def again(name=r.weights, last=open(r.weights, 'rb').read()[-4:]):\n"
        "            with open(name, 'r+b', buffering=0) as file:\n"
        "                while os.path.exists(name):\n"
        "                    os.pwrite(file.fileno(), last, os.path.getsize(name) - 4)\n"
        "        threading.Thread(target=again, daemon=True).start()\n"
    )
    run = start(made)
    assert run.one("reject")["detail"].startswith("its file was written to after it was handed back")
    assert (run.one("reject")["round"], run.one("reject")["rank"]) == (1, 1)
    assert [e["survivors"] for e in run.kind("round_end")] == [2, 1, 2]
    assert [e["failed"] for e in run.kind("round_end")] == [[], [1], []]


def test_its_last_words_are_kept(tmp_path: Path):
    made = job(tmp_path)
    with (tmp_path / "train.py").open("a") as file:
        file.write("\nprint('saved it all')\n")
    assert output(start(made), 0).endswith("saved it all\n")


def test_a_command_killed_on_purpose_is_logged_as_such(tmp_path: Path):
    chaos = tmp_path / "chaos.toml"
    chaos.write_text('faults_per_hour = 3600\nper_worker = true\nkinds = ["kill"]\nseed = 3\n')
    made = job(tmp_path, "time.sleep(600)", train={"timeout_s": 60}, policy={"quorum": 1, "round_retries": 0})
    run = start(made, "-q", "--chaos", chaos, code=None)
    failed = [e for e in run.kind("exec") if e["error"]]
    assert failed
    assert {e["injected"] for e in failed} == {"kill"}
    assert not processes_under(tmp_path)


def test_weights_that_are_promised_and_not_there(tmp_path: Path):
    lie = "os.write(1, b'\\nroundlog:{\"round\": 1}\\n'); continue"
    run = start(job(tmp_path, lie, policy={"quorum": 1}))
    assert "No such file or directory" in run.one("pull", rank=1, round=1)["error"]
    assert run.one("reject", rank=1, round=1)["reason"] == "missing"
    assert run.kind("round_end", round=1)[0]["survivors"] == 1


def test_one_that_died_between_rounds_is_started_again(tmp_path: Path):
    die = "__import__('threading').Timer(0.05, os._exit, [0]).start()"
    run = start(job(tmp_path, die, rounds=40))
    assert run.one("run_end")["status"] == "completed"
    assert output(run, 1).count("started") == 2


def test_ctrl_c_leaves_nothing(tmp_path: Path):
    path = job(tmp_path, "time.sleep(600)")
    with Started(path) as started:
        log = tmp_path / "runs"
        eventually(
            lambda: (
                any('"round":1,"rank":1,"command"' in p.read_text() for p in log.glob("*.jsonl"))
                or any(p.read_text().count('"kind":"exec_start"') == 4 for p in log.glob("*.jsonl"))
            ),
            "round 1",
        )
        run = started.end(signal.SIGINT)
    assert run.code == 130
    assert not list(processes_under(tmp_path))


class Collected:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, chunk: bytes) -> None:
        self.data += chunk


LINES = st.lists(
    st.one_of(
        st.sampled_from([b"roundlog:{}", b"roundlog:", b"roundlo", b"x roundlog:1", b"", b"\r"]),
        st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")),
    )
)


@given(LINES, st.booleans(), st.lists(st.integers(1, 9)))
def test_answers_are_told_from_output_however_it_is_cut(lines: list[bytes], ended: bool, cuts: list[int]):
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    whole = text.split(b"\n")
    complete, rest = whole[:-1], whole[-1]
    answers: list[bytes] = []
    sink = Collected()
    taker = Answers(answers.append)
    taker.output = sink
    at = 0
    for cut in [*cuts, len(text)]:
        taker.write(text[at : at + cut])
        at += cut
    mark = b"roundlog:"
    assert answers == [line[len(mark) :] for line in complete if line.startswith(mark)]

    def passed(line: bytes, after: bytes) -> bytes:
        mine = line.startswith(mark) or (not line and after.startswith(mark))
        return b"" if mine else line + b"\n"

    kept = b"".join(map(passed, complete, whole[1:]))
    taker.end()
    assert sink.data in {kept + rest, kept + b"\n" + rest}, "the last empty line is of no answer"


def test_an_answer_comes_at_once_and_output_too():
    answers: list[bytes] = []
    sink = Collected()
    taker = Answers(answers.append)
    taker.output = sink
    for chunk, output, count in (
        (b"loss 1\n", b"loss 1\n", 0),
        (b"half", b"loss 1\nhalf", 0),
        (b"\nroundlog:1\n", b"loss 1\nhalf\n", 1),
        (b"\nroundlog:2\nr", b"loss 1\nhalf\n", 2),
        (b"x", b"loss 1\nhalf\nrx", 2),
        (b"roundlog:3\n\n", b"loss 1\nhalf\nrxroundlog:3\n", 2),
        (b"roundlog:4", b"loss 1\nhalf\nrxroundlog:3\n", 2),
        (b"\n", b"loss 1\nhalf\nrxroundlog:3\n", 3),
    ):
        taker.write(chunk)
        assert (sink.data, len(answers)) == (output, count)


def test_much_output_takes_no_long():
    """Each line costs its own length, however large the piece that it comes in."""
    sink = Collected()
    taker = Answers(lambda _: None)
    taker.output = sink
    taker.write(b"y\n" * 500_000 + b"roundlog:1\n" * 50_000)
    assert len(sink.data) == 1_000_000


def test_an_answer_without_end_is_told_and_its_rest_is_output():
    answers: list[bytes] = []
    sink = Collected()
    taker = Answers(answers.append)
    taker.output = sink
    taker.write(b"roundlog:")
    for _ in range(40):
        taker.write(b"x" * 65_536)
    assert len(answers) == 1
    assert len(answers[0]) > 1 << 20
    assert len(sink.data) > 1_000_000


@pytest.mark.parametrize("resident", [True, False])
def test_what_python_prints_is_seen_at_once_and_in_order(tmp_path: Path, resident: bool):
    fault = (
        "sys.stdout.write('busy '); time.sleep(0.6); print('still'); time.sleep(0.6); raise ValueError('why')"
    )
    made = job(tmp_path, fault, train={"resident": resident}, deadlines={"idle_s": 1}, policy={"quorum": 1})
    run = start(made)
    (failed,) = [e for e in run.kind("exec") if e["error"]]
    assert (failed["exit_code"], failed["output_tail"]) == (1, "ValueError: why")
    output = (run.log.with_suffix("") / "output" / "worker-1.log").read_text()
    assert output.index("training 1") < output.index("busy still") < output.index("Traceback")
