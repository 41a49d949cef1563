"""How one weight moves against its gradient: SGD, Adagrad (forgetting or not) and FTRL, for kernels.

The rule's code is an argument that is constant where a kernel is compiled, so that only its own branch is
left in the machine code. A row of a learning table is its weights, then the optimizer's numbers: see
``headrace.ctr.tables``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.kernels.intrinsics import read, write
from headrace.ctr.settings import Optimizer

SGD, ADAGRAD, ADAGRAD_POWER, FTRL, FORGETTING, FORGETTING_POWER = range(6)
"""The codes of rules; the power 0.5, a square root, is one of its own."""

FORGETTING_CODES = (FORGETTING, FORGETTING_POWER)

_STEEPEST = np.float32(2**20)
"""The largest gradient where sums forget: its square counts up to 2**64 times, and a float32 has room for
2**24 of those. (An infinite sum would make the weight no number, and then all others.) To have a larger one
takes a number, or a row's weight, of more than a million."""

_TINY = np.float32(1e-20)  # keeps 0 / sqrt(0) at 0, and is lost in any sum that matters
_ZERO = np.float32(0)


class Rule(NamedTuple):
    """An optimizer's numbers, as kernels take them: float32 each.

    ``weight`` is what a new square counts where sums forget (see ``headrace.ctr.learning.pace``), ``scale``
    one by that.
    """

    learning_rate: np.float32
    power: np.float32
    l1: np.float32
    l2: np.float32
    initial: np.float32
    weight: np.float32
    scale: np.float32


def rule_of(optimizer: Optimizer, *, pulled: bool = True) -> Rule:
    """An optimizer's numbers for kernels.

    Args:
        optimizer: The settings.
        pulled: Whether l1 and l2 pull these weights to zero; they never pull the bias.
    """
    own = optimizer
    numbers = (own.learning_rate, own.power, own.l1 * pulled, own.l2 * pulled, own.initial, 1.0, 1.0)
    return Rule(*map(np.float32, numbers))


def weighed(rule: Rule, weight: float) -> Rule:
    """The rule where a new square counts so much."""
    return rule._replace(weight=np.float32(weight), scale=np.float32(1 / weight))


def code_of(optimizer: Optimizer) -> int:
    """Which branch of ``move`` is an optimizer's."""
    if optimizer.kind == "adagrad":
        return ADAGRAD if optimizer.power == 0.5 else ADAGRAD_POWER
    if optimizer.kind == "forgetting":
        return FORGETTING if optimizer.power == 0.5 else FORGETTING_POWER
    return {"sgd": SGD, "ftrl": FTRL}[optimizer.kind]


def fresh_state(optimizer: Optimizer) -> tuple[float, ...]:
    """What the optimizer's numbers behind a weight start from."""
    initial = optimizer.initial
    return {"sgd": (), "adagrad": (initial,), "forgetting": (0.0,), "ftrl": (0.0, initial)}[optimizer.kind]


@numba.njit(**PART)
def bounded(code, gradient):  # type: ignore[no-untyped-def]
    """A gradient, or what it is a multiple of, that leaves room in sums that forget; others as they are."""
    if code in FORGETTING_CODES:
        return min(max(gradient, -_STEEPEST), _STEEPEST)
    return gradient


@numba.njit(**PART)
def move(code, rule, values, place, gradient):  # type: ignore[no-untyped-def]
    """Move one weight of a learning table against its gradient.

    Args:
        code: The rule's code.
        rule: The optimizer's numbers.
        values: The learning table: float32 ``[rows, width * (1 + state per weight)]``.
        place: The weight's row, the width (how many weights a row has), and the weight's column.
        gradient: The loss's derivative by the weight: float32.
    """
    row, width, column = place
    if code == FTRL:
        _move_ftrl(rule, values, place, gradient)
        return
    weight = read(values, (row, column))
    gradient += rule.l2 * weight
    if code == SGD:
        step = gradient
    else:
        if code in FORGETTING_CODES:
            total = read(values, (row, width + column)) + rule.weight * gradient * gradient
            write(values, (row, width + column), total)
            total = total * rule.scale + rule.initial
        else:
            total = read(values, (row, width + column)) + gradient * gradient
            write(values, (row, width + column), total)
        if code in (ADAGRAD, FORGETTING):
            step = gradient / np.float32(math.sqrt(total + _TINY))
        else:
            step = gradient / (total + _TINY) ** rule.power
    write(values, (row, column), weight - rule.learning_rate * step)


@numba.njit(**PART)
def _move_ftrl(rule, values, place, gradient):  # type: ignore[no-untyped-def]
    """McMahan's per-coordinate FTRL-proximal; behind the weight are z, then the sum of squares n."""
    row, width, column = place
    before = read(values, (row, 2 * width + column))
    after = before + gradient * gradient
    root = np.float32(math.sqrt(after))
    sigma = (root - np.float32(math.sqrt(before))) / rule.learning_rate
    pull = read(values, (row, width + column)) + gradient - sigma * read(values, (row, column))
    write(values, (row, 2 * width + column), after)
    write(values, (row, width + column), pull)
    beyond = max(abs(pull) - rule.l1, _ZERO)
    stiffness = root / rule.learning_rate + rule.l2
    write(values, (row, column), -math.copysign(beyond, pull) / (stiffness + _TINY))
