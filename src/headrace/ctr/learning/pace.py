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
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from headrace.compiled import cached
from headrace.ctr.kernels.compiling import KERNEL
from headrace.ctr.kernels.intrinsics import read, write
from headrace.ctr.kernels.memory import fixed
from headrace.ctr.settings import Optimizer
from headrace.errors import ConfigError
from headrace.stream.block import Block
from headrace.tensors import Array

DECISION_ROWS = 1024
"""After how many rows it is decided how much the weight grows."""

SCALED = 2.0**64
"""By how much the weight is divided, and the sums with it, before it gets too large for a float32."""

_LEAST_ONE_IN = 8
_FASTER = np.float32(1.25)
_MEMORY_ROWS = 20_000  # how long a row's evidence counts
_DOUBT = -0.5  # how many standard deviations the evidence may be against faster steps, and still count for it
_GAIN = 0.1  # how many times the weight doubles at a decision for each standard deviation of evidence
_MOST_DEVIATIONS = 20.0
_NOTHING = fixed(np.zeros(0, np.float32))
_TINY = np.float32(1e-20)  # keeps 0 / sqrt(0) at 0

_CLOCK, _DOUBLED, _EVIDENCE, _SPREAD = range(4)


class _Rates(NamedTuple):
    """How the sampled weights move, and which are sampled: one in ``2**shift``."""

    learning_rate: np.float32
    initial: np.float32
    power: np.float32
    weight: np.float32
    scale: np.float32
    shift: np.uint64


class _Seen(NamedTuple):
    """What rows were, and what had been predicted for them: float32 each; no weights for one each."""

    labels: Array
    weights: Array
    probabilities: Array


class Pace:
    """The weight of new squares, and the evidence for making it grow."""

    def __init__(self, rows: int, slots: int, optimizer: Optimizer) -> None:
        """Start with nothing forgotten.

        Args:
            rows: How many rows the tables have.
            slots: How many of them a row of the stream touches.
            optimizer: How the sampled weights move.
        """
        self._optimizer = optimizer
        self._numbers = np.zeros(4)
        self._shift = (max(_LEAST_ONE_IN, slots) - 1).bit_length()
        self._sample = np.zeros((((rows - 1) >> self._shift) + 1, 2), np.float32)

    @property
    def weight(self) -> float:
        """What a new square counts."""
        return float(2.0 ** self._numbers[_DOUBLED])

    def parts(self, rows: int) -> Iterator[tuple[int, int]]:
        """Cut so many coming rows where something is decided, so that it does not matter how they come."""
        start = 0
        while start < rows:
            due = DECISION_ROWS - int(self._numbers[_CLOCK]) % DECISION_ROWS
            yield start, min(start + due, rows)
            start += due

    def watch(self, block: Block, probabilities: Array) -> float:
        """Learn from what was predicted.

        Args:
            block: Rows that the model has learnt from.
            probabilities: What it had predicted.

        Returns:
            What all sums of squares are to be multiplied with: 1, but for once in a long time.
        """
        optimizer, numbers, weight = self._optimizer, self._numbers, self.weight
        rates = (optimizer.learning_rate, optimizer.initial, optimizer.power, weight, 1 / weight)
        weights = _NOTHING if block.weights is None else fixed(block.weights)
        seen = _Seen(fixed(block.labels), weights, fixed(probabilities))
        _weigh(
            _Rates._make((*map(np.float32, rates), np.uint64(self._shift))),
            fixed(block.indices),
            seen,
            self._sample,
            numbers,
        )
        before = numbers[_CLOCK] // DECISION_ROWS
        numbers[_CLOCK] += len(block)
        decisions = float(numbers[_CLOCK] // DECISION_ROWS - before)
        if not decisions:
            return 1.0
        numbers[_DOUBLED] += decisions * doublings(numbers[_EVIDENCE], numbers[_SPREAD])
        numbers[_EVIDENCE:] *= math.exp(-decisions * DECISION_ROWS / _MEMORY_ROWS)
        if self.weight <= SCALED:
            return 1.0
        numbers[_DOUBLED] -= math.log2(SCALED)
        self._sample[:, 0] *= np.float32(1 / SCALED)
        return 1 / SCALED

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


@cached(**KERNEL)
def _weigh(rates, indices, seen, sample, numbers):  # type: ignore[no-untyped-def]
    """Add up what the sampled weights' faster steps would have saved, and make those steps."""
    rest = (np.uint64(1) << rates.shift) - np.uint64(1)
    for row in range(indices.shape[0]):
        off, sampled = np.float32(0), False
        for slot in range(indices.shape[1]):
            index = np.uint64(read(indices, (row, slot)))
            if index & rest == 0 and index != 0:
                sampled = True
                off += read(sample, (index >> rates.shift, 1))
        if not sampled:
            continue
        probability = read(seen.probabilities, row)
        error, curvature = probability - read(seen.labels, row), probability * (np.float32(1) - probability)
        if seen.weights.shape[0]:
            error, curvature = error * read(seen.weights, row), curvature * read(seen.weights, row)
        slope = np.float64(error * off)
        numbers[2] -= slope + np.float64(np.float32(0.5) * curvature * off * off)
        numbers[3] += slope * slope
        for slot in range(indices.shape[1]):
            index = np.uint64(read(indices, (row, slot)))
            if index & rest == 0 and index != 0:
                place = index >> rates.shift
                total = read(sample, (place, 0)) + rates.weight * error * error
                write(sample, (place, 0), total)
                total = total * rates.scale + rates.initial + _TINY
                if rates.power == np.float32(0.5):
                    rate = rates.learning_rate / np.float32(math.sqrt(total))
                else:
                    rate = rates.learning_rate / total**rates.power
                step = rate * (error - _FASTER * (error + curvature * off))
                write(sample, (place, 1), read(sample, (place, 1)) + step)
