"""Writes over the blocks of a file nobody needs, which costs less than freeing and finding them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

WORTH_BYTES = 1 << 17
"""Below this it isn't worth it."""


def set_aside(path: Path, spare: Path) -> bool:
    """Keep a file under the spare name if it is worth it and no other name leads to it; say whether."""
    try:
        status = path.lstat()
        worth = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size > WORTH_BYTES
        if worth:
            path.replace(spare)
    except FileNotFoundError:
        return False
    return worth


def open_part(part: Path, spare: Path | None, mode: int = 0o666) -> int:
    """Open a file to be written from its start, made of the spare file where there is a sound one.

    Its old content may be longer than the new one: truncate it at the end.

    Args:
        part: name of the file; what has it now is deleted.
        spare: the file to write over, which is gone afterwards.
        mode: permissions of a new file.

    Returns:
        A file descriptor.

    Raises:
        OSError: the file can't be made.
    """
    part.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CLOEXEC
    if spare is not None:
        with suppress(OSError):
            spare.replace(part)
            fd = os.open(part, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                return fd
            os.close(fd)
        part.unlink(missing_ok=True)
    return os.open(part, flags | os.O_CREAT | os.O_EXCL, mode)
