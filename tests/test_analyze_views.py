"""What the views say of given log lines; and that each of them is documented in the database."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import logs
import pytest
from logs import SHA, Log, Turn, play_round

from analyze import lazy
from analyze.database import Database, empty, opened
from analyze.glyphs import SETS
from analyze.report import gantt_lines, stories, summary_lines
from analyze.terminal import Paper
from analyze.told import cost_sentence
from schemas.events import BODIES


@contextmanager
def database_of(log: Log, folder: Path):
    with opened([log.write(folder)]) as database:
        yield database


def ask(log: Log, folder: Path, query: str):
    with database_of(log, folder) as database:
        return database.execute(query).fetchall()


def started(workers=2, rounds=2) -> Log:
    log = Log(run="r", workers=workers, rounds=rounds, name="job")
    log.start()
    return log


def test_every_view_and_column_is_documented():
    views = list(Database(empty()).documented())
    assert {"runs", "rounds", "spans", "workers", "metrics", "events", "rejects"} <= {
        name for name, _, _ in views
    }
    bare = [f"{view}.{name}" for view, _, columns in views for name, _, doc in columns if not doc.strip()]
    assert not bare
    assert all(doc.strip() for _, doc, _ in views)


def test_the_views_documents_are_in_the_file_a_user_reads():
    folder = Path(__file__).parents[1] / "analyze"
    text = "".join(path.read_text() for path in folder.glob("*.sql"))
    for view, _, _ in Database(empty()).documented():
        assert f"COMMENT ON VIEW {view} IS" in text


def two_workers_one_round() -> Log:
    log = started()
    play_round(log, 0, {0: Turn(train=0.5), 1: Turn(train=0.25)})
    log.end(1)
    return log


CASES = [
    (
        "SELECT rank, phase, start_us, end_us FROM spans WHERE kind != 'exec' ORDER BY start_us, 1 LIMIT 3",
        [(0, "push", 0, 20_000), (1, "push", 0, 20_000), (1, "pull", 270_000, 300_000)],
    ),
    (
        "SELECT rank, state, start_us, end_us FROM segments WHERE rank = 1 ORDER BY start_us",
        [
            (1, "push", 0, 20_000),
            (1, "train", 20_000, 270_000),
            (1, "pull", 270_000, 300_000),
            (1, "pull", 300_000, 304_000),
            (1, "wait", 304_000, 746_000),
        ],
    ),
    (
        (
            "SELECT survivors, total_nodes, bytes_up, bytes_down, longest_train_us, aggregate_us, eval_us, "
            "duration_us FROM rounds"
        ),
        [(2, 2, 18_800, 18_922, 500_000, 12_000, 180_000, 746_000)],
    ),
    (
        "SELECT push_us, train_us, pull_us, wait_us, dead_us, aggregate_us, eval_us, total_us FROM phases",
        [(40_000, 750_000, 68_000, 250_000, 0, 24_000, 360_000, 1_492_000)],
    ),
    (
        "SELECT name, source, round(value, 6) FROM round_metrics ORDER BY source, name",
        [
            ("accuracy", "evaluation", 0.68),
            ("loss", "evaluation", 0.8),
            # 200 samples of 0.9 and 300 of 0.92
            ("loss", "workers", 0.912),
        ],
    ),
    (
        "SELECT job_name, status, rounds_done, rounds_planned, last_survivors, last_metric FROM runs",
        [("job", "completed", 1, 2, 2, "accuracy")],
    ),
    ("SELECT rank, survived, rounds, state FROM workers ORDER BY rank", [(0, 1, 1, "up"), (1, 1, 1, "up")]),
    ("SELECT count(*) FROM losses", [(0,)]),
    (
        "SELECT push_s, train_s, pull_s, total_s, bytes_up FROM run_medians",
        [(0.02, 0.5, 0.034, 0.746, 18_800.0)],
    ),
]


@pytest.mark.parametrize(("query", "want"), CASES)
def test_a_round_of_two_workers(tmp_path, query, want):
    assert ask(two_workers_one_round(), tmp_path, query) == want


def test_a_failed_span_is_dead_until_the_workers_next_span(tmp_path):
    log = started()
    play_round(log, 0, {0: Turn(train=0.1, fails="exec"), 1: Turn(train=0.5)}, evaluate=False)
    log.t += 0.1
    play_round(log, 1, {0: Turn(), 1: Turn()}, evaluate=False)
    got = ask(
        log, tmp_path, "SELECT round, state, start_us, end_us FROM segments WHERE rank = 0 ORDER BY start_us"
    )
    assert got[:3] == [(0, "push", 0, 20_000), (0, "dead", 20_000, 120_000), (0, "dead", 120_000, 566_000)]
    assert got[3] == (1, "push", 666_000, 686_000)


def test_failed_transfers_and_reused_bytes_are_not_counted(tmp_path):
    log = started(workers=1)
    log.round_start(0)
    for given in (
        logs.transfer(0.1, size=1000, error="cut"),
        logs.transfer(0.1, size=1000, attempt=2, reused=300),
    ):
        log.t += 0.1
        log.add("push", 0, 0, **given)
    log.round_end(0, 0)
    assert ask(log, tmp_path, "SELECT bytes_up, failures FROM rounds") == [(700, 1)]


def test_a_worker_without_a_trace_is_dead_for_the_whole_round_and_told_once(tmp_path):
    log = started(workers=2, rounds=3)
    for round_ in range(3):
        play_round(log, round_, {1: Turn(silent=True)}, evaluate=False)
    with database_of(log, tmp_path) as database:
        rows = database.rows("SELECT s.* FROM segments s WHERE rank = 1 ORDER BY nth")
        rounds = database.rows("SELECT * FROM rounds ORDER BY nth")
        assert [(r["state"], r["start_us"], r["end_us"]) for r in rows] == [
            ("dead", r["start_us"], r["end_us"]) for r in rounds
        ]
        assert [r["text"] for r in database.rows("SELECT text FROM losses")] == ["in rounds 0 to 2"]


def test_a_round_tried_again_has_a_row_for_each_try(tmp_path):
    got = ask(
        logs.demo(),
        tmp_path,
        "SELECT round, attempt, outcome, survivors FROM rounds WHERE round = 4 ORDER BY nth",
    )
    assert got == [(4, 1, "failed", 0), (4, 2, "ok", 4)]
    assert ask(logs.demo(), tmp_path, "SELECT rounds_done, round_tries FROM runs") == [(8, 9)]


@pytest.mark.parametrize(
    "log", [logs.demo(), logs.demo(crash=True), logs.big(7, 9)], ids=["demo", "crash", "big"]
)
def test_everything_adds_up_exactly(tmp_path, log):
    with database_of(log, tmp_path) as database:
        parts = "push_us + train_us + pull_us + wait_us + dead_us + aggregate_us + eval_us"
        assert database.rows(f"SELECT * FROM phases WHERE {parts} <> total_us") == []
        uneven = (
            "SELECT s.nth, s.rank FROM segments s JOIN rounds r USING (run_no, nth) WHERE s.rank IS NOT NULL "
            "GROUP BY s.nth, s.rank, r.duration_us HAVING sum(s.duration_us) <> r.duration_us"
        )
        assert database.rows(uneven) == []
        (sums,) = database.rows(
            "SELECT sum(duration_us) AS d, sum(bytes_up) AS u, sum(bytes_down) AS b FROM rounds"
        )
        (run,) = database.rows("SELECT rounds_us, bytes_up, bytes_down FROM runs")
        assert tuple(sums.values()) == tuple(run.values())
        spans = [e for e in log.events if e["kind"] in {"push", "exec", "pull", "aggregate"}]
        (seen,) = database.rows("SELECT count(*) AS n, sum(duration_us) AS us FROM spans WHERE NOT open")
        assert seen == {"n": len(spans), "us": sum(round(e["duration_s"] * 1e6) for e in spans)}


def test_a_crash_shows_what_was_open_up_to_the_last_event(tmp_path):
    log = logs.demo(crash=True)
    with database_of(log, tmp_path) as database:
        (run,) = database.rows("SELECT status, open_round, open_spans, rounds_done FROM runs")
        assert run == {"status": "crashed", "open_round": 6, "open_spans": 1, "rounds_done": 6}
        (work,) = database.rows("SELECT rank, phase, doing FROM open_work")
        assert work == {"rank": 2, "phase": "train", "doing": "python train.py"}
        (span,) = database.rows("SELECT end_us FROM spans WHERE open")
        assert span["end_us"] == round(log.t * 1e6)


def test_a_log_that_a_runner_holds_is_running(tmp_path):
    log = logs.demo(crash=True)
    path = log.write(tmp_path)
    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with opened([path]) as database:
            assert [r["status"] for r in database.rows("SELECT status FROM runs")] == ["running"]
            states = database.rows("SELECT DISTINCT state FROM segments WHERE round = 6 AND rank = 3")
            assert states == [{"state": "dead"}]


def test_in_a_running_round_a_worker_that_has_not_begun_waits(tmp_path):
    log = started()
    log.round_start(0)
    log.add("push_start", 0, 0, path="p", attempt=1)
    log.t += 0.5
    log.add("metric", 0, values={}, num_samples=None, error=None)
    path = log.write(tmp_path)
    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with opened([path]) as database:
            got = database.execute("SELECT rank, state, open FROM segments ORDER BY rank").fetchall()
    assert got == [(0, "push", True), (1, "wait", False)]


def test_a_resumed_run_ends_open_spans_with_their_session(tmp_path):
    log = started(workers=1)
    log.round_start(0)
    log.add("push_start", 0, 0, path="p", attempt=1)
    log.t += 0.5
    log.add("metric", 0, 0, values={}, num_samples=None, error=None)
    log.t += 10
    log.add(
        "run_resume",
        session=1,
        trusted_seq=3,
        broken_offset=None,
        broken_bytes=None,
        reason="crash",
        host="h",
        pid=1,
    )
    play_round(log, 0, {0: Turn()}, attempt=2)
    log.end(1)
    got = ask(log, tmp_path, "SELECT attempt, phase, start_us, end_us FROM spans WHERE open")
    assert got == [(1, "push", 0, 500_000)]
    query = "SELECT status, resumes, rounds_done, paused_us FROM runs"
    assert ask(log, tmp_path, query) == [("completed", 1, 1, 10_000_000)]
    assert ", of it 10.0 s between sessions" in told_of(log.write(tmp_path))[0][0]


def test_a_lost_line_of_a_span_costs_that_span_alone(tmp_path):
    log = two_workers_one_round()
    gone = next(i for i, e in enumerate(log.events) if e["kind"] == "exec" and e["rank"] == 0)
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"".join(line + b"\n" for i, line in enumerate(log.lines()) if i != gone))
    with opened([path]) as database:
        got = database.execute("SELECT phase, open, end_us FROM spans WHERE rank = 0 ORDER BY seq").fetchall()
        assert got[1] == ("train", True, 520_000)
        assert database.rows("SELECT reason, lines FROM damage") == [{"reason": "missing seq", "lines": 1}]


def told_of(path: Path):
    paper = Paper(120, SETS["ascii"])
    with opened([path]) as database:
        (story,) = stories(database)
        chart = list(gantt_lines(database, story, paper, workers=64, wanted=None))
        return list(summary_lines(story, paper)), chart


def test_a_version_0_log_has_the_chart_and_summary_of_the_same_run_in_version_1():
    data = Path(__file__).parent / "data"
    (old, old_chart), (new, new_chart) = told_of(data / "v0.jsonl"), told_of(data / "v0-same-run-in-v1.jsonl")
    assert old_chart == new_chart
    # Version 0 does not say how a run ended; all else is the same.
    assert old[0].startswith("run v0  end not said (a version 0 log)  8 rounds")
    assert old[1:] == [line for line in new[1:] if not line.startswith(("  The run crashed", "  To go on"))]
    assert any("planned failure" in line for line in old)


def test_a_metrics_name_may_hold_anything(tmp_path):
    log = started(workers=1)
    log.round_start(0)
    names = ['a"b', "a.b", "$", "*", "a\\b", "', x); DROP TABLE store.metrics; --", "", "é", "a'b", "[0]"]
    log.add("metric", 0, 0, values={name: i + 0.5 for i, name in enumerate(names)}, num_samples=1, error=None)
    got = ask(log, tmp_path, "SELECT name, value FROM metrics ORDER BY position")
    assert got == [(name, i + 0.5) for i, name in enumerate(names)]


def test_rounds_come_in_the_order_in_which_they_began(tmp_path):
    got = ask(logs.big(12, 8), tmp_path, "SELECT nth, round FROM rounds")
    assert got == sorted(got)


def test_no_view_joins_every_row_with_every_other(tmp_path):
    # An overlap join with a third inequality takes minutes on 200,000 rows; DuckDB plans it without a word.
    path = logs.demo().write(tmp_path)
    with opened([path]) as database:
        for name, (what, body) in lazy.statements().items():
            if what == "MACRO":
                continue
            database.execute(f"SELECT 1 FROM {name} LIMIT 0")
            query = body.strip().removeprefix("AS")
            plan = "".join(row[1] for row in database.con.execute(f"EXPLAIN {query}").fetchall())
            for bad in ("NESTED_LOOP_JOIN", "BLOCKWISE_NL_JOIN", "IE_JOIN", "PIECEWISE_MERGE_JOIN"):
                assert bad not in plan, name


@pytest.mark.parametrize(
    "query",
    [
        'SELECT count(*) FROM "rounds"',
        'SELECT count(*) FROM "store"."rounds"',
        "SELECT count(*) FROM MAIN.Rounds",
        "SELECT count(*) FROM query_table('rou' || 'nds')",
        "WITH x AS (TABLE rounds) SELECT count(*) FROM x",
    ],
)
def test_tables_are_filled_however_a_query_names_them(tmp_path, query):
    with opened([logs.demo().write(tmp_path)]) as database:
        assert database.execute(query).fetchone() == (9,)


def _filled(hint: Any) -> Any:
    """Return a value that a field of a type may have, and that is not null, 0 or empty."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        pattern = next((m.pattern for m in inner[1:] if getattr(m, "pattern", None)), None)
        return SHA if pattern else _filled(inner[0])
    if origin is Literal:
        return inner[0]
    if origin in {Union, UnionType}:
        return _filled(next(one for one in inner if one is not type(None)))
    if origin is list:
        return [_filled(inner[0])]
    if origin is dict:
        return {"name": _filled(inner[1])}
    return {int: 3, float: 0.5, str: "text", bool: True, Any: "anything"}[hint]


