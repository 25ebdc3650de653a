"""A training command for roundlog, to be replaced by yours: fits a line to made-up data, needs only NumPy.

Any program will do. It is started with these environment variables:

ROUNDLOG_ROUND         the round, from 0
ROUNDLOG_RANK          which worker this is, from 0
ROUNDLOG_WORLD_SIZE    how many workers the job has
ROUNDLOG_SEED          the job's seed
ROUNDLOG_PARAMS        file to read (to write, with --init): an .npz of named arrays
ROUNDLOG_WEIGHTS       file to write: the same names, shapes and dtypes as the params, all finite
ROUNDLOG_METRICS       JSON file you may write: names and numbers; num_samples weights the average

It runs in the worker's own folder. What it leaves there (optimizer state, caches) is there
in the next round. Exit with 0 when all went well; anything else counts as a failure.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

Array = np.ndarray[Any, np.dtype[Any]]
Params = dict[str, Any]  # name -> array

STEPS = 20  # of gradient descent, in one round
LEARNING_RATE = 0.05
TRUE_WEIGHT = np.linspace(-1, 1, 8)  # what the training is to find
TRUE_BIAS = 0.5


# ---- Yours: the data and the model -------------------------------------------------------------


def make_data(rng: Generator, count: int, center: float = 0.0) -> tuple[Array, Array]:
    """Return inputs and targets. Yours: load this worker's data, chosen by rank or sent with `files`."""
    inputs = rng.normal(center, 1, (count, len(TRUE_WEIGHT)))
    return inputs, inputs @ TRUE_WEIGHT + TRUE_BIAS + rng.normal(0, 0.1, count)


def init_params(seed: int) -> Params:
    """Return the initial params. Yours: for PyTorch, a model's state_dict as NumPy arrays."""
    weight = default_rng(seed).normal(0, 0.1, len(TRUE_WEIGHT))
    return {"weight": weight.astype(np.float32), "bias": np.zeros(1, np.float32)}


def errors(params: Params, inputs: Array, targets: Array) -> Array:
    """Return prediction minus target."""
    return np.asarray(inputs @ params["weight"] + params["bias"] - targets)


def train(params: Params, inputs: Array, targets: Array) -> float:
    """Change the params by some steps of gradient descent; return the loss."""
    for _ in range(STEPS):
        error = errors(params, inputs, targets)
        params["weight"] -= (LEARNING_RATE * (inputs.T @ error) / len(error)).astype(np.float32)
        params["bias"] -= np.float32(LEARNING_RATE * error.mean())
    return float(np.square(errors(params, inputs, targets)).mean())


# ---- What each command does with the files; may stay as it is ----------------------------------


def read_params() -> Params:
    """Read the params of this round."""
    with np.load(os.environ["ROUNDLOG_PARAMS"]) as file:
        return {name: file[name] for name in file}


def write_arrays(variable: str, arrays: Params) -> None:
    """Write arrays into the file that an environment variable names."""
    with Path(os.environ[variable]).open("wb") as file:
        np.savez(file, **arrays)


def write_metrics(**values: float) -> None:
    """Write numbers for the log."""
    Path(os.environ["ROUNDLOG_METRICS"]).write_text(json.dumps(values))


def run_round() -> None:
    """Train on this worker's data for one round."""
    rank, seed = int(os.environ["ROUNDLOG_RANK"]), int(os.environ["ROUNDLOG_SEED"])
    params = read_params()
    inputs, targets = make_data(default_rng((seed, rank)), count=200 + 100 * rank, center=0.5 * (rank % 3))
    loss = train(params, inputs, targets)
    write_arrays("ROUNDLOG_WEIGHTS", params)
    write_metrics(loss=loss, num_samples=len(targets))
    print(f"loss {loss:.4f} on {len(targets)} samples")  # the last line is shown while the job runs


def run_evaluation() -> None:
    """Measure the params on data that no worker has."""
    inputs, targets = make_data(default_rng(0), count=500)
    loss = float(np.square(errors(read_params(), inputs, targets)).mean())
    write_metrics(loss=loss)
    print(f"held-out loss {loss:.4f}")


def main() -> None:
    """Do what the job file's commands ask for."""
    match sys.argv[1:]:
        case []:
            run_round()
        case ["--init"]:
            write_arrays("ROUNDLOG_PARAMS", init_params(int(os.environ["ROUNDLOG_SEED"])))
        case ["--evaluate"]:
            run_evaluation()
        case unknown:
            sys.exit(f"train.py: unknown arguments {unknown}; allowed: none, --init, --evaluate")


if __name__ == "__main__":
    main()
