"""Names the files of a run: the log, and what lies in the folder beside it."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from runner.errors import RunError


@dataclass(frozen=True, slots=True)
class RunFolder:
    """``runs/<id>.jsonl`` and the folder ``runs/<id>/``."""

    run: str
    log: Path
    folder: Path

    @classmethod
    def create(cls, runs: Path, name: str, now: datetime) -> RunFolder:
        """Make the folder of a new run; the log is the recorder's to make.

        Args:
            runs: where runs are kept; made if need be.
            name: the job's name.
            now: UTC; makes the id sortable.

        Raises:
            RunError: the folder can't be made.
        """
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:32] or "job"
        run = f"{now:%Y%m%d-%H%M%S}-{slug}-{secrets.token_hex(2)}"
        made = cls(run, runs / f"{run}.jsonl", runs / run)
        try:
            runs.mkdir(parents=True, exist_ok=True)
            made.folder.mkdir(mode=0o700)
            for part in ("workers", "output", "incoming"):
                (made.folder / part).mkdir()
        except OSError as e:
            raise RunError(f"{made.folder}: can't make the run's folder: {e.strerror}") from e
        return made

    @classmethod
    def of(cls, log: Path) -> RunFolder:
        """Return the files of a run whose log is there already."""
        return cls(log.stem, log, log.with_suffix(""))

    @property
    def stop(self) -> Path:
        """A file that, when it is there, asks the coordinator to stop after the round."""
        return self.folder / "stop"

    def params(self, number: int, form: str) -> Path:
        """Return the params that round `number` pushes."""
        return self.folder / f"params-{number:04}.{form}"

    def state(self, number: int, slot: str) -> Path:
        """Return one part of what the optimizer remembers when round `number` begins."""
        return self.folder / f"state-{number:04}-{slot}.npz"

    @property
    def spare(self) -> Path:
        """A params file that is kept no longer, to be written over by the next ones."""
        return self.folder / ".spare.part"

    def worker(self, rank: int) -> Path:
        """Return the folder of a local worker."""
        return self.folder / "workers" / str(rank)

    def output(self, who: str) -> Path:
        """Return the file with all that a worker, or the coordinator's own commands, printed."""
        return self.folder / "output" / f"{who}.log"

    def incoming(self, rank: int, name: str) -> Path:
        """Return where a file pulled from a worker goes."""
        return self.incoming_folder / f"{rank}-{name}"

    @property
    def incoming_folder(self) -> Path:
        """Where files pulled from workers go."""
        return self.folder / "incoming"
