"""The walls between the folders, read from the imports themselves, and the house numbers."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SIDES = ("runner", "analyze", "schemas")
FILES = sorted(p for side in SIDES for p in (ROOT / side).rglob("*.py"))
NAMES = {"utils", "util", "helpers", "common", "core", "manager", "base", "misc"}
MAX_LINES = 500


def imported(path: Path, source: str | None = None) -> set[str]:
    """Return the full names of all that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8") if source is None else source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).parent.parts
                upper = package[: len(package) - node.level + 1]
                module = ".".join([*upper, *filter(None, [module])])
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in {
            "import_module",
            "__import__",
        }:
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return found


def packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def below(side: str) -> list[Path]:
    return [path for path in FILES if path.is_relative_to(ROOT / side)]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", below("schemas"), ids=shown)
def test_schemas_needs_nothing_but_msgspec(path: Path):
    assert packages(path) <= set(sys.stdlib_module_names) | {"schemas", "msgspec"}


@pytest.mark.parametrize("path", below("runner"), ids=shown)
def test_the_runner_knows_no_analysis(path: Path):
    assert not packages(path) & {"analyze", "duckdb", "matplotlib", "jinja2"}


@pytest.mark.parametrize("path", below("analyze"), ids=shown)
def test_the_analyzer_knows_no_runner(path: Path):
    assert not packages(path) & {"runner", "trio", "asyncssh", "trio_asyncio"}


def test_decisions_do_nothing():
    touched = packages(ROOT / "runner" / "decide.py")
    assert not touched & {"trio", "os", "time", "io", "pathlib", "random", "datetime", "subprocess", "socket"}
    ours = {name for name in imported(ROOT / "runner" / "decide.py") if name.startswith("runner")}
    assert {name for name in ours if not name.startswith("runner.errors")} == set()


def test_transports_know_neither_rounds_nor_trace():
    for path in (ROOT / "runner" / "transports").glob("*.py"):
        ours = {n for n in imported(path) if n.startswith("runner.")}
        upper = {"rounds", "decide", "coordinator", "fleet", "traced", "recorder", "aggregate", "cli"}
        assert not {name.split(".")[1] for name in ours} & upper, path


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_every_file_says_what_it_is_for(path: Path):
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert said, "no docstring"
    assert len(said.splitlines()[0]) > 20


@pytest.mark.parametrize(
    "path",
    [*FILES, *sorted((ROOT / "tests").glob("*.py")), *sorted((ROOT / "analyze").glob("*.sql"))],
    ids=shown,
)
def test_names_and_sizes(path: Path):
    assert path.stem not in NAMES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_no_folder_is_called_what_means_nothing():
    assert not {p.parent.name for p in FILES} & NAMES
    deep = [p for p in below("runner") if len(p.relative_to(ROOT).parts) > 3]
    assert not deep


def test_this_test_sees_an_import_wherever_it_hides():
    source = (
        "import a.b\nfrom c import d\ndef f():\n    from .. import e\n    from .g import h\n"
        "    importlib.import_module('i.j')\nif TYPE_CHECKING:\n    import k\n"
    )
    found = imported(ROOT / "runner" / "transports" / "x.py", source)
    assert {"a.b", "c", "c.d", "runner.e", "runner.transports.g.h", "i.j", "k"} <= found
