"""Online learning: lr, fm, fwfm and ffm that predict and learn row by row.

A thread learns from each row before it predicts its next. With one thread, results are reproducible to the
bit. With several (``threads``), each takes a part of each block, and all change the same tables without
locks, as in Hogwild. If two threads change a weight at once, one change may be lost, which costs little where
rows rarely share values. The result then depends on the scheduling of the threads.

The kernel that ``learner`` returns is compiled for a shape on its first call, and cached on disk
(``headrace.jit.kernel_cache``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.click_model import STATE_PER_WEIGHT, LearningModel, Weights
from headrace.ctr.learning.adagrad_decay import (
    PAIRS_STEP,
    UNWATCHED,
    Pace,
    Watched,
    embeddings_share,
    share_of,
    sharing,
    shift_of,
    watch,
)
from headrace.ctr.learning.optimizers import FORGETTING_CODES, Rule, bounded, code_of, move, rule_of, weighed
from headrace.ctr.learning.parameter_groups import Groups
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.factorization_machines import logit, prefetch_coming, sigmoid
from headrace.ctr.models.interactions import crossing
from headrace.ctr.models.model_arrays import (
    FWFM,
    LR,
    NOTHING,
    BlockRows,
    Room,
    Served,
    Shape,
    Slots,
    Work,
    fixed,
    shape_of,
)
from headrace.ctr.serving.scoring import WeightsScorer
from headrace.jit.intrinsics import assume, one_by_one, read
from headrace.jit.kernel_cache import KERNEL, PART, cached
from headrace.stream.block import Block, Features

_LEAST_ROWS_A_THREAD = 64


class OnlineModel(LearningModel):
    """A model that learns row by row: a thread learns from each row before it predicts its next."""

    def __init__(self, settings: ModelSettings, features: Features) -> None:
        """Create an untrained model.

        Args:
            settings: The model's settings; ``settings.online`` must be true.
            features: Layout of the model's rows.

        Raises:
            ConfigError: The settings are not those of an online model, or do not fit the features.
        """
        if not settings.online:
            raise ConfigError(f"{settings.kind} with these optimizers learns in batches; use BatchedModel")
        self.settings, self.features = settings, features
        linear_code, embedding_code = code_of(settings.linear), code_of(settings.embeddings)
        self._shape = shape_of(settings, features)._replace(
            linear_code=linear_code,
            embedding_code=embedding_code,
            slots=features.slots,
            dense=features.dense_width,
            crossed=len(settings.interactions),
            linear_width=1 + STATE_PER_WEIGHT[settings.linear.kind],
            shift=shift_of(features.slots),
        )
        self._crossing, self._slots = crossing(settings, features), Slots.of(features)
        self._groups = Groups(settings, features, self._crossing.rows)
        self._shared = share_of(settings, features)
        self._pace = (
            Pace(features.rows, features.slots, settings.threads)
            if self._groups.has_decaying_squares
            else None
        )
        self._watched = [UNWATCHED] * settings.threads if self._pace is None else self._pace.watched
        self._kernel, self._served = learner(self._shape), self._groups.served()
        self._weight, self._weighed = 1.0, _fresh_rules(settings, self._shared)
        self._rooms = [Room.of(self._shape) for _ in range(settings.threads)]
        self._threads = ThreadPoolExecutor(settings.threads) if settings.threads > 1 else None

    def learn(self, block: Block) -> Array:
        """Predict each row of a block, and learn from it before its thread predicts the next one."""
        block = block.averaged()
        rows = BlockRows(
            fixed(block.indices),
            fixed(self._crossing.of(block.indices)),
            fixed(block.dense),
            fixed(block.labels),
            NOTHING if block.weights is None else fixed(block.weights),
        )
        made = np.empty(len(block), np.float32)
        if self._pace is None:
            self._learn(rows, made)
            return made
        for start, stop in self._pace.parts(len(made)):
            whole = stop - start == len(made)
            self._learn(rows if whole else rows.part(start, stop), made[start:stop])
            if (factor := self._pace.count(stop - start)) != 1.0:
                self._groups.scale_squares(factor)
        return made

    def _learn(self, rows: BlockRows, made: Array) -> None:
        """Predict rows and learn from them, in several threads if configured."""
        rules = self._rules(1.0 if self._pace is None else self._pace.weight)
        parts = min(self.settings.threads, max(1, len(made) // _LEAST_ROWS_A_THREAD))
        if self._threads is None or parts == 1:
            self._kernel(Work(rows, self._slots, self._rooms[0]), self._served, rules, made, self._watched[0])
            return
        edges = pairwise(len(made) * part // parts for part in range(parts + 1))
        running = [
            self._threads.submit(
                self._kernel,
                Work(rows.part(*edge), self._slots, room),
                self._served,
                rules,
                made[slice(*edge)],
                watched,
            )
            for room, watched, edge in zip(self._rooms, self._watched, edges, strict=False)
        ]
        for one in running:
            one.result()

    def predict(self, block: Block) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``."""
        scorer = WeightsScorer(self.settings, self.features, self._groups.live())
        return scorer.predict(block.indices, block.dense)

    def forget(self, rows: Array) -> None:
        """Give rows of the tables their initial values; the weights of interactions are kept."""
        self._groups.forget(rows)
        if self._pace is not None:
            self._pace.forget(rows)

    def state(self) -> dict[str, Array]:
        """Return the arrays needed to resume learning: weights, optimizers' state and pace."""
        own = {} if self._pace is None else self._pace.state()
        return {name: table.values for name, table in self._groups.tables.items()} | own

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state.

        Raises:
            ConfigError: An array is missing or has another shape.
        """
        self._groups.restore(state)
        if self._pace is not None:
            self._pace.restore(state)

    def _rules(self, weight: float) -> Rules:
        """Return the update rules that add new squares with a given weight."""
        if self._weight != weight:
            self._weight = weight
            self._weighed = Rules._make(weighed(one, weight) for one in self._weighed)
        return self._weighed

    def strip(self) -> Weights:
        """Return a copy of the weights without the optimizers' state."""
        return self._groups.strip()


