"""The prompt, typed into by prompt_toolkit's own pipe and, once, through a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import logs
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from analyze import shell
from analyze.cli import run
from analyze.database import Database, opened

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = logs.demo().write(tmp_path_factory.mktemp("shell"))
    with opened([path], documented=True) as loaded:
        list(loaded.documented())
        loaded.fence()
        yield loaded


def typed(database: Database, keys: str, form: str = "csv", past: InMemoryHistory | None = None, width=None):
    echoed: list[str] = []
    said: list[str] = []
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        shell.talk(
            database,
            shell.asked(database, past or InMemoryHistory()),
            form,
            echo=echoed.append,
            say=said.append,
            schema=lambda view: echoed.append(f"schema of {view}"),
            width=lambda: width,
        )
    return echoed, said[1:]


def test_a_query_ends_with_a_semicolon_or_an_empty_line(database):
    keys = "SELECT 1 AS x;\rSELECT\r2 AS y\r\r\x04"
    assert typed(database, keys) == (["x\n1\n", "y\n2\n"], [])


def test_commands_and_formats(database):
    keys = ".format\r.format jsonl\rSELECT 1 AS x;\r.schema rounds\r.nothing\r.quit\rSELECT 2;\r"
    echoed, said = typed(database, keys)
    assert echoed == ['{"x": 1}\n', "schema of rounds"]
    assert said == ["csv", "error: .nothing is no command; .help shows what there is"]
    assert ".schema [VIEW]" in typed(database, ".help\r\x04")[0][0]


@pytest.mark.parametrize("word", ["exit", "QUIT", "exit;"])
def test_people_leave_and_ask_for_help_without_a_dot(database, word):
    echoed, said = typed(database, f"help\r{word}\rSELECT 2;\r\x04")
    assert [text[:7] for text in echoed] == ["A query"]
    assert not said


def test_a_table_fits_the_terminal(database):
    keys = "FROM workers;\r\x04"
    ((whole,), _) = typed(database, keys, "table")
    assert max(map(len, whole.splitlines())) > 80
    ((cut,), _) = typed(database, keys, "table", width=80)
    assert max(map(len, cut.splitlines())) <= 80


def test_a_wrong_query_and_one_that_reaches_out_end_nothing(database):
    keys = "SELECT nothing;\rFROM '/etc/passwd';\rSET lock_configuration = false;\rSELECT 1 AS x;\r\x04"
    echoed, said = typed(database, keys)
    assert echoed == ["x\n1\n"]
    assert len(said) == 3
    assert all(line.startswith("error: ") for line in said)


def test_what_a_log_says_is_no_command_to_the_terminal(database):
    for form in shell.FORMATS:
        ((text,), _) = typed(database, "SELECT chr(27) || '[31m' || chr(8238) AS x;\r\x04", form)
        assert not set(text) & {"\x1b", "\u202e"}


def test_ctrl_c_empties_the_line_and_stops_a_query(database, monkeypatch):
    assert typed(database, "SELECT 1;\x03SELECT 2 AS y;\r\x04") == (["y\n2\n"], [])

    class Interrupted:
        def execute(self, *_):
            raise RuntimeError("Query interrupted")

    names = shell.Names(database)
    monkeypatch.setattr(shell, "Names", lambda _: names)
    monkeypatch.setattr(database, "con", Interrupted())
    assert typed(database, "SELECT 1;\r\x04") == ([], ["interrupted"])


def test_what_was_asked_is_kept(database, monkeypatch, tmp_path):
    past = InMemoryHistory()
    typed(database, "SELECT 7 AS x;\r\x04", past=past)
    assert past.get_strings() == [
        "SELECT 7 AS x;"
    ]  # the arrow keys are prompt_toolkit's, which loads it at leisure
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shell.history().append_string("SELECT 8")
    kept = tmp_path / "roundlog" / "queries"
    assert "SELECT 8" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert isinstance(shell.history(), InMemoryHistory)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT * FROM crit", "critical_path"),
        ("FROM rounds SELECT dura", "duration_s"),
        ("SELECT rounds.surv", "survivors"),
        ("sel", "SELECT"),
        (".sch", "schema"),
    ],
)
def test_names_are_completed(database, text, wanted):
    names = shell.Names(database).get_completions(Document(text), CompleteEvent())
    assert wanted in [name.text for name in names]


def test_nothing_is_completed_where_nothing_begins(database):
    assert list(shell.Names(database).get_completions(Document("SELECT "), CompleteEvent())) == []


def test_without_a_terminal_it_is_wrong_usage(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run(["shell", str(logs.demo().write(tmp_path))]) == 2
    assert "stdin is no terminal" in capsys.readouterr().err


def test_in_a_terminal(tmp_path):
    path = logs.demo().write(tmp_path)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "analyze.cli", "shell", path, "--format", "csv"],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
    ) as process:  # fmt: skip
        os.write(ours, b"SELECT count(*) AS rounds FROM rounds;\r.quit\r")
        out, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert b"rounds\n9\n" in out.replace(b"\r", b"")
    assert process.returncode == 0
    assert b"Traceback" not in err
