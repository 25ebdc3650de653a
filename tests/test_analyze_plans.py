"""No question of ours is planned so that it compares every row with every other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import logs
import pytest

from analyze import lazy
from analyze.database import Database, opened

QUADRATIC = re.compile(r"\w*(?:NESTED_LOOP|CROSS_PRODUCT|IE_JOIN|PIECEWISE_MERGE|BLOCKWISE)\w*")
ASKED = {name: body for name, (what, body) in lazy.statements().items() if what != "MACRO"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("plans")
    paths = [logs.big(12, 8).write(folder), logs.demo().write(folder)]
    for path in paths:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:9], b"bad\n", *lines[20:]]))
    with opened(paths) as loaded:
        # So few rows that DuckDB would rather loop than set up its own join of the nearest.
        loaded.execute("SET asof_loop_join_threshold = 0")
        loaded.execute("FROM query('SELECT 1')")  # fills every table
        yield loaded


def joins(database: Database, query: str) -> set[str]:
    ((_, plan),) = database.con.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()
    return set(QUADRATIC.findall(plan))


@pytest.mark.parametrize("name", ASKED)
def test_no_join_rests_on_inequalities_alone(database: Database, name: str):
    body = ASKED[name].strip()
    assert joins(database, re.sub(r"^(\([^)]*\)\s*)?AS\b", "", body)) == set()


@pytest.mark.parametrize(
    "on", ["a.start_us < b.end_us AND a.end_us > b.start_us", "a.seq < b.seq", "a.seq <> b.seq", "true"]
)
def test_this_test_sees_such_a_join(database: Database, on: str):
    assert joins(database, f"SELECT count(a.seq + b.seq) FROM store.spans a JOIN store.spans b ON {on}")


def rows(database: Database, view: str) -> list[str]:
    """Return the rows of a view in one order, without the last digits, which the order of a sum decides."""
    found = database.execute(f"FROM {view}").fetchall()
    return sorted(str([f"{x:.9g}" if isinstance(x, float) else x for x in row]) for row in found)


def test_what_a_view_rests_on_is_all_filled_when_it_is_the_first_that_is_asked(database: Database):
    views = [name for name, (what, _) in lazy.statements().items() if what == "VIEW" and "." not in name]
    tables = [name for name, (what, _) in lazy.statements().items() if what == "TABLE"]
    database.execute("FROM query('SELECT 1')")
    want = {view: rows(database, view) for view in views}
    assert sum(map(len, want.values())) > 100
    for view in views:
        database.con.execute(";".join(f"TRUNCATE {table}" for table in tables))
        database._tables = None
        assert rows(database, view) == want[view], view
