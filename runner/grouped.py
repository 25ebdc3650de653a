"""Makes one error of what several tasks raised at once; knows nothing of rounds."""

from __future__ import annotations

import trio

from runner.errors import RunError


def leaf(error: BaseException) -> BaseException:
    """Return the one error that matters of what several tasks raised: a bug, a RunError, a cancellation."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [leaf(inner) for inner in error.exceptions]
    return min(leaves, key=lambda e: 2 if isinstance(e, trio.Cancelled) else isinstance(e, RunError))
