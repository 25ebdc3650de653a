"""Takes a training script through its rounds, whether it is started once a round or stays for all of them.

    from roundlog_rounds import rounds

    for r in rounds():                       # load data and model before: once, where the script stays
        params = numpy.load(r.params)
        ...
        numpy.savez(r.weights, **weights)
        r.report(loss=0.3, num_samples=1200)

Needs nothing but Python 3.8; sent to the workers by ``files = ["{rounds}", ...]`` in a job.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Iterator


class Round:
    """One round: its number, and the names of its files."""

    def __init__(self, number: int, params: str, weights: str) -> None:
        self.round = number
        self.params = params
        self.weights = weights
        self.metrics: dict[str, float] = {}

    def report(self, **metrics: float) -> None:
        """Tell numbers about the training; ``num_samples`` weights the average."""
        self.metrics.update(metrics)


def rounds() -> Iterator[Round]:
    """Yield each round; it is over, and its weights are taken, when the next one is asked for."""
    if "ROUNDLOG_RESIDENT" not in os.environ:
        params, weights = os.environ["ROUNDLOG_PARAMS"], os.environ["ROUNDLOG_WEIGHTS"]
        r = Round(int(os.environ["ROUNDLOG_ROUND"]), params, weights)
        yield r
        Path(os.environ["ROUNDLOG_METRICS"]).write_text(json.dumps(r.metrics), encoding="utf-8")
        return
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        for name in request["remove"]:
            with suppress(OSError):
                Path(name).unlink()
        r = Round(request["round"], request["params"], request["weights"])
        yield r
        answer = {"round": r.round, "metrics": r.metrics}
        if not Path(r.weights).exists():
            answer = {"round": r.round, "error": f"no weights were written to {r.weights}"}
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, b"\nroundlog:" + json.dumps(answer).encode() + b"\n")
