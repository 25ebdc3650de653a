"""Makes the views of the SQL files, and the tables under them when a query first needs them; asks nothing.

A table in "store" begins empty. Before a query runs, every table that it may rest on is filled: computed
once, and only if asked for. Any word of the query that is the name of a view or table counts as asking.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import duckdb

from schemas.events import VERSION

_SCRIPTS = ("store.sql", "views.sql", "faults.sql", "questions.sql")
VIEWS_VERSION = 1
"""Rises when a public view's column changes its meaning or goes."""

_STATEMENT = re.compile(r"CREATE (TABLE|VIEW|MACRO) ((?:store\.)?\w+)(.*?);[ \t]*(?:\n|$)", re.DOTALL)
_COMMENT = re.compile(r"--[^\n]*")
_WORD = re.compile(r"\w+")
_SOURCE = re.compile(r"\b(?:FROM|JOIN)\s+((?:store\.)?\w+)")
"""What a statement of ours reads: a column may have the name of a view."""
_BY_NAME = {"query", "query_table"}
"""Functions of DuckDB that take the name of a table as text, which no look at the words can find."""


@cache
def _script() -> tuple[str, str]:
    """Return the statements that make views, and those that document them."""
    text = "".join((files("analyze") / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    made = [line for line in text.splitlines(keepends=True) if not line.startswith("COMMENT ON ")]
    told = [line for line in text.splitlines(keepends=True) if line.startswith("COMMENT ON ")]
    return _COMMENT.sub("", "".join(made)), "".join(told)


@cache
def statements() -> dict[str, tuple[str, str]]:
    """Return what is made, in its order: name to (TABLE, VIEW or MACRO, the rest of the statement)."""
    return {name: (what, body) for what, name, body in _STATEMENT.findall(_script()[0])}


@cache
def _named() -> dict[str, tuple[str, ...]]:
    """Return what a word may name, in a schema or without."""
    found: dict[str, tuple[str, ...]] = {}
    for name in statements():
        word = name.removeprefix("store.")
        found[word] = (*found.get(word, ()), name)
    return found


@cache
def _under(name: str) -> frozenset[str]:
    """Return the tables that something rests on, itself included if it is one."""
    what, body = statements()[name]
    found = {name} if what == "TABLE" else set()
    return frozenset(found.union(*(_under(one) for one in set(_SOURCE.findall(body)) & statements().keys())))


def make(con: duckdb.DuckDBPyConnection) -> None:
    """Make every view and the tables under them, empty; nothing is computed."""
    made = [
        f"CREATE {what} {name}{body}{' WITH NO DATA' if what == 'TABLE' else ''};"
        for name, (what, body) in statements().items()
    ]
    con.execute("\n".join(made))
    con.execute(
        f"CREATE VIEW schema_info AS SELECT {VIEWS_VERSION} AS views_version, {VERSION} AS events_version"
    )


def document(con: duckdb.DuckDBPyConnection) -> None:
    """Write the comments of views and columns into the database."""
    con.execute(_script()[1])


class Tables:
    """Knows which tables have been filled in one database."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        self._filled: set[str] = set()

    def need(self, query: str) -> None:
        """Fill the tables that a query may need; a name too many costs time alone."""
        words = {word.lower() for word in _WORD.findall(query)}
        named = _named().keys() if words & _BY_NAME else words & _named().keys()
        needed = set().union(*(_under(name) for word in named for name in _named()[word]))
        for table, (_, body) in statements().items():
            if table in needed and table not in self._filled:
                # The statements are our own; no word of a query or a log is in them.
                self._con.execute(f"INSERT INTO {table} {body.strip().removeprefix('AS')}")
                self._filled.add(table)