def _fresh_rules(settings: ModelSettings, share: float) -> Rules:
    linear, embeddings = settings.linear, settings.embeddings
    return Rules(
        rule_of(linear, pulled=False),
        rule_of(sharing(linear, share)),
        rule_of(sharing(embeddings, embeddings_share(settings, share))),
        rule_of(sharing(embeddings, PAIRS_STEP)),
    )


# Updates of the weights that one row touched: linear weights, embeddings, and fwfm's weights of pairs.
#
# These are parts of the online learning kernel; `optimizers` has the update of a single weight.


@numba.njit(**PART)
def update_linear(shape, rule, values, work, row, error):  # type: ignore[no-untyped-def]
    """Move the linear weights of a row's values and interactions; row 0 is never touched."""
    indices, crossed, starts = work.rows.indices, work.rows.crossed, work.slots.starts
    for field in range(shape.fields):
        if shape.single:
            _update_weight(shape, rule, values, read(indices, (row, field)), error)
        else:
            share = error * read(work.room.shares, field)
            for slot in range(starts[field], starts[field + 1]):
                _update_weight(shape, rule, values, read(indices, (row, slot)), share)
    for number in range(crossed.shape[1]):
        _update_weight(shape, rule, values, read(crossed, (row, number)), error)


@numba.njit(**PART)
def _update_weight(shape, rule, values, index, error):  # type: ignore[no-untyped-def]
    place = np.uintp(index)
    if place != 0:
        move(shape.linear_code, rule, values, (place, 1, 0), error)


