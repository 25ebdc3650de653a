"""``analyze export --parquet``: other engines read the rows that the views have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import logs
import polars as pl
import pyarrow.dataset as ds
import pytest
from logs import Log, play_round

from analyze import lake
from analyze.cli import run
from analyze.database import opened

HOSTILE = ["../../x", "a/b", "..", "<script>", "x' OR 1=1", "ü\u202e", "long" * 100]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def paths(folder: Path) -> list[Path]:
    other = Log(run="20260302-120000-other", workers=2, rounds=1)
    other.start()
    play_round(other, 0, {})
    return [logs.demo().write(folder), other.write(folder)]


@pytest.fixture(scope="module")
def made(folder: Path, paths: list[Path]) -> Path:
    assert run(["export", "--parquet", str(folder / "lake"), *map(str, paths)]) == 0
    return folder / "lake"


@pytest.fixture(scope="module")
def views(paths: list[Path]) -> dict[str, list[dict[str, Any]]]:
    with opened(paths) as database:
        return {view: sorted(database.rows(f"SELECT * FROM {view}"), key=repr) for view in lake.VIEWS}


@pytest.mark.parametrize("view", lake.VIEWS)
def test_every_engine_reads_the_rows_of_the_views(made: Path, views: dict[str, list[Any]], view: str):
    expected = views[view]
    names = list(expected[0])
    place = made / view
    read = {
        "duckdb": duckdb.connect()
        .sql("SELECT * FROM read_parquet(?, hive_partitioning = true)", params=[f"{place}/**/*.parquet"])
        .to_arrow_table()
        .to_pylist(),
        "pyarrow": ds.dataset(place, partitioning="hive").to_table().to_pylist(),
        "polars": pl.read_parquet(place, hive_partitioning=True).to_dicts(),
    }
    for engine, rows in read.items():
        assert sorted(({name: row[name] for name in names} for row in rows), key=repr) == expected, engine


def test_a_run_is_replaced_and_others_stay(made: Path, paths: list[Path]):
    before = sorted(made.rglob("*.parquet"))
    assert run(["export", "--parquet", str(made), str(paths[1])]) == 0
    assert sorted(made.rglob("*.parquet")) == before
    assert {path.name for path in made.iterdir()} == set(lake.VIEWS), "nothing half written is left"


def test_no_id_escapes_its_folder(tmp_path: Path):
    lines = []
    for name in HOSTILE:
        log = Log(run=name)
        log.start()
        lines += [json.dumps(event) + "\n" for event in log.events]
    path = tmp_path / "in" / "x.jsonl"
    path.parent.mkdir()
    path.write_text("".join(lines))
    target = tmp_path / "out" / "lake"
    assert run(["export", "--parquet", str(target), str(path)]) in {0, 3}
    assert {entry.name for entry in tmp_path.iterdir()} == {"in", "out"}
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == {"lake"}
    places = list((target / "runs").iterdir())
    assert len(places) == len(HOSTILE)
    assert all(len(place.name.encode()) <= 255 for place in places)
    found = pl.read_parquet(target / "runs", hive_partitioning=True)["run"].to_list()
    assert set(HOSTILE[:-1]) <= set(found)
