"""Keeps what a worker's commands print: all of it in a file up to a limit, the tail in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path

from runner.closing import Closing
from runner.errors import LogError
from runner.masks import longest_first, masked
from schemas.text import tail

_TAIL_BYTES = 4096


def _nothing() -> None:
    """Listen to nothing."""


class Output(Closing):
    """The output of one worker's commands; one after the other, in one file.

    The file is open only while a command prints: a run may have thousands of workers.

    Args:
        path: the file; made when a command first prints something.
        limit_bytes: what is kept of one command's output; the rest is counted and dropped.
        secrets: texts that :meth:`tail` masks, before it is cut; the file has what was printed.
    """

    def __init__(self, path: Path, limit_bytes: int, secrets: Iterable[str] = ()) -> None:
        self._secrets = longest_first(secrets)
        self.path = path
        self.limit_bytes = limit_bytes
        self.count_bytes = 0
        self.heard: Callable[[], object] = _nothing
        """Called whenever something was printed."""
        self._tail = b""
        self._title = ""
        self._file: FileIO | None = None
        self._closed = False

    def begin(self, title: str) -> None:
        """Begin the output of another command under a heading of its own."""
        self.count_bytes = 0
        self._tail = b""
        self._title = f"== {title} ==\n"

    def write(self, chunk: bytes) -> None:
        """Take what was printed.

        Raises:
            LogError: it can't be kept.
        """
        room = self.limit_bytes - self.count_bytes
        if room > 0:
            self._keep(chunk[:room])
            if len(chunk) > room:
                self._keep(f"\n== the rest is dropped: over {self.limit_bytes} bytes ==\n".encode())
        self.count_bytes += len(chunk)
        self.heard()
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]

    def end(self) -> None:
        """End a command's output on a line of its own."""
        if self.count_bytes and not self._tail.endswith(b"\n"):
            self._keep(b"\n")
        if self._file is not None:
            self._file.close()
            self._file = None

    def tail(self) -> str:
        """Return the last line that is not empty: 80 characters, none of them control characters."""
        text = masked(self._tail.decode("utf-8", "replace"), self._secrets)
        if len(self._tail) == _TAIL_BYTES and self._secrets:  # its beginning may be the end of a secret
            text = text[len(self._secrets[0]) :]
        return tail(text)

    def close(self) -> None:
        """Take no more; once more is fine."""
        self._closed = True
        if self._file is not None:
            self._file.close()

    def _keep(self, data: bytes) -> None:
        if self._closed:
            raise LogError(f"{self.path}: can't keep a command's output: it is closed")
        data, self._title = self._title.encode() + data, ""
        try:
            if self._file is None:
                self._file = FileIO(self.path, "ab")
            if self._file.write(data) != len(data):
                raise LogError(f"{self.path}: can't keep a command's output: the disk took only a part")
        except OSError as e:
            raise LogError(f"{self.path}: can't keep a command's output: {e.strerror}") from e
