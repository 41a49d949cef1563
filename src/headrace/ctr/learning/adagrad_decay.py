"""Decay of Adagrad's sums of squares, and the scaling of learning rates where they decay.

Adagrad's sums of squares grow as long as the stream lasts, and its steps shrink. Here the contribution of a
row to the sums has a weight that grows with time, and a step is divided by the sum relative to the current
weight. So the sum decays, rows that are not touched stay unchanged, and no time of the last touch is stored.
This is forward decay (Cormode and others, 2009), applied to Adagrad's sums.

Models that learn row by row measure the growth of the weight from their own errors. ``Pace`` samples the
tables' rows such that a row of the stream touches about one of them. For each sampled row it tracks by how
much its linear weight would differ if each of its steps had been ``_FASTER`` times as long, with all other
weights unchanged. If the tracked weights would have predicted clearly worse than the model, the weight of new
rows stays; so on stationary data this is Adagrad. Otherwise the model's memory counts as too long, and the
weight grows. (The tracked weights are an expert beside the learner, as in Herbster and Warmuth, 1998. They
are a sample, because a second model would cost as much as the first.)

In models that learn in batches, contributions halve in a fixed number of rows (``HalfLife``): later batches
have a larger weight. The measurement assumes that weights move row by row; in a batch, a frequent weight
moves once for many rows.

Learning rates are scaled by the number of weights that a row moves (``shared``), because all weights that a
row touches move against the same error. Where their sums of squares decay, rare weights keep taking steps as
long as their first ones. The more of them a row has, the further its prediction moves: with 26 fields, the
rates that suit six move it too far. So a row's values share the total step of six fields.

The bias and fwfm's weights of pairs do not share, because every row touches them and they are soon past their
first steps. The weights of pairs even take longer steps, because their gradients are small. ffm's embeddings
do not share either. Each is for one other field, so more fields mean more embeddings, not more steps for
each.

In batches, frequent weights move once for many rows, and linear weights do better with the square root of the
share (decision 0016).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numba
import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.model_settings import FIELD_AWARE, ModelSettings, Optimizer
from headrace.jit.intrinsics import one_by_one, read, write
from headrace.jit.kernel_cache import PART
from headrace.stream.block import Features

DECISION_ROWS = 1024
"""Number of rows between decisions on the growth of the weight."""

SCALED = 2.0**64
"""Divisor of the weight and the sums when they are rescaled, before they overflow a float32."""

_LEAST_ONE_IN = 8
_FASTER = np.float32(1.25)
_MEMORY_ROWS = 20_000  # time constant of the decay of evidence
_KEPT = math.exp(-DECISION_ROWS / _MEMORY_ROWS)
_SCALED_DOUBLINGS = round(math.log2(SCALED))
_DOUBT = -0.5  # evidence, in standard deviations, above which the weight grows
_GAIN = 0.1  # doublings of the weight at a decision, per standard deviation of evidence above _DOUBT
_MOST_DEVIATIONS = 20.0
_HEAVIEST = np.float32(2**20)  # limit of a row's weight here, so that no sum overflows
_TINY = np.float32(1e-20)  # makes 0 / sqrt(0) 0

_CLOCK, _DOUBLED, _EVIDENCE, _SPREAD = range(4)


class Watched(NamedTuple):
    """A kernel's measurements of sampled rows of the tables, one in ``2**shift`` (see ``Shape``).

    Attributes:
        sample: Sum of squares of each sampled row, and the offset of its weight under faster steps: float32
            ``[sampled rows, 2]``.
        found: Positions of the sampled values in a call's indices: uint32, longer by one than the indices.
        numbers: The clock in rows, the doublings of the weight, the evidence for more, and its spread;
            threads after the first use only the last two.
    """

    sample: Array
    found: Array
    numbers: Array


UNWATCHED = Watched(np.zeros((0, 2), np.float32), np.zeros(0, np.uint32), np.zeros(0))
"""Placeholder for kernels that measure nothing."""


def shift_of(slots: int) -> int:
    """Return the base-2 logarithm of the number of values per sampled one.

    Args:
        slots: Number of slots of a row.
    """
    return (max(_LEAST_ONE_IN, slots) - 1).bit_length()


class Pace:
    """The weight of new squares, and the evidence for its growth."""

    def __init__(self, rows: int, slots: int, threads: int = 1) -> None:
        """Start with weight 1.

        Args:
            rows: Number of rows of the tables.
            slots: Number of these rows that a row of the stream touches.
            threads: Number of kernels that run at once.
        """
        self._numbers = np.zeros(4)
        self._shift = shift_of(slots)
        self._sample = np.zeros((((rows - 1) >> self._shift) + 1, 2), np.float32)
        found = (np.empty(DECISION_ROWS * slots + 1, np.uint32) for _ in range(threads))
        own = (self._numbers, *(np.zeros(4) for _ in range(1, threads)))
        self.watched = [Watched(self._sample, *one) for one in zip(found, own, strict=True)]

    @property
    def weight(self) -> float:
        """Weight of a new square."""
        return float(2.0 ** self._numbers[_DOUBLED])

    def parts(self, rows: int) -> Iterable[tuple[int, int]]:
        """Split the next ``rows`` rows at decisions, so that results do not depend on the size of blocks."""
        due = DECISION_ROWS - int(self._numbers[_CLOCK]) % DECISION_ROWS
        return pairwise((0, *range(due, rows, DECISION_ROWS), rows))

    def count(self, rows: int) -> float:
        """Count rows that were learnt from, and decide on the growth of the weight when a decision is due.

        Args:
            rows: Number of rows of one of ``parts``, after the kernels have learnt from them.

        Returns:
            The factor by which to multiply all sums of squares: 1, except on a rare rescaling.
        """
        for other in self.watched[1:]:
            self._numbers += other.numbers
            other.numbers[:] = 0
        clock, doubled, evidence, spread = self._numbers.tolist()
        clock += rows
        factor = 1.0
        if rows and not clock % DECISION_ROWS:  # a decision is taken once, even if an empty block follows
            doubled += doublings(evidence, spread)
            evidence, spread = evidence * _KEPT, spread * _KEPT
            if doubled > _SCALED_DOUBLINGS:
                doubled, factor = doubled - _SCALED_DOUBLINGS, 1 / SCALED
                self._sample[:, 0] *= np.float32(factor)
        self._numbers[:] = clock, doubled, evidence, spread
        return factor

    def forget(self, rows: Array) -> None:
        """Reset the measurements of rows of the tables."""
        self._sample[rows[rows % (1 << self._shift) == 0] >> self._shift] = 0

    def state(self) -> dict[str, Array]:
        """Return the state needed to resume: the object's own arrays, not copies."""
        return {"pace": self._numbers, "pace.sample": self._sample}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state.

        Raises:
            ConfigError: An array is missing or has another shape.
        """
        for name, array in self.state().items():
            found = state.get(name)
            if found is None or found.shape != array.shape:
                raise ConfigError(
                    f"state: {name!r}: expected an array of the shape {array.shape}, got "
                    f"{'nothing' if found is None else found.shape}; resume with the settings and the schema "
                    "that it was saved with"
                )
        for name, array in self.state().items():
            array[:] = state[name]


def doublings(evidence: float, spread: float) -> float:
    """Return by how many doublings, whole or not, the weight grows at a decision.

    Args:
        evidence: Sum of the loss that faster steps would have saved, in nats.
        spread: Sum of the squares of each row's first-order contribution to the evidence.
    """
    deviations = evidence / math.sqrt(spread) if spread > 0 else 0.0
    return _GAIN * min(max(deviations - _DOUBT, 0.0), _MOST_DEVIATIONS) if spread > 0 else 0.0


@numba.njit(**PART)
def watch(shape, rule, rows, probabilities, watched):  # type: ignore[no-untyped-def]
    """Sum up the loss that faster steps of the sampled weights would have saved, and take those steps.

    Args:
        shape: Compile-time constants of the kernel.
        rule: Update rule of the sampled weights.
        rows: The rows that were learnt from.
        probabilities: Their predictions.
        watched: The measurements: ``Watched``.
    """
    sample, found, shift = watched.sample, watched.found, np.uint32(shape.shift)
    indices, slots = rows.indices, np.uint32(shape.slots)
    first, count = np.uint64(0), _find(shape, indices, found)
    numbers = watched.numbers
    evidence, spread = numbers[_EVIDENCE], numbers[_SPREAD]  # add in order of rows, whatever the block size
    while first < count:
        row, off, last = read(found, first) // slots, np.float32(0), first
        while last < count and read(found, last) // slots == row:
            off += read(sample, (read(indices, (row, read(found, last) % slots)) >> shift, 1))
            last += np.uint64(1)
        probability = read(probabilities, row)
        error, curvature = probability - read(rows.labels, row), probability * (np.float32(1) - probability)
        if rows.weights.shape[0]:
            weight = min(read(rows.weights, row), _HEAVIEST)
            error, curvature = error * weight, curvature * weight
        slope = np.float64(error * off)
        evidence -= slope + np.float64(np.float32(0.5) * curvature * off * off)
        spread += slope * slope
        gradient = error - _FASTER * (error + curvature * off)
        for number in range(first, last):
            place = read(indices, (row, read(found, number) % slots)) >> shift
            total = read(sample, (place, 0)) + rule.weight * error * error
            write(sample, (place, 0), total)
            total = total * rule.scale + rule.initial + _TINY
            root = np.float32(math.sqrt(total)) if rule.power == np.float32(0.5) else total**rule.power
            write(sample, (place, 1), read(sample, (place, 1)) + rule.learning_rate * gradient / root)
        first = last
    numbers[_EVIDENCE], numbers[_SPREAD] = evidence, spread


@numba.njit(**PART)
def _find(shape, indices, found):  # type: ignore[no-untyped-def]
    """List the sampled values without a branch, which would be mispredicted; return their number.

    A value is sampled if its lowest ``shift`` bits are zero, and another bit is not. With the low bits
    rotated to the top, that is one comparison. (Two comparisons, or two numbers to write, take twice as
    long.)
    """
    low, high = np.uint64(64 - shape.shift), np.uint64(shape.shift)
    count, place = np.uint64(0), np.uint32(0)
    for row in range(indices.shape[0]):
        for slot in range(indices.shape[1]):
            one_by_one()
            index = np.uint64(read(indices, (row, slot)))
            write(found, count, place)
            place += np.uint32(1)
            count += np.uint64((index << low | index >> high) - np.uint64(1) < np.uint64(2**32 - 1))
    return count


_HALF_LIFE_ROWS = "half_life.rows"


class HalfLife:
    """The weight of new squares, which doubles in a fixed number of rows."""

    def __init__(self, rows: int) -> None:
        """Start with weight 1.

        Args:
            rows: Half-life: the number of rows after which an old square counts half of a new one.
        """
        self._half_life = rows
        self._rows = np.zeros(1, np.int64)  # since the weight was 1

    @property
    def weight(self) -> float:
        """Weight of a new square."""
        return float(2.0 ** (int(self._rows[0]) / self._half_life))

    def count(self, rows: int) -> float:
        """Count rows that were learnt from.

        Returns:
            The factor by which to multiply all sums of squares: 1, except on a rare rescaling.
        """
        scalings, left = divmod(int(self._rows[0]) + rows, self._half_life * _SCALED_DOUBLINGS)
        self._rows[0] = left
        return float(SCALED**-scalings)

    def state(self) -> dict[str, Array]:
        """Return the state needed to resume: the object's own array, not a copy."""
        return {_HALF_LIFE_ROWS: self._rows}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state.

        Raises:
            ConfigError: The array is missing or has another shape.
        """
        found = state.get(_HALF_LIFE_ROWS)
        if found is None or found.shape != self._rows.shape:
            raise ConfigError(
                f"state: {_HALF_LIFE_ROWS!r}: expected the number of rows learnt from; resume with the "
                "settings that it was saved with"
            )
        self._rows[:] = found


PAIRS_STEP = 4.0
"""Learning rate of fwfm's weights of pairs, as a multiple of that of embeddings."""

