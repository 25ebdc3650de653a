"""Puts on the disk what must be found there after power loss."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Put a folder's list of names on the disk, so that a new or renamed file is found.

    Raises:
        OSError: the disk refused.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
