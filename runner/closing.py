"""Makes what has a ``close`` usable in a ``with`` statement; knows nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Closes itself at the end of a ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; once more is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
