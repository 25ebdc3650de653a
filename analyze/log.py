"""What loading one file found; loads nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from analyze.fingerprint import Mark


@dataclass(slots=True)
class Log:
    """What loading one file found."""

    path: Path
    lines: int = 0
    events: int = 0
    rejects: int = 0
    missing: int = 0
    newest_version: int | None = None
    first_time: float | None = None
    """What the first event of version 0 shows as its time."""
    running: bool = False
    shuffled: int = 0
    """Events that are not where they were written: the lines were sorted or shuffled."""
    cut: str = ""
    """What of a compressed file could not be read, in words."""
    log_no: int = 0
    size_bytes: int = 0
    oldest_version: int | None = None
    runs: dict[str, int] = field(default_factory=dict)
    """The number of each run in it."""
    problem: str = ""
    """Why it gave nothing, in words."""
    ends: str = ""
    """Hash of its head and its tail."""
    twin: Path | None = None
    """A log before it that says the same, in place of which nothing was loaded."""
    mark: Mark | None = None
    """What the file was; None if it may have changed since and look the same."""
    digest: str = ""
    """SHA-256 of what was read of a file that is no copy."""
    last: dict[int, tuple[int, int, int]] | None = None
    """Line, number and time of the last event of each run, where reading can be gone on with."""

    @property
    def damaged(self) -> bool:
        """Say whether anything of the log is lost."""
        return bool(self.rejects or self.missing or self.shuffled or self.cut)


class ChangedError(Exception):
    """A log is no longer what it was, but longer."""
