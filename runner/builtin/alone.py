"""Shows what the rounds of the built-in job are worth; does them in this process, without runner or log.

python -m runner.builtin.alone [--seed N]
"""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import default_rng

from runner.builtin.train import (
    EPOCHS,
    HELD_OUT,
    Array,
    Params,
    evaluate,
    held_out,
    init_params,
    load_digits,
    shard_indices,
    train_epoch,
)


@dataclass(frozen=True)
class Plan:
    """What the job file says, as far as it matters here."""

    rounds: int
    workers: int
    seed: int
    fails: tuple[int, int] | None  # (rank, round)


def read_plan(seed: int | None = None) -> Plan:
    """Read the built-in job file.

    Args:
        seed: instead of the file's.
    """
    job = tomllib.loads(Path(__file__).with_name("job.toml").read_text(encoding="utf-8"))
    rank, _, number = job["train"]["env"]["DIGITS_FAIL"].partition(":")
    return Plan(
        rounds=job["rounds"],
        workers=job["workers"],
        seed=job["seed"] if seed is None else seed,
        fails=(int(rank), int(number)) if number else None,
    )


def train_round(params: Params, images: Array, labels: Array, key: tuple[int, int, int]) -> Params:
    """Return new params: one worker's round, drawn by (seed, round, rank) as in a real run."""
    new, rng = {name: array.copy() for name, array in params.items()}, default_rng(key)
    for _ in range(EPOCHS):
        train_epoch(new, images, labels, rng)
    return new


def average(weights: list[tuple[int, Params]]) -> Params:
    """Return the mean of (samples, weights), weighted by samples."""
    total = sum(samples for samples, _ in weights)
    return {
        name: np.sum([w[name] * (samples / total) for samples, w in weights], axis=0, dtype=np.float32)
        for name in weights[0][1]
    }


def compare(plan: Plan) -> tuple[list[tuple[int, float]], list[float]]:
    """Train each worker alone, then all of them in rounds.

    Returns:
        Each worker's (samples, held-out accuracy after all rounds), and the averaged params'
        held-out accuracy after each round.
    """
    images, labels, _ = load_digits()
    shards = [shard_indices(plan.seed, rank, plan.workers) for rank in range(plan.workers)]
    test = held_out()

    alone = []
    for rank, mine in enumerate(shards):
        params = init_params(plan.seed)
        for number in range(plan.rounds):
            params = train_round(params, images[mine], labels[mine], (plan.seed, number, rank))
        alone.append((len(mine), evaluate(params, *test)[0]))

    averaged, params = [], init_params(plan.seed)
    for number in range(plan.rounds):
        params = average(
            [
                (len(mine), train_round(params, images[mine], labels[mine], (plan.seed, number, rank)))
                for rank, mine in enumerate(shards)
                if (rank, number) != plan.fails
            ]
        )
        averaged.append(evaluate(params, *test)[0])
    return alone, averaged


def main() -> None:
    """Print the comparison as a table."""
    parser = argparse.ArgumentParser(description="Train the workers of the built-in job alone and in rounds.")
    parser.add_argument("--seed", type=int, help="instead of the one in job.toml")
    plan = read_plan(parser.parse_args().seed)
    alone, averaged = compare(plan)
    print(f"seed {plan.seed}, {plan.rounds} rounds of {EPOCHS} epochs, {HELD_OUT} held-out images\n")
    print("trained            samples  accuracy")
    for rank, (samples, accuracy) in enumerate(alone):
        print(f"worker {rank} alone     {samples:7}  {accuracy:8.3f}")
    print(f"all, averaged      {sum(samples for samples, _ in alone):7}  {averaged[-1]:8.3f}\n")
    print("averaged, by round: " + " ".join(f"{accuracy:.3f}" for accuracy in averaged))


if __name__ == "__main__":
    main()
