"""Optimizers: update rules of one weight, and updates of groups of weights by a whole batch's gradient.

The rules (SGD, Adagrad with or without decay, FTRL) are parts of kernels. A rule's code is a compile-time
constant of a kernel, so only its own branch is left in the machine code. A row of a learning table is its
weights, then the optimizer's state: see ``headrace.ctr.click_model``.

A group of weights is a LearningTable. ``touched_mover`` updates the rows of a table that a batch touched,
which a ``Coalescer`` finds, so that each is updated once. ``all_mover`` is for Adam, which moves every row's
moments and weights, as in Keras and PyTorch. ``flat_mover`` updates one long row, such as a layer. Lazy Adam
leaves untouched rows and their moments unchanged; its bias correction counts all batches, as LazyAdam of
TensorFlow Addons does.

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
from headrace.ctr.model_settings import Optimizer
from headrace.jit.intrinsics import one_by_one, prefetch, read, write
from headrace.jit.kernel_cache import KERNEL, PART, cached

SGD, ADAGRAD, ADAGRAD_POWER, FTRL, FORGETTING, FORGETTING_POWER = range(6)
"""Codes of the rules of one weight. The power 0.5, a square root, has codes of its own."""

ADAM = 8
"""Code of Adam, lazy or not, which only updates whole groups, by a batch's gradient."""

FORGETTING_CODES = (FORGETTING, FORGETTING_POWER)

_STEEPEST = np.float32(2**20)
"""Largest gradient where sums of squares decay. Its square is weighted by up to 2**64, and a float32 has
room for 2**24 of those. (An infinite sum would make the weight NaN, and then all others.) Only a feature or a
row weight above a million yields a larger gradient."""

_TINY = np.float32(1e-20)  # avoids 0 / 0 for a sum of squares of 0; negligible in any other sum
_ZERO = np.float32(0)

_MOMENTS = ("adam", "lazy_adam")

_AHEAD = 8
"""Prefetch distance, in touched rows."""

_POSITIONS_AHEAD = 4
"""Prefetch distance of positions, in rows of the block."""


class Rule(NamedTuple):
    """An optimizer's parameters in the form that kernels take: float32 each.

    ``weight`` is the weight of a new square where sums of squares decay (see
    ``headrace.ctr.learning.adagrad_decay``), and ``scale`` its reciprocal.
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
    """Return the code of an optimizer."""
    if optimizer.kind in _MOMENTS:
        return ADAM
    if optimizer.kind == "adagrad":
        return ADAGRAD if optimizer.power == 0.5 else ADAGRAD_POWER
    if optimizer.kind == "forgetting":
        return FORGETTING if optimizer.power == 0.5 else FORGETTING_POWER
    return {"sgd": SGD, "ftrl": FTRL}[optimizer.kind]


def fresh_state(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the initial state of an optimizer for one weight."""
    if optimizer.kind in _MOMENTS:
        return 0.0, 0.0
    initial = optimizer.initial
    return {"sgd": (), "adagrad": (initial,), "forgetting": (0.0,), "ftrl": (0.0, initial)}[optimizer.kind]


@numba.njit(**PART)
def bounded(code, gradient):  # type: ignore[no-untyped-def]
    """Clip a gradient, or one of its factors, if the sums of squares decay; else return it unchanged."""
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
    """Move one weight by its gradient of a batch; see ``move``."""
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
        (float32 ``[touched, width]``), and the range of touched rows to update: its first row and its end.
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
        A function of the step, the table, the touched rows, their gradients, ``Coalescer.positions``
        (uint32), and the range of the table's rows to update: its first row and its end.
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


class Touched(NamedTuple):
    """The rows that a batch touches.

    Attributes:
        rows: Touched rows: uint32 ``[touched]``; first row 0, which stands for no value and is never learnt,
            then those of the tables, then those of interactions.
        embedded: Number of them that belong to tables, including row 0.
        places: Index in ``rows`` of each value's row: uint32 ``[rows, slots]``.
        crossed: Index in ``rows`` of each interaction's row: uint32 ``[rows, interactions]``.
    """

    rows: Array
    embedded: int
    places: Array
    crossed: Array


class Coalescer:
    """Numbering of the rows that a batch touches; its arrays are reused for the next batch.

    Rows are numbered in the order in which a batch touches them, and gradients are summed under these
    numbers. A row's number is looked up in ``positions``, which is never cleared: an entry is valid only if
    that number belongs to the same row in this batch.

    Attributes:
        positions: Candidate for each row's index in ``Touched.rows``: uint32 ``[rows]``.
    """

    def __init__(self, rows: int) -> None:
        """Allocate memory.

        Args:
            rows: Number of rows of the linear table.
        """
        self.positions = np.zeros(rows, np.uint32)
        self._found = np.zeros(1, np.uint32)

    def touched_by(self, indices: Array, crossed: Array) -> Touched:
        """Return the rows that a batch touches; valid until the next call.

        Args:
            indices: Rows of the tables: uint32 ``[rows, slots]``.
            crossed: Rows of the interactions: uint32 ``[rows, interactions]``.
        """
        most = 1 + indices.size + crossed.size
        if len(self._found) < most:
            self._found = np.zeros(most, np.uint32)
        places, crossed_places = np.empty(indices.shape, np.uint32), np.empty(crossed.shape, np.uint32)
        positions = self.positions.reshape(-1, 1)
        embedded = _number(indices, positions, self._found, places, 1)
        count = _number(crossed, positions, self._found, crossed_places, embedded)
        return Touched(self._found[:count], embedded, places, crossed_places)


@cached(**KERNEL)
def _number(indices, positions, found, places, count):  # type: ignore[no-untyped-def]
    """Number the rows that were not touched before; return the total number of touched rows."""
    for row in range(indices.shape[0]):
        coming = min(row + _POSITIONS_AHEAD, indices.shape[0] - 1)
        for slot in range(indices.shape[1]):
            prefetch(positions, (np.uintp(read(indices, (coming, slot))), 0))
        for slot in range(indices.shape[1]):
            count = _number_one(indices, positions, found, places, (row, slot, count))
    return count


@numba.njit(**PART)
def _number_one(indices, positions, found, places, which):  # type: ignore[no-untyped-def]
    row, slot, count = which
    index = read(indices, (row, slot))
    place = np.uint32(0)
    if index != 0:
        place = read(positions, (np.uintp(index), 0))
        if place == 0 or place >= count or read(found, np.uintp(place)) != index:
            place = np.uint32(count)
            write(positions, (np.uintp(index), 0), place)
            write(found, count, index)
            count += 1
    write(places, (row, slot), place)
    return count
