"""Computes what other programs' server optimizers make of given updates, for test_optimizers.py.

Usage, in an environment with torch and flwr (they are no dependency of the tests):

    python tests/references/make_optimizers.py > tests/references/optimizers.json

The same five averages of weights are given to each, whatever it makes of them: FedAvgM, FedAdagrad, FedAdam
and FedYogi of Flower, and SGD with Nesterov momentum of PyTorch on the pseudo-gradients.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi

SIZE, STEPS = 6, 5
RNG = np.random.default_rng(7)
FIRST = RNG.normal(size=SIZE)
UPDATES = RNG.normal(scale=0.1, size=(STEPS, SIZE))
"""Averaged weights minus params, in each step."""
SETTINGS: dict[str, dict[str, float]] = {
    "fedavgm": {"learning_rate": 1.0, "momentum": 0.9},
    "fedadagrad": {"learning_rate": 0.1, "beta_1": 0.0, "tau": 1e-3},
    "fedadam": {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
    "fedyogi": {"learning_rate": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
    "diloco": {"learning_rate": 0.7, "momentum": 0.9},
}


def flower(strategy: Any) -> list[list[float]]:
    now, made = FIRST, []
    for number, update in enumerate(UPDATES, start=1):
        status = Status(Code.OK, "")
        result = FitRes(status, ndarrays_to_parameters([now + update]), 1, {})
        parameters, _ = strategy.aggregate_fit(number, [(None, result)], [])
        now = parameters_to_ndarrays(parameters)[0]
        made.append(now.tolist())
    return made


def nesterov(learning_rate: float, momentum: float) -> list[list[float]]:
    parameter = torch.nn.Parameter(torch.from_numpy(FIRST.copy()))
    optimizer = torch.optim.SGD([parameter], lr=learning_rate, momentum=momentum, nesterov=True)
    made = []
    for update in UPDATES:
        parameter.grad = torch.from_numpy(-update)
        optimizer.step()
        made.append(parameter.detach().numpy().tolist())
    return made


def main() -> None:
    initial = ndarrays_to_parameters([FIRST])
    params = SETTINGS["fedavgm"]
    made = {
        "fedavgm": flower(
            FedAvgM(
                initial_parameters=initial,
                server_learning_rate=params["learning_rate"],
                server_momentum=params["momentum"],
            )
        ),
        "diloco": nesterov(**SETTINGS["diloco"]),
    }
    for name, strategy in (("fedadagrad", FedAdagrad), ("fedadam", FedAdam), ("fedyogi", FedYogi)):
        params = SETTINGS[name]
        given = {"eta": params["learning_rate"], "tau": params["tau"]}
        if name != "fedadagrad":
            given |= {"beta_1": params["beta_1"], "beta_2": params["beta_2"]}
        made[name] = flower(strategy(initial_parameters=initial, **given))
    versions = {name: version(name) for name in ("flwr", "torch", "numpy")}
    told = {"versions": versions, "settings": SETTINGS, "first": FIRST.tolist(), "updates": UPDATES.tolist()}
    print(json.dumps({**told, "params": made}, indent=1))


if __name__ == "__main__":
    main()