def test_a_log_that_has_every_field_loads_without_a_reject(tmp_path: Path):
    """A field that is new in the contract and not in the tables is noticed here."""
    log = Log()
    wanted: dict[str, set[str]] = {}
    for body in BODIES:
        hints = get_type_hints(body, include_extras=True)
        made = {field.name: _filled(hints[field.name]) for field in fields(body)}
        log.add(body.kind, 0, 1, overflow_path="x/event-1.json", **made)
        wanted[body.kind] = set(made)
    with database_of(log, tmp_path) as database:
        assert database.rows("FROM rejects") == []
        assert [log.damaged for log in database.logs] == [False]
        for row in database.rows("FROM events"):
            assert row["extra"] is None, row["kind"]
            assert {name for name in wanted[row["kind"]] if row[name] is None} == set(), row["kind"]


def test_a_worker_whose_weights_were_kept_out_is_told_from_one_that_waits(tmp_path: Path):
    log = started(workers=2, rounds=1)
    play_round(log, 0, {0: Turn(reject=("nonfinite", "nan")), 1: Turn(train=1.0)}, evaluate=False)
    with database_of(log, tmp_path) as database:
        after = database.rows(
            "SELECT rank, arg_max(state, start_us) AS state FROM segments WHERE rank IS NOT NULL GROUP BY ALL"
        )
        assert {row["rank"]: row["state"] for row in after} == {0: "rejected", 1: "wait"}
        (phases,) = database.rows("FROM phases")
        states = ("push", "train", "pull", "wait", "dead", "aggregate", "eval")
        assert sum(phases[f"{state}_us"] for state in states) == phases["total_us"]
        (story,) = stories(database)
        drawn = "\n".join(gantt_lines(database, story, Paper(80, SETS["ascii"]), workers=8, wanted=None))
        assert "! rejected" in drawn
        assert "!!!" in drawn


