"""Server optimizers: how the average of the weights moves the params; one block at a time, no I/O.

All work on the pseudo-gradient, old params minus averaged weights, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of a server optimizer; those it doesn't use are 0.

    Args:
        learning_rate: of the server (eta).
        momentum: how much of the momentum stays (FedAvgM, DiLoCo).
        beta_1: how much of the first moment stays.
        beta_2: how much of the second moment stays.
        tau: added to the root of the second moment: the degree of adaptivity.
        bias_correction: correct the moments' bias towards 0, as Kingma & Ba 2015 do (FedAdam).
    """

    learning_rate: float
    momentum: float = 0.0
    beta_1: float = 0.0
    beta_2: float = 0.0
    tau: float = 0.0
    bias_correction: bool = False


Step = Callable[[Settings, Block, Block, Sequence[Block], int], Block]
DEFAULTS: Mapping[str, Settings] = {
    "fedavgm": Settings(learning_rate=1.0, momentum=0.9),
    "fedadagrad": Settings(learning_rate=0.1, tau=1e-3),
    "fedadam": Settings(learning_rate=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3),
    "fedyogi": Settings(learning_rate=0.01, beta_1=0.9, beta_2=0.99, tau=1e-3),
    "diloco": Settings(learning_rate=0.7, momentum=0.9),
}
"""Every optimizer by its published name, with published values: Hsu et al. 2019 (arXiv:1909.06335) for
FedAvgM, Reddi et al. 2021 (arXiv:2003.00295) for the adaptive ones, Douillard et al. 2023
(arXiv:2311.08105) for DiLoCo."""

USES: Mapping[str, tuple[str, ...]] = {
    "fedavgm": ("learning_rate", "momentum"),
    "fedadagrad": ("learning_rate", "beta_1", "tau"),
    "fedadam": ("learning_rate", "beta_1", "beta_2", "tau", "bias_correction"),
    "fedyogi": ("learning_rate", "beta_1", "beta_2", "tau"),
    "diloco": ("learning_rate", "momentum"),
}
"""The settings each of them has."""

STATE: Mapping[str, tuple[str, ...]] = {
    "fedavgm": ("momentum",),
    "fedadagrad": ("moment1", "moment2"),
    "fedadam": ("moment1", "moment2"),
    "fedyogi": ("moment1", "moment2"),
    "diloco": ("momentum",),
}
"""What each of them remembers from one round to the next; all 0 before the first."""


def _fedavgm(settings: Settings, old: Block, gradient: Block, state: Sequence[Block], _: int) -> Block:
    """Hsu et al. 2019, section 4.3: v = beta v + g; w = w - eta v."""
    (momentum,) = state
    momentum *= settings.momentum
    momentum += gradient
    return old - settings.learning_rate * momentum


def _diloco(settings: Settings, old: Block, gradient: Block, state: Sequence[Block], _: int) -> Block:
    """Douillard et al. 2023, algorithm 1, with Nesterov momentum as PyTorch's SGD has it."""
    (momentum,) = state
    momentum *= settings.momentum
    momentum += gradient
    return old - settings.learning_rate * (gradient + settings.momentum * momentum)


def _fedadagrad(
    settings: Settings, old: Block, gradient: Block, state: Sequence[Block], number: int
) -> Block:
    """Reddi et al. 2021, algorithm 2: v = v + delta^2."""
    second = state[1]
    second += gradient * gradient
    return _adapted(settings, old, gradient, state, number)


def _fedadam(settings: Settings, old: Block, gradient: Block, state: Sequence[Block], number: int) -> Block:
    """Reddi et al. 2021, algorithm 2: v = beta_2 v + (1 - beta_2) delta^2."""
    second = state[1]
    second *= settings.beta_2
    second += (1 - settings.beta_2) * (gradient * gradient)
    return _adapted(settings, old, gradient, state, number)


def _fedyogi(settings: Settings, old: Block, gradient: Block, state: Sequence[Block], number: int) -> Block:
    """Reddi et al. 2021, algorithm 2: v = v - (1 - beta_2) delta^2 sign(v - delta^2)."""
    second, squared = state[1], gradient * gradient
    second -= (1 - settings.beta_2) * squared * np.sign(second - squared)
    return _adapted(settings, old, gradient, state, number)


def _adapted(settings: Settings, old: Block, gradient: Block, state: Sequence[Block], number: int) -> Block:
    """Step along the first moment, over the root of the second; delta is the gradient's opposite."""
    first, second = state
    first *= settings.beta_1
    first -= (1 - settings.beta_1) * gradient
    rate = settings.learning_rate
    if settings.bias_correction:
        rate *= math.sqrt(1 - settings.beta_2**number) / (1 - settings.beta_1**number)
    return old + rate * first / (np.sqrt(second) + settings.tau)


STEPS: Mapping[str, Step] = {
    "fedavgm": _fedavgm,
    "fedadagrad": _fedadagrad,
    "fedadam": _fedadam,
    "fedyogi": _fedyogi,
    "diloco": _diloco,
}
"""Every optimizer's step, which returns a block of new params and brings the state up to date in place.

It takes the settings; old params and pseudo-gradient as 1-D blocks of float64; blocks of the state as
``STATE`` lists them, all 0 before the first step; and which step this is, from 1.
"""
