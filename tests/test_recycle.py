"""Writing over files nobody needs: never over one that somebody else can still reach."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import start, write_job

from runner.recycle import WORTH_BYTES, open_part, set_aside

OLD = b"o" * (WORTH_BYTES + 1)


@pytest.fixture
def spare(tmp_path: Path) -> Path:
    path = tmp_path / ".spare.part"
    path.write_bytes(OLD)
    return path


def written(part: Path, spare: Path | None) -> int:
    """Write a new, shorter content and return the inode."""
    fd = open_part(part, spare)
    os.write(fd, b"new")
    os.ftruncate(fd, 3)
    inode = os.fstat(fd).st_ino
    os.close(fd)
    assert part.read_bytes() == b"new"
    assert spare is None or not spare.exists()
    return inode


def test_a_spare_file_is_written_over(tmp_path: Path, spare: Path):
    inode = spare.stat().st_ino
    assert written(tmp_path / "part", spare) == inode


def test_without_a_spare_file_a_new_one_is_made(tmp_path: Path):
    (tmp_path / "part").write_text("of before")
    written(tmp_path / "part", None)
    written(tmp_path / "part", tmp_path / "missing")


@pytest.mark.parametrize("thing", ["link", "symlink", "fifo", "folder"])
def test_what_is_no_file_of_our_own_is_left_alone(tmp_path: Path, spare: Path, thing: str):
    other = tmp_path / "other"
    spare.replace(other)
    if thing == "link":
        spare.hardlink_to(other)
    elif thing == "symlink":
        spare.symlink_to(other)
    elif thing == "fifo":
        os.mkfifo(spare)
    else:
        spare.mkdir()
        with pytest.raises(OSError, match="directory"):
            open_part(tmp_path / "part", spare)
        return
    written(tmp_path / "part", spare)
    assert other.read_bytes() == OLD


def test_what_is_set_aside(tmp_path: Path):
    path, spare = tmp_path / "file", tmp_path / "spare"
    assert not set_aside(path, spare)
    path.write_bytes(b"small")
    assert not set_aside(path, spare)
    path.write_bytes(OLD)
    (tmp_path / "link").hardlink_to(path)
    assert not set_aside(path, spare)
    assert path.exists()
    (tmp_path / "link").unlink()
    assert set_aside(path, spare)
    assert spare.read_bytes() == OLD
    assert not path.exists()


def test_links_that_a_worker_or_a_user_keeps_stay_what_they_were(tmp_path: Path):
    keep = 'ln "$ROUNDLOG_PARAMS" kept-$ROUNDLOG_ROUND; '
    (tmp_path / "add.py").write_text(
        "import os, numpy as np\n"
        "np.save(os.environ['ROUNDLOG_WEIGHTS'], np.load(os.environ['ROUNDLOG_PARAMS']) + 1)\n"
    )
    job = write_job(
        tmp_path,
        rounds=4,
        params={"keep": 1},
        train={"command": keep + "python3 add.py || exit 1", "files": ["add.py"]},
    )
    np.save(tmp_path / "params.npy", np.zeros(300_000, np.float32))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = start(job, env={**os.environ, "PATH": path})
    for rank in (0, 1):
        folder = run.log.with_suffix("") / "workers" / str(rank)
        for number in range(4):
            assert (np.load(folder / f"kept-{number}") == number).all()
        assert not list(folder.glob(".*"))
    assert (np.load(run.params) == 4).all()
    assert not list(run.log.with_suffix("").glob(".*"))
