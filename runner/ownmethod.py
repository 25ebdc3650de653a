"""Finds a job's own function for combining weights, ``module:function`` beside the job file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import cast

from runner.aggregate import Combine
from runner.errors import JobError, Problem

_ALLOWED = "module:function, a Python file beside the job file and a function in it"


def source(method: str, folder: Path) -> Path | None:
    """Return the Python file of a method that is a user's own."""
    module, colon, _ = method.partition(":")
    return folder / f"{module.replace('.', '/')}.py" if colon else None


def load(method: str, folder: Path, job: Path) -> Combine | None:
    """Return the function, or None for a built-in method.

    Args:
        method: as the job has it.
        folder: the job file's.
        job: the job file, for the message.

    Raises:
        JobError: there is no such module or function, or importing it fails.
    """
    path = source(method, folder)
    if path is None:
        return None
    name = f"_roundlog_own_{path.stem}"
    sys.path.insert(0, str(folder))  # it may import what lies beside it
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} can't be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except Exception as e:
        said = f"importing {path} failed: {type(e).__name__}: {e}"
        raise JobError(str(job), [Problem("aggregate.method", said, _ALLOWED)]) from e
    finally:
        sys.path.remove(str(folder))
    function = getattr(module, method.partition(":")[2], None)
    if not callable(function):
        said = f"{path} has no function {method.partition(':')[2]!r}"
        raise JobError(str(job), [Problem("aggregate.method", said, _ALLOWED)])
    return cast("Combine", function)
