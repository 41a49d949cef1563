"""How fast a model forgets: as fast as its own errors say that the world turns.

Adagrad's sums of squares grow for as long as the stream lasts, and its steps shrink. Here what a row adds to
the sums counts more the later it comes (``weight``, which only grows), and a step is divided by the sum
measured in that weight: the sum forgets, rows that are not touched stay as they are, and nobody has to keep
when they were touched last. That is forward decay (Cormode and others, 2009), here of Adagrad's sums.

How fast the weight grows is measured. For a sample of the tables' rows, of which a row of the stream touches
about one, ``Pace`` keeps by how much their linear weights would be off now if they had been moved ``_FASTER``
times as far at each touch, with all other weights as they are. Where those would have predicted better than
the model did, its memory is too long, and the weight grows; where worse, it stays, and the memory with it. So
in a world that stands still this is Adagrad. (An expert beside the learner, as of Herbster and Warmuth, 1998;
judged on a sample, since a second model would cost as much as the first.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.ctr.kernels.intrinsics import one_by_one, read, write
from headrace.errors import ConfigError
from headrace.tensors import Array

DECISION_ROWS = 1024
"""After how many rows it is decided how much the weight grows."""

SCALED = 2.0**64
"""By how much the weight is divided, and the sums with it, before it gets too large for a float32."""

_LEAST_ONE_IN = 8
_FASTER = np.float32(1.25)
_MEMORY_ROWS = 20_000  # how long a row's evidence counts
_KEPT = math.exp(-DECISION_ROWS / _MEMORY_ROWS)
_SCALED_DOUBLINGS = math.log2(SCALED)
_DOUBT = -0.5  # how many standard deviations the evidence may be against faster steps, and still count for it
_GAIN = 0.1  # how many times the weight doubles at a decision for each standard deviation of evidence
_MOST_DEVIATIONS = 20.0
_HEAVIEST = np.float32(2**20)  # what a row may count here; all sums have room for it
_TINY = np.float32(1e-20)  # keeps 0 / sqrt(0) at 0

_CLOCK, _DOUBLED, _EVIDENCE, _SPREAD = range(4)


class Watched(NamedTuple):
    """What a kernel keeps of sampled values: one in ``2**shift`` of the shape that it is compiled for.

    Attributes:
        sample: For each its sum of squares, and by how much its weight would be off: float32
            ``[values, 2]``.
        found: The numbers of a call's values that are sampled: uint32, one longer than all of its values.
        numbers: The clock, how many times the weight has doubled, the evidence for more, and its spread; of
            other threads than the first the last two only.
    """

    sample: Array
    found: Array
    numbers: Array


UNWATCHED = Watched(np.zeros((0, 2), np.float32), np.zeros(0, np.uint32), np.zeros(0))
"""For kernels that watch nothing."""


def shift_of(slots: int) -> int:
    """The base-2 logarithm of how many values one is sampled of.

    Args:
        slots: How many a row has.
    """
    return (max(_LEAST_ONE_IN, slots) - 1).bit_length()


class Pace:
    """The weight of new squares, and the evidence for making it grow."""

    def __init__(self, rows: int, slots: int, threads: int = 1) -> None:
        """Start with nothing forgotten.

        Args:
            rows: How many rows the tables have.
            slots: How many of them a row of the stream touches.
            threads: How many kernels run at once.
        """
        self._numbers = np.zeros(4)
        self._shift = shift_of(slots)
        self._sample = np.zeros((((rows - 1) >> self._shift) + 1, 2), np.float32)
        found = (np.empty(DECISION_ROWS * slots + 1, np.uint32) for _ in range(threads))
        own = (self._numbers, *(np.zeros(4) for _ in range(1, threads)))
        self.watched = [Watched(self._sample, *one) for one in zip(found, own, strict=True)]

    @property
    def weight(self) -> float:
        """What a new square counts."""
        return float(2.0 ** self._numbers[_DOUBLED])

    def parts(self, rows: int) -> Iterable[tuple[int, int]]:
        """Cut so many coming rows where something is decided, so that it does not matter how they come."""
        due = DECISION_ROWS - int(self._numbers[_CLOCK]) % DECISION_ROWS
        return pairwise((0, *range(due, rows, DECISION_ROWS), rows))

    def count(self, rows: int) -> float:
        """Count rows that were learnt from, and decide whether they are due.

        Args:
            rows: One of ``parts``, which a kernel has watched.

        Returns:
            What all sums of squares are to be multiplied with: 1, but for once in a long time.
        """
        for other in self.watched[1:]:
            self._numbers += other.numbers
            other.numbers[:] = 0
        clock, doubled, evidence, spread = self._numbers.tolist()
        clock += rows
        factor = 1.0
        if not clock % DECISION_ROWS:
            doubled += doublings(evidence, spread)
            evidence, spread = evidence * _KEPT, spread * _KEPT
            if doubled > _SCALED_DOUBLINGS:
                doubled, factor = doubled - _SCALED_DOUBLINGS, 1 / SCALED
                self._sample[:, 0] *= np.float32(factor)
        self._numbers[:] = clock, doubled, evidence, spread
        return factor

    def forget(self, rows: Array) -> None:
        """Start afresh with rows of the tables."""
        self._sample[rows[rows % (1 << self._shift) == 0] >> self._shift] = 0

    def state(self) -> dict[str, Array]:
        """Everything to go on from: its own arrays, not copies."""
        return {"pace": self._numbers, "pace.sample": self._sample}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state.

        Raises:
            ConfigError: An array is missing or of another shape.
        """
        for name, array in self.state().items():
            found = state.get(name)
            if found is None or found.shape != array.shape:
                raise ConfigError(
                    f"state: {name!r}: expected an array of the shape {array.shape}, got "
                    f"{'nothing' if found is None else found.shape}; go on with the settings and the schema "
                    "that it was saved with"
                )
        for name, array in self.state().items():
            array[:] = state[name]


def doublings(evidence: float, spread: float) -> float:
    """How many times the weight doubles at a decision.

    Args:
        evidence: The sum of what faster steps would have saved, in nats.
        spread: The sum of the squares of what a row adds to it.
    """
    deviations = evidence / math.sqrt(spread) if spread > 0 else 0.0
    return _GAIN * min(max(deviations - _DOUBT, 0.0), _MOST_DEVIATIONS) if spread > 0 else 0.0


@numba.njit(**PART)
def watch(shape, rule, rows, probabilities, watched):  # type: ignore[no-untyped-def]
    """Add up what the sampled weights' faster steps would have saved, and make those steps.

    Args:
        shape: What the kernel is compiled for.
        rule: How the sampled weights move.
        rows: Those that were learnt from.
        probabilities: What had been predicted.
        watched: What is kept: ``Watched``.
    """
    sample, found, shift = watched.sample, watched.found, np.uint32(shape.shift)
    indices, slots = rows.indices, np.uint32(shape.slots)
    first, count = np.uint64(0), _find(shape, indices, found)
    numbers = watched.numbers
    evidence, spread = numbers[_EVIDENCE], numbers[_SPREAD]  # the same sum however rows come
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
    """Write down which values are sampled, without a branch, which no processor could foresee; count them.

    A value is sampled if its lowest ``shift`` bits are zero, and others are not. With the former in front of
    the latter that is one comparison. (Two of them, or two numbers to write, take twice as long.)
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
