"""Update rules of one weight: SGD, Adagrad (with or without decay) and FTRL, as parts of kernels.

The rule's code is a compile-time constant of a kernel, so only its own branch is left in the machine code. A
row of a learning table is its weights, then the optimizer's state: see ``headrace.ctr.tables``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.model_settings import Optimizer
from headrace.jit.intrinsics import read, write

SGD, ADAGRAD, ADAGRAD_POWER, FTRL, FORGETTING, FORGETTING_POWER = range(6)
"""Codes of the rules. The power 0.5, a square root, has codes of its own."""

FORGETTING_CODES = (FORGETTING, FORGETTING_POWER)

_STEEPEST = np.float32(2**20)
"""Largest gradient where sums of squares decay. Its square is weighted by up to 2**64, and a float32 has
room for 2**24 of those. (An infinite sum would make the weight NaN, and then all others.) Only a feature or a
row weight above a million yields a larger gradient."""

_TINY = np.float32(1e-20)  # makes 0 / sqrt(0) 0; negligible in any other sum
_ZERO = np.float32(0)


class Rule(NamedTuple):
    """An optimizer's parameters in the form that kernels take: float32 each.

    ``weight`` is the weight of a new square where sums of squares decay (see
    ``headrace.ctr.learning.forgetting_rate``), and ``scale`` its reciprocal.
    """

    learning_rate: np.float32
    power: np.float32
    l1: np.float32
    l2: np.float32
    initial: np.float32
    weight: np.float32
    scale: np.float32


def rule_of(optimizer: Optimizer, *, pulled: bool = True) -> Rule:
    """Return an optimizer's parameters for kernels.

    Args:
        optimizer: Settings of the optimizer.
        pulled: Whether the L1 and L2 penalties apply to these weights; they never apply to biases.
    """
    own = optimizer
    numbers = (own.learning_rate, own.power, own.l1 * pulled, own.l2 * pulled, own.initial, 1.0, 1.0)
    return Rule(*map(np.float32, numbers))


def weighed(rule: Rule, weight: float) -> Rule:
    """Return the rule with another weight of new squares."""
    return rule._replace(weight=np.float32(weight), scale=np.float32(1 / weight))


def code_of(optimizer: Optimizer) -> int:
    """Return the code of an optimizer's branch in ``move``."""
    if optimizer.kind == "adagrad":
        return ADAGRAD if optimizer.power == 0.5 else ADAGRAD_POWER
    if optimizer.kind == "forgetting":
        return FORGETTING if optimizer.power == 0.5 else FORGETTING_POWER
    return {"sgd": SGD, "ftrl": FTRL}[optimizer.kind]


def fresh_state(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the initial state of an optimizer for one weight."""
    initial = optimizer.initial
    return {"sgd": (), "adagrad": (initial,), "forgetting": (0.0,), "ftrl": (0.0, initial)}[optimizer.kind]


@numba.njit(**PART)
def bounded(code, gradient):  # type: ignore[no-untyped-def]
    """Clip a gradient, or a factor of it, where sums of squares decay; return others unchanged."""
    if code in FORGETTING_CODES:
        return min(max(gradient, -_STEEPEST), _STEEPEST)
    return gradient


@numba.njit(**PART)
def move(code, rule, values, place, gradient):  # type: ignore[no-untyped-def]
    """Move one weight of a learning table against its gradient.

    Args:
        code: Code of the rule.
        rule: The optimizer's parameters.
        values: The learning table: float32 ``[rows, width * (1 + state per weight)]``.
        place: The weight's row, the width (the number of weights in a row), and the weight's column.
        gradient: The loss's derivative with respect to the weight: float32.
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
    """Move one weight by McMahan's per-coordinate FTRL-Proximal; its state is z, then sum of squares n."""
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