def test_what_bounded_a_round_adds_up_to_it(tmp_path: Path):
    log = started(workers=3, rounds=1)
    play_round(
        log, 0, {0: Turn(train=0.5), 1: Turn(train=1.0), 2: Turn(train=9.0, fails="train")}, evaluate=False
    )
    with database_of(log, tmp_path) as database:
        (row,) = database.rows("FROM critical_path")
        assert row["rank"] == 1
        parts = ("push_us", "train_us", "pull_us", "other_us", "after_us")
        assert sum(row[part] for part in parts) == row["duration_us"]
        assert row["train_s"] == 1.0
        order = database.rows("SELECT rank, times_last, train_ratio FROM stragglers ORDER BY place")
        assert order == [
            {"rank": 1, "times_last": 1, "train_ratio": pytest.approx(4 / 3)},
            {"rank": 0, "times_last": 0, "train_ratio": pytest.approx(2 / 3)},
        ]


def test_bandwidth_is_over_the_time_in_which_any_transfer_ran(tmp_path: Path):
    log = started(workers=3)
    log.round_start(0)
    at = log.t
    # From 0 to 1 s, from 0.5 to 1.5 s, and after a pause from 3 to 4 s; the last is cut.
    for rank, end, error in ((0, 1.0, None), (1, 1.5, None), (2, 4.0, "cut")):
        log.t = at + end
        log.add("push", 0, rank, **logs.transfer(1.0, size=3000, error=error))
    log.round_end(0, 0)
    assert ask(log, tmp_path, "SELECT direction, transfers, bytes, busy_us, bytes_per_s FROM bandwidth") == [
        ("push", 3, 6000, 2_500_000, 2400.0)
    ]


