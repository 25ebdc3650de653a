"""A prompt over a loaded database: history, completion of views and columns; loads and fences nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import click
import duckdb
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from analyze import export
from analyze.database import Database
from analyze.told import query_error
from schemas.text import printable

FORMATS = tuple(form for form in export.FORMATS if form != "parquet")
HELP = """\
A query ends with ; or with an empty line. Tab completes the names of views and columns.
  .schema [VIEW]   every view and column, explained
  .format [NAME]   how results are written: {formats}
  .quit            or Ctrl-D; Ctrl-C stops a query or empties the line
"""
_BARE = ("exit", "quit", "help")
"""Commands that people type without the dot."""
_KEYWORDS = re.findall(
    r"\w+",
    """
    SELECT FROM WHERE GROUP BY ORDER LIMIT JOIN USING ON AS AND OR NOT NULL IS IN DESC ASC DISTINCT HAVING
    WITH UNION ALL CASE WHEN THEN ELSE END count sum avg min max median quantile coalesce
    """,
)
_WORD = re.compile(r"\w+\.?\w*$|\.\w*$")


class Names(Completer):
    """Completes views, columns and common words; after ``view.`` the columns of that view."""

    def __init__(self, database: Database) -> None:
        self._columns: dict[str, list[str]] = {}
        self._meaning: dict[str, str] = {}
        for view, doc, columns in database.documented():
            self._columns[view] = [name for name, _, _ in columns]
            self._meaning |= {name: f"{kind}: {meaning}" for name, kind, meaning in columns} | {view: doc}

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002 - its name is the library's
        """Yield what the word at the cursor may become."""
        found = _WORD.search(document.text_before_cursor)
        if found is None:
            return
        view, dot, begun = found[0].rpartition(".")
        if dot and not view:
            choices = ["format", "help", "quit", "schema"] if found.start() == 0 else []
        elif dot:
            choices = self._columns.get(view.lower(), [])
        else:
            named = set(re.findall(r"\w+", document.text.lower())) & self._columns.keys()
            near = dict.fromkeys(column for view in sorted(named) for column in self._columns[view])
            choices = [*near, *self._columns, *_KEYWORDS]
        for choice in choices:
            if choice.lower().startswith(begun.lower()):
                meaning = printable(self._meaning.get(choice, ""))
                yield Completion(choice, start_position=-len(begun), display_meta=meaning)


def history() -> History:
    """Return what was asked before; kept where the XDG base directory specification has a program's state."""
    said = os.environ.get("XDG_STATE_HOME", "")
    try:
        place = (Path(said) if said.startswith("/") else Path.home() / ".local" / "state") / "roundlog"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = place / "queries"
        path.touch(mode=0o600)
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    """Let Enter send what is complete, and begin a new line otherwise."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        text = event.current_buffer.document.text
        ends = text.rstrip().endswith(";") or not event.current_buffer.document.current_line.strip()
        if ends or text.lstrip().startswith(".") or text.strip().lower() in _BARE:
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.newline()

    return keys


def asked(database: Database, past: History | None = None) -> Iterator[str]:
    """Yield what a person types, statement by statement, until the end of input."""
    session: PromptSession[str] = PromptSession(
        history=past or history(),
        completer=Names(database),
        complete_while_typing=False,
        key_bindings=_keys(),
        multiline=Condition(lambda: True),
        prompt_continuation="     ... ",
    )
    while True:
        try:
            yield session.prompt("analyze> ").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def talk(
    database: Database,
    statements: Iterable[str],
    form: str,
    *,
    echo: Callable[[str], None],
    say: Callable[[str], None],
    schema: Callable[[str], None],
    width: Callable[[], int | None] = lambda: None,
) -> None:
    """Answer statements, one after the other; a wrong one ends nothing.

    Args:
        database: fenced, if it is to be.
        statements: what is asked.
        form: one of `FORMATS`.
        echo: prints a result.
        say: prints a message.
        schema: prints the views, or the one named.
        width: says how wide the terminal is now; None where a table need not fit one.
    """
    say(".help shows how; Ctrl-D ends")
    for statement in statements:
        word, _, rest = statement.rstrip(";").strip().partition(" ")
        if not rest and word.lower() in _BARE:
            word = f".{word.lower()}"
        if word in {".quit", ".exit"}:
            return
        if word == ".help":
            echo(HELP.format(formats=", ".join(FORMATS)))
        elif word == ".schema":
            try:
                schema(rest.strip())
            except click.UsageError as e:
                say(f"error: {e.format_message()}")
        elif word == ".format" and rest.strip() in FORMATS:
            form = rest.strip()
        elif word == ".format" and not rest:
            say(form)
        elif word.startswith("."):
            say(f"error: {statement} is no command; .help shows what there is")
        elif word:
            with suppress(BrokenPipeError):
                _answer(database, statement, form, width(), echo, say)


def _answer(  # noqa: PLR0917 - what it answers, and how
    database: Database,
    statement: str,
    form: str,
    width: int | None,
    echo: Callable[[str], None],
    say: Callable[[str], None],
) -> None:
    try:
        cursor = database.asked(statement)
        described = cursor.description or []
        rows = cursor.fetchall() if described else []
        text = export.text([d[0] for d in described], [d[1] for d in described], rows, form, width=width)
    except KeyboardInterrupt:
        say("interrupted")
    except duckdb.Error as e:
        say(f"error: {query_error(e)}")
    else:
        # What a log says must not reach the terminal as a command.
        echo("\n".join(printable(line) for line in text.split("\n")))
