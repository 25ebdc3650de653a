"""What each command prints of two stored logs, word for word. After a change that is meant:

GOLDEN=write pytest tests/test_analyze_golden.py, then look at the difference.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from analyze.cli import run

HERE = Path(__file__).parent
LOG = "v0-same-run-in-v1.jsonl"
COMMANDS = {
    "gantt": ["gantt", LOG, "--width", "60", "--glyphs", "ascii"],
    "gantt-of-version-0": ["gantt", "v0.jsonl", "--width", "60", "--glyphs", "ascii"],
    "summary": ["summary", LOG],
    "summary-of-version-0": ["summary", "v0.jsonl"],
    "summary-of-damage": ["summary", "damaged.jsonl"],
    "runs": ["runs", LOG, "v0.jsonl", "damaged.jsonl"],
    "compare": ["compare", LOG, "v0.jsonl"],
    "explain": ["explain", "v0.jsonl:3"],
    "sql-table": ["sql", "FROM rounds ORDER BY ALL", LOG],
    "sql-csv": ["sql", "FROM damage ORDER BY ALL", "damaged.jsonl", "--format", "csv"],
    "sql-json": ["sql", "FROM critical_path ORDER BY ALL LIMIT 1", LOG, "--format", "json"],
    "sql-jsonl": ["sql", "FROM rejects ORDER BY ALL", "damaged.jsonl", "--format", "jsonl"],
    "sql-markdown": ["sql", "FROM workers ORDER BY ALL", LOG, "--format", "markdown"],
    "export": ["export", "--parquet", "lake", LOG],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_it_prints_what_it_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for log in ("v0.jsonl", LOG):
        shutil.copy(HERE / "data" / log, tmp_path)
    lines = (HERE / "data" / LOG).read_bytes().splitlines(keepends=True)
    lines[5:7] = [b"garbage\n", b"\0\0\0\n"]
    (tmp_path / "damaged.jsonl").write_bytes(b"".join(lines)[:-30])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    code = run(COMMANDS[name])
    out, err = capsys.readouterr()
    text = f"$ analyze {' '.join(COMMANDS[name])}\n{out}--- stderr\n{err}--- exit code {code}\n"
    stored = HERE / "golden" / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        stored.write_text(text, encoding="utf-8")
    assert text == stored.read_text(encoding="utf-8")
