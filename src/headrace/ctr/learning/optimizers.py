"""Updates of groups of weights by a whole batch's gradient: every optimizer, over rows or flat arrays.

A group is a LearningTable: a row's weights, then its optimizer's state. ``touched_mover`` updates the rows of
a table that a batch touched. ``all_mover`` is for Adam, which moves every row's moments and weights, as in
Keras and PyTorch. ``flat_mover`` updates one long row, such as a layer. Lazy Adam leaves untouched rows and
their moments unchanged; its bias correction counts all batches, as LazyAdam of TensorFlow Addons does.

SGD and Adam use the gradient of the mean over a batch, as is usual. The others use the sum: their steps are
divided by accumulated sums of squares, so one learning rate fits both single rows and thousands.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.kernels.compiling import KERNEL, PART
from headrace.ctr.learning import update_rules
from headrace.ctr.learning.update_rules import Rule, bounded, move, rule_of, weighed
from headrace.ctr.model_settings import Optimizer
from headrace.jit.intrinsics import one_by_one, prefetch, read, write
from headrace.jit.kernel_cache import cached

ADAM = 8
"""Code of Adam, lazy or not; lower codes are those of ``headrace.ctr.learning.update_rules``."""

_AHEAD = 8
"""Prefetch distance, in touched rows."""

_MOMENTS = ("adam", "lazy_adam")


class Step(NamedTuple):
    """Parameters of one step of a group's optimizer, in the form that kernels take.

    Attributes:
        rule: Parameters of the rules without moments.
        scale: Factor of summed gradients.
        rate: Adam's learning rate with its bias correction.
        fresh1: 1 - beta1.
        fresh2: 1 - beta2.
        epsilon: Constant added to the root of the second moment.
    """

    rule: Rule
    scale: np.float32
    rate: np.float32
    fresh1: np.float32
    fresh2: np.float32
    epsilon: np.float32


def code_of(optimizer: Optimizer) -> int:
    """Return the code of an optimizer's branch in the kernels."""
    return ADAM if optimizer.kind in _MOMENTS else update_rules.code_of(optimizer)


def fresh_state(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the initial state of an optimizer for one weight."""
    return (0.0, 0.0) if optimizer.kind in _MOMENTS else update_rules.fresh_state(optimizer)


def step_of(optimizer: Optimizer, step: int, rows: int, *, pulled: bool = True, weight: float = 1.0) -> Step:
    """Return the parameters of one step.

    Args:
        optimizer: Settings of the optimizer.
        step: Number of this batch, from 1.
        rows: Number of rows in the batch.
        pulled: Whether the L1 and L2 penalties apply to these weights.
        weight: Weight of a new square, where sums of squares decay.
    """
    corrected = math.sqrt(1 - optimizer.beta2**step) / (1 - optimizer.beta1**step)
    summed = optimizer.kind in ("adagrad", "forgetting", "ftrl")
    numbers = (
        1.0 if summed else 1 / max(rows, 1),
        optimizer.learning_rate * corrected,
        1 - optimizer.beta1,
        1 - optimizer.beta2,
        optimizer.epsilon,
    )
    return Step(weighed(rule_of(optimizer, pulled=pulled), weight), *map(np.float32, numbers))


@numba.njit(**PART)
def _move(code, step, values, place, gradient):  # type: ignore[no-untyped-def]
    """Move one weight; see ``headrace.ctr.learning.update_rules.move``."""
    gradient *= step.scale
    if code != ADAM:
        move(code, step.rule, values, place, bounded(code, gradient))
        return
    weight = read(values, (place[0], place[2]))
    gradient += step.rule.l2 * weight
    _move_moments(step, values, place, weight, gradient)


@numba.njit(**PART)
def _move_moments(step, values, place, weight, gradient):  # type: ignore[no-untyped-def]
    row, width, column = place
    first, second = read(values, (row, width + column)), read(values, (row, 2 * width + column))
    first += step.fresh1 * (gradient - first)
    second += step.fresh2 * (gradient * gradient - second)
    write(values, (row, width + column), first)
    write(values, (row, 2 * width + column), second)
    root = np.float32(math.sqrt(second)) + step.epsilon
    write(values, (row, column), weight - step.rate * first / root)


TouchedMover = Callable[[Step, Array, Array, Array, tuple[int, int]], None]
AllMover = Callable[[Step, Array, Array, Array, Array, tuple[int, int]], None]
FlatMover = Callable[[Step, Array, Array], None]


@functools.cache
def touched_mover(code: int, width: int) -> TouchedMover:
    """Return the kernel that moves the rows that a batch touched.

    Args:
        code: Code of the optimizer.
        width: Number of weights in a row.

    Returns:
        A function of the step, the table, the touched rows (uint32 ``[touched]``), their gradients
        (float32 ``[touched, width]``), and the first of them to move and the end of the range.
    """

    @cached(**KERNEL)
    def move_touched(step, values, touched, gradients, edges):  # type: ignore[no-untyped-def]
        last = touched.shape[0] - 1
        for number in range(edges[0], edges[1]):
            coming = np.uintp(read(touched, min(number + _AHEAD, last)))
            for column in range(0, values.shape[1], 16):
                prefetch(values, (coming, column))
            row = np.uintp(read(touched, number))
            one_by_one()
            for column in range(width):
                _move(code, step, values, (row, width, column), read(gradients, (number, column)))

    made: TouchedMover = move_touched
    return made


@functools.cache
def all_mover(width: int) -> AllMover:
    """Return the kernel that moves all rows by Adam, whether a batch touched them or not.

    Args:
        width: Number of weights in a row.

    Returns:
        A function of the step, the table, the touched rows, their gradients, the positions of the table's
        rows in ``Coalescer.positions`` (uint32), and the first row of the table to move and the end of the
        range.
    """

    @cached(**KERNEL)
    def move_all(step, values, touched, gradients, positions, edges):  # type: ignore[no-untyped-def]
        for row in range(edges[0], edges[1]):
            one_by_one()
            position = np.int64(read(positions, row))
            if position < touched.shape[0] and np.int64(read(touched, position)) == row:
                for column in range(width):
                    _move(ADAM, step, values, (row, width, column), read(gradients, (position, column)))
            else:
                for column in range(width):
                    weight = read(values, (row, column))
                    _move_moments(step, values, (row, width, column), weight, np.float32(0))

    made: AllMover = move_all
    return made


@functools.cache
def flat_mover(code: int) -> FlatMover:
    """Return the kernel that moves one long row, such as a layer's weights.

    Args:
        code: Code of the optimizer.

    Returns:
        A function of the step, the table of one row, and its gradient (float32, one dimension).
    """

    @cached(**KERNEL)
    def move_flat(step, values, gradient):  # type: ignore[no-untyped-def]
        width = gradient.shape[0]
        for column in range(width):
            _move(code, step, values, (0, width, column), read(gradient, column))

    made: FlatMover = move_flat
    return made
