"""Makes the empty tables that logs are loaded into; knows no log and no question.

The tables are in the schema ``store``: ``logs`` (a row a file), ``runs`` (a row a run in a file), ``events``,
``rejects`` (a row a line that is no event) and ``gaps`` (events that are missing without a trace).
"""

from __future__ import annotations

import duckdb

from analyze.shapes import of_kind
from schemas.events import BY_KIND

OTHER = "other"
"""Where events of kinds that we do not know are."""

_TABLES = """
CREATE SCHEMA store;
CREATE TABLE store.logs (
    log_no INTEGER, file VARCHAR, size_bytes BIGINT, lines BIGINT, running BOOLEAN,
    oldest_version BIGINT, newest_version BIGINT, shuffled BIGINT, cut VARCHAR);
CREATE TABLE store.runs (run_no INTEGER, log_no INTEGER, run VARCHAR);
CREATE TABLE store.rejects (
    log_no INTEGER, line BIGINT, byte_offset BIGINT, length BIGINT, reason VARCHAR, detail VARCHAR,
    head VARCHAR);
CREATE TABLE store.gaps (log_no INTEGER, run_no INTEGER, before_line BIGINT, missing BIGINT);
"""


def make_tables(con: duckdb.DuckDBPyConnection) -> None:
    """Make the empty tables; events lie in one narrow table a kind, since DuckDB fills a wide one slowly."""
    con.execute(_TABLES)
    for kind in (*BY_KIND, OTHER):
        fields = ", ".join(f'"{f.name}" {f.sql}' for f in of_kind(kind).values())
        con.execute(
            f"CREATE TABLE {table_of(kind)} (run_no INTEGER, line BIGINT, byte_offset BIGINT, t_us BIGINT, "
            f"{fields}, duration_us BIGINT, extra JSON)"
        )
    make_view(con)


def make_view(con: duckdb.DuckDBPyConnection) -> None:
    """Make the view of the events of all kinds."""
    every = " UNION ALL BY NAME ".join(f"FROM {table}" for table in EVENT_TABLES)
    con.execute(f"CREATE VIEW store.events AS {every}")


def table_of(kind: str) -> str:
    """Return the table of the events of a kind, by our own names alone."""
    return f"store.events_{kind if kind in BY_KIND else OTHER}"


EVENT_TABLES = tuple(table_of(kind) for kind in (*BY_KIND, OTHER))