def test_machines_are_judged_over_all_runs(tmp_path: Path):
    log = started(workers=2, rounds=2)
    for rank, address in ((0, "ssh:me@gpu1:2222"), (1, "local:/x/workers/1")):
        log.add("worker_up", None, rank, address=address, facts={})
    play_round(log, 0, {0: Turn(fails="exec")}, evaluate=False)
    play_round(log, 1, {}, evaluate=False)
    query = "SELECT host, workers, rounds, survived, failed, failure_rate FROM hosts ORDER BY host"
    assert ask(log, tmp_path, query) == [("local", 1, 2, 2, 0, 0.0), ("me@gpu1:2222", 1, 2, 1, 1, 0.5)]


def test_who_was_not_waited_for_is_told_once(tmp_path):
    log = started(workers=1)
    log.round_start(0)
    log.add("push", 0, 0, **logs.transfer(0.0))
    log.t += 0.5
    log.add("reject", 0, 0, reason="late", detail="not waited for")
    log.add("exec", 0, 0, duration_s=0.5, error="ended: the grace time had passed")
    log.round_end(0, 0)
    got = ask(log, tmp_path, "SELECT what, text FROM losses WHERE rank = 0")
    assert got == [("not in time", "not waited for")]


def test_what_workers_cost(tmp_path):
    log = Log(workers=3, rounds=1)
    log.start()
    for rank, price in ((0, 3.6), (1, "1e400"), (2, 7.2)):
        log.add("worker_up", 0, rank, address="local:w", facts={"price_per_hour": price})
    log.round_start(0)
    log.t += 10
    log.add("push", 0, 0, **logs.transfer(2.5))
    log.add("worker_down", 0, 2, reason="lost", detail="gone", for_good=False)
    log.t += 10
    log.add("worker_up", 0, 2, address="local:w", facts={"price_per_hour": 3.6})
    log.t += 10
    log.round_end(0, 0)
    got = ask(
        log, tmp_path, "SELECT rank, price_per_hour, connected_s, cost, idle_cost FROM costs ORDER BY rank"
    )
    assert got[0] == (0, 3.6, 30.0, pytest.approx(0.03), pytest.approx(0.03 * 27.5 / 30))
    assert got[1] == (1, None, 30.0, None, None)
    assert got[2] == (2, 3.6, 20.0, pytest.approx(0.02 + 0.01), pytest.approx(0.03))
    with database_of(log, tmp_path) as database:
        (story,) = stories(database)
    assert cost_sentence(story.cost).startswith("0.06 for 2 of 3 workers, connected for 50.0 s together")