@numba.njit(**PART)
def update_dense(shape, rule, values, dense, row, error):  # type: ignore[no-untyped-def]
    """Move the linear weights of dense features."""
    width = dense.shape[1]
    for column in range(width):
        gradient = bounded(shape.linear_code, error * read(dense, (row, column)))
        move(shape.linear_code, rule, values, (0, width, column), gradient)


@numba.njit(**PART)
def update_embeddings(shape, rule, values, work, row, error):  # type: ignore[no-untyped-def]
    """Move every touched row of the embeddings against ``error * towards``; row 0 is never touched."""
    indices, starts, towards = work.rows.indices, work.slots.starts, work.room.towards
    for field in range(shape.fields):
        one_by_one()
        if shape.single:
            _update_row(shape, rule, values, towards, (read(indices, (row, field)), field), error)
        else:
            share = error * read(work.room.shares, field)
            for slot in range(starts[field], starts[field + 1]):
                _update_row(shape, rule, values, towards, (read(indices, (row, slot)), field), share)


@numba.njit(**PART)
def _update_row(shape, rule, values, towards, which, error):  # type: ignore[no-untyped-def]
    place, first = np.uintp(which[0]), which[1] * shape.width
    if place != 0:
        for column in range(shape.width):
            gradient = error * read(towards, first + column)
            move(shape.embedding_code, rule, values, (place, shape.width, column), gradient)


@numba.njit(**PART)
def update_pairs(shape, rule, pairs, room, error):  # type: ignore[no-untyped-def]
    """Move the weights of all pairs; those of a field with itself stay zero."""
    size = shape.fields * shape.fields
    for place in range(size):
        move(shape.embedding_code, rule, pairs, (0, size, place), error * read(room.products, place))


class Rules(NamedTuple):
    """Update rules of the groups of weights."""

    bias: Rule
    linear: Rule
    embeddings: Rule
    pairs: Rule


LearnKernel = Callable[[Work, Served, Rules, Array, Watched], None]


@numba.njit(**PART)
def _update(shape, work, served, rules, row, error):  # type: ignore[no-untyped-def]
    move(shape.linear_code, rules.bias, served.bias, (0, 1, 0), error)
    update_dense(shape, rules.linear, served.dense, work.rows.dense, row, error)
    update_linear(shape, rules.linear, served.linear.values, work, row, error)
    if shape.kind != LR:
        update_embeddings(shape, rules.embeddings, served.embeddings.values, work, row, error)
        if shape.kind == FWFM:
            update_pairs(shape, rules.pairs, served.pairs, work.room, error)


@functools.cache
def learner(shape: Shape) -> LearnKernel:
    """Return the kernel that predicts each row, and learns from it before it predicts the next.

    Where sums of squares decay, the kernel then gathers evidence on the rate (``adagrad_decay.watch``).
    """

    @cached(**KERNEL)
    def learn(work, served, rules, probabilities, watched):  # type: ignore[no-untyped-def]
        labels, weights = work.rows.labels, work.rows.weights
        # Inline, because LLVM ignores the assumptions in a function of their own.
        assume(work.rows.indices.shape[1] == shape.slots)
        assume(work.rows.crossed.shape[1] == shape.crossed)
        assume(work.rows.dense.shape[1] == shape.dense)
        assume(served.linear.values.shape[1] == shape.linear_width)
        for row in range(work.rows.indices.shape[0]):
            prefetch_coming(shape, work, served, row)
            probability = sigmoid(logit(shape, work, served, row))
            probabilities[row] = probability
            error = probability - labels[row]
            if weights.shape[0]:
                error = bounded(shape.embedding_code, bounded(shape.linear_code, error * weights[row]))
            _update(shape, work, served, rules, row, error)
        if shape.linear_code in FORGETTING_CODES:
            watch(shape, rules.linear, work.rows, probabilities, watched)
        elif shape.embedding_code in FORGETTING_CODES:
            watch(shape, rules.embeddings, work.rows, probabilities, watched)

    made: LearnKernel = learn
    return made
