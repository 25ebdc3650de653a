"""The built-in job's training command: reads handwritten digits; needs nothing but NumPy and its environment.

python train.py --init       write the initial params
python train.py              train on this worker's images: one round
python train.py --evaluate   measure the params on the images that nobody trains on
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

Array = np.ndarray[Any, np.dtype[Any]]
Params = dict[str, Any]  # name -> float32 array

HIDDEN = 64  # units
EPOCHS = 15  # passes over a worker's images in one round
BATCH = 4  # images a step
LEARNING_RATE = 0.1
HELD_OUT = 360  # images, of 1,797
SKEW = 1.1  # how far a worker's digits spread: 0 is a few digits only, 10 is all alike
SIZE_RATIO = 2.5  # the largest shard to the smallest


def load_digits() -> tuple[Array, Array, Array]:
    """Return images (pixels from 0 to 1), labels, and the order that the split goes by."""
    with np.load(Path(__file__).with_name("digits.npz")) as data:
        images = data["images"].reshape(-1, 64).astype(np.float32) / 16
        labels = data["labels"].astype(np.int64)
    return images, labels, default_rng(0).permutation(len(labels))  # one split for all runs: comparable


def held_out() -> tuple[Array, Array]:
    """Return images and labels for measuring only."""
    images, labels, order = load_digits()
    return images[order[:HELD_OUT]], labels[order[:HELD_OUT]]


def shard_indices(seed: int, rank: int, world_size: int) -> Array:
    """Return which images a worker has: uneven in number, mostly of a few digits."""
    _, labels, order = load_digits()
    rest, rng = order[HELD_OUT:], default_rng(seed)
    # Line the images up by digit, blur the borders between digits, cut the line into uneven pieces.
    place = rng.permutation(10)[labels[rest]] + rng.normal(0, SKEW, len(rest))
    share = rng.permutation(np.linspace(1, SIZE_RATIO, world_size)).cumsum()
    cuts = (share / share[-1] * len(rest)).astype(int)
    return np.asarray(np.split(rest[np.argsort(place)], cuts[:-1])[rank])


def init_params(seed: int) -> Params:
    """Return params of a network of one hidden layer, the same for the same seed."""
    rng = default_rng(seed)
    return {
        "hidden.weight": rng.normal(0, (2 / 64) ** 0.5, (64, HIDDEN)).astype(np.float32),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "output.weight": rng.normal(0, (1 / HIDDEN) ** 0.5, (HIDDEN, 10)).astype(np.float32),
        "output.bias": np.zeros(10, np.float32),
    }


def forward(params: Params, images: Array) -> tuple[Array, Array]:
    """Return the hidden layer's output and each digit's probability."""
    hidden = np.maximum(images @ params["hidden.weight"] + params["hidden.bias"], 0)
    scores = hidden @ params["output.weight"] + params["output.bias"]
    exps = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, exps / exps.sum(axis=1, keepdims=True)


def evaluate(params: Params, images: Array, labels: Array) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy."""
    _, probabilities = forward(params, images)
    loss = -np.log(probabilities[np.arange(len(labels)), labels] + 1e-9).mean()
    return float((probabilities.argmax(axis=1) == labels).mean()), float(loss)


def train_epoch(params: Params, images: Array, labels: Array, rng: Generator) -> None:
    """Change the params by one pass of stochastic gradient descent."""
    order, targets = rng.permutation(len(labels)), np.eye(10, dtype=np.float32)[labels]
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        hidden, probabilities = forward(params, images[batch])
        d_scores = (probabilities - targets[batch]) / len(batch)
        d_hidden = (d_scores @ params["output.weight"].T) * (hidden > 0)
        params["output.weight"] -= LEARNING_RATE * (hidden.T @ d_scores)
        params["output.bias"] -= LEARNING_RATE * d_scores.sum(axis=0)
        params["hidden.weight"] -= LEARNING_RATE * (images[batch].T @ d_hidden)
        params["hidden.bias"] -= LEARNING_RATE * d_hidden.sum(axis=0)


def read_params() -> Params:
    """Read what the coordinator pushed."""
    with np.load(os.environ["ROUNDLOG_PARAMS"]) as file:
        return {name: file[name] for name in file}


def write(variable: str, arrays: Params) -> None:
    """Write arrays into the file that an environment variable names."""
    with Path(os.environ[variable]).open("wb") as file:
        np.savez(file, **arrays)


def write_metrics(**values: float) -> None:
    """Write numbers for the log."""
    Path(os.environ["ROUNDLOG_METRICS"]).write_text(json.dumps(values))


def run_round() -> None:
    """Train for one round: params in, weights and metrics out."""
    seed, number, rank, world_size = (
        int(os.environ[f"ROUNDLOG_{name}"]) for name in ("SEED", "ROUND", "RANK", "WORLD_SIZE")
    )
    images, labels, _ = load_digits()
    mine = shard_indices(seed, rank, world_size)
    images, labels, params = images[mine], labels[mine], read_params()
    rng = default_rng((seed, number, rank))  # the same round again gives the same weights
    for epoch in range(1, EPOCHS + 1):
        train_epoch(params, images, labels, rng)
        if epoch % 5 == 0:  # flushed, so that it comes before what goes to stderr
            print(f"epoch {epoch}/{EPOCHS} loss {evaluate(params, images, labels)[1]:.3f}", flush=True)
        if epoch == 5 and os.environ.get("DIGITS_FAIL") == f"{rank}:{number}":
            print(
                f"planned failure: rank {rank} leaves round {number}, see DIGITS_FAIL in job.toml",
                file=sys.stderr,
            )
            sys.exit(3)
    _, loss = evaluate(params, images, labels)
    write("ROUNDLOG_WEIGHTS", params)
    write_metrics(loss=loss, num_samples=len(labels))
    print(f"loss {loss:.3f} on {len(labels)} samples")


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--init", action="store_true", help="write the initial params")
    what.add_argument("--evaluate", action="store_true", help="measure the params on held-out images")
    args = parser.parse_args()
    if args.init:
        write("ROUNDLOG_PARAMS", init_params(int(os.environ["ROUNDLOG_SEED"])))
    elif args.evaluate:
        accuracy, loss = evaluate(read_params(), *held_out())
        write_metrics(accuracy=accuracy, loss=loss)
        print(f"accuracy {accuracy:.3f} loss {loss:.3f} on {HELD_OUT} held-out images")
    else:
        run_round()


if __name__ == "__main__":
    main()
