"""Search: several configurations learn from one pass over a stream, and the best one is reported.

Each configuration predicts and learns every row, and is scored on all of them. Its batches are those that it
would learn alone if its ``batch_rows`` divides the largest one. It is excluded if its model is too large or
too slow to serve, however good the score.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.ctr import factory
from headrace.ctr.files.description import arrays_of
from headrace.ctr.files.quantization import Bits, quantize
from headrace.ctr.interfaces import LearningModel
from headrace.evaluation.tallies import RUN_DETAIL, Score, Scored, Tally
from headrace.stream.block import Block
from headrace.stream.features import Features
from headrace.training.running.loop import error_text
from headrace.training.searching.configurations import Configuration, Gates

LATENCY_ROWS = 300
"""Number of candidates in a prediction whose latency is measured."""

_LATENCY_CALLS = 30
_MEGABYTE = 1e6


class Result(NamedTuple):
    """Result of a configuration.

    Attributes:
        configuration: The configuration.
        score: Score of all rows.
        rows_per_second: Learning speed, without the time of other configurations.
        size_mb: Size of its version, in millions of bytes.
        latency_ms: Median time to predict 300 candidates, in milliseconds.
        out: Reason for exclusion; "" if it is not excluded.
    """

    configuration: Configuration
    score: Score
    rows_per_second: float
    size_mb: float
    latency_ms: float
    out: str


@dataclass(slots=True)
class _Runner:
    """The learning state of one configuration."""

    configuration: Configuration
    model: LearningModel
    tally: Tally
    seconds: float = 0.0
    timed_rows: int = 0
    diverged: bool = False
    failed: bool = False

    def take(self, block: Block) -> None:
        rows = self.configuration.settings.batch_rows
        for start in range(0, len(block), rows):
            part = block.part(start, min(start + rows, len(block)))
            started = time.perf_counter()
            predictions = np.array(self.model.learn(part))
            if self.tally.sums[0, 0]:  # skip the first batch, which may compile kernels
                self.seconds += time.perf_counter() - started
                self.timed_rows += len(part)
            if not np.isfinite(predictions).all():
                self.diverged = True
                predictions = np.nan_to_num(predictions, nan=0.5)  # scored as a constant 0.5
            codes = np.zeros((0, len(part)))
            scored = Scored(predictions, part.labels, part.weights, part.truth, codes, part.views)
            self.tally.add(scored, np.zeros(len(part), np.int64))


class Search:
    """Several configurations that learn from the same blocks.

    Attributes:
        rows: Number of rows that each of them has learnt.
        learning: Name of the configuration that is running or has failed; None if there is none.
    """

    def __init__(
        self,
        wanted: Sequence[Configuration],
        features: Features,
        gates: Gates,
        bits: Bits | None = None,
    ) -> None:
        """Create the models.

        Args:
            wanted: The configurations.
            features: Layout of the rows.
            gates: Limits that a model must keep.
            bits: Bits per weight of tables if they were published; None for 32.
        """
        self._features = features
        self._gates = gates
        self._bits = bits
        self._runners = [
            _Runner(one, factory.create(one.settings, features), Tally(1, RUN_DETAIL)) for one in wanted
        ]
        self._last: Block | None = None
        self.rows = 0
        self.learning: str | None = None

    def take(self, block: Block) -> None:
        """Let all configurations learn from a block; exclude one that fails, and raise its error."""
        for runner in self._runners:
            self.learning, runner.failed = runner.configuration.name, True
            runner.take(block)
            self.learning, runner.failed = None, False
        self._last = block
        self.rows += len(block)

    def act(self) -> None:
        """Do nothing: a search reports when it ends."""

    def explain(self, error: Exception) -> str:
        """Return an error text, with the name of the configuration that failed."""
        said = error_text(error)
        return said if self.learning is None else f"search: {self.learning}: {said}"

    def results(self) -> list[Result]:
        """Return the results, best first, excluded configurations last."""
        found = [self._result(runner) for runner in self._runners]
        self.learning = None
        return sorted(found, key=lambda one: (bool(one.out), one.score.logloss or 0.0))

    def _result(self, runner: _Runner) -> Result:
        if runner.failed:
            return Result(runner.configuration, runner.tally.score(0), 0.0, 0.0, 0.0, "out: failed")
        self.learning = runner.configuration.name
        settings = runner.configuration.settings
        weights = runner.model.strip()
        if self._bits is not None and not runner.diverged:
            weights = quantize(weights, self._bits)
        size_mb = sum(array.nbytes for array in arrays_of(weights).values()) / _MEGABYTE
        latency_ms = 0.0
        if self._last is not None:
            numbers = np.arange(LATENCY_ROWS) % len(self._last)
            indices, dense = self._last.indices[numbers], self._last.dense[numbers]
            scorer = factory.scorer(settings, self._features, weights)
            scorer.predict(indices, dense)  # may compile kernels
            times = []
            for _ in range(_LATENCY_CALLS):
                started = time.perf_counter()
                scorer.predict(indices, dense)
                times.append(time.perf_counter() - started)
            latency_ms = statistics.median(times) * 1e3
        pace = runner.timed_rows / max(runner.seconds, 1e-9)
        out = "out: diverged" if runner.diverged else why_out(self._gates, size_mb, latency_ms)
        return Result(runner.configuration, runner.tally.score(0), pace, size_mb, latency_ms, out)


def why_out(gates: Gates, size_mb: float, latency_ms: float) -> str:
    """Return why a model may not be served, or ""."""
    if gates.max_size_mb is not None and size_mb > gates.max_size_mb:
        return f"out: {size_mb:.1f} MB > {gates.max_size_mb:g}"
    if gates.max_latency_ms is not None and latency_ms > gates.max_latency_ms:
        return f"out: {latency_ms:.2f} ms > {gates.max_latency_ms:g}"
    return ""