_UNSCALED_FIELDS = 6
"""Number of fields up to which learning rates are not scaled."""


def share_of(settings: ModelSettings, features: Features) -> float:
    """Return the factor of the learning rate of each of a row's values: at most 1.

    Args:
        settings: The model's settings.
        features: Layout of the rows; a field with averaged values counts once, one with summed values once
            per value.
    """
    fields = sum(1 if one.pooling == "mean" else one.values for one in features.categorical)
    return min(1.0, _UNSCALED_FIELDS / max(fields + len(settings.interactions), 1))


def embeddings_share(settings: ModelSettings, share: float) -> float:
    """Return the factor of the learning rate of an embedding.

    Args:
        settings: The model's settings.
        share: Result of ``share_of``.
    """
    return 1.0 if settings.kind in FIELD_AWARE else share


def sharing(optimizer: Optimizer, share: float) -> Optimizer:
    """Return the optimizer with its rate multiplied by ``share`` if it is ``forgetting``, else unchanged."""
    if optimizer.kind != "forgetting":
        return optimizer
    return msgspec.structs.replace(optimizer, learning_rate=optimizer.learning_rate * share)


def shared(optimizer: Optimizer, name: str, settings: ModelSettings, features: Features) -> Optimizer:
    """Return the optimizer of a group of weights with its scaled learning rate.

    Args:
        optimizer: Configured optimizer of the group.
        name: Name of the group.
        settings: The model's settings.
        features: Layout of the rows.
    """
    share = share_of(settings, features)
    linear = share if settings.online else math.sqrt(share)
    dense = linear / math.sqrt(_longest(features)) if settings.kind == "mdn" else linear
    parts = {"linear": linear, "dense": dense, "embeddings": embeddings_share(settings, share)}
    return sharing(optimizer, {**parts, "pairs": PAIRS_STEP}.get(name, 1.0))


def _longest(features: Features) -> int:
    """Return the length of the longest vector, all of whose weights move against one error."""
    return max((field.size for field in features.numeric), default=1)
