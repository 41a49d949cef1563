"""The Learner: predicts each row before it learns from it, and scores the predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from headrace.base.errors import ConfigError, ModelError
from headrace.base.tensors import Array
from headrace.evaluation.tallies import Scored
from headrace.evaluation.windows import Window, Windows
from headrace.stream.block import Block
from headrace.training.running.delayed_labels import Pending, Waiting

_MODEL = "model."


class Learnable(Protocol):
    """A model that learns from blocks: a click model, or another that predicts clicks."""

    def learn(self, block: Block) -> Array:
        """Predict the rows, then learn from them; return the predictions: float32 ``[rows]``."""

    def predict(self, block: Block) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``."""

    def state(self) -> dict[str, Array]:
        """Return the arrays needed to resume learning, by name."""

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state."""


class Position(msgspec.Struct, kw_only=True):
    """Position of a learner in the stream.

    Attributes:
        rows: Rows taken, including those that wait for their labels.
        newest_timestamp: Newest timestamp of a row, in microseconds since 1970; None if there is none.
    """

    rows: int = 0
    newest_timestamp: int | None = None


class State(NamedTuple):
    """The state needed to resume learning.

    Attributes:
        arrays: Arrays by name: the learner's own, not copies.
        meta: Values for JSON.
    """

    arrays: dict[str, Array]
    meta: dict[str, object]


class Learner:
    """A model, its scores and its position, learning from one block after the other.

    Attributes:
        model: The model.
        windows: Scores of its predictions.
        position: Position in the stream.
        unfinished: First row of the block being taken, and the row after its last; None between blocks. With
            a label delay, the block may be an earlier one, whose labels became known. If learning fails,
            the rows stay set; the model may have learnt some of them.
    """

    def __init__(self, model: Learnable, windows: Windows, pending: Pending | None = None) -> None:
        """Create a learner at the start of a stream.

        Args:
            model: The model.
            windows: Scores of its predictions.
            pending: Queue of rows that wait for their labels; None if labels come with the rows.
        """
        self.model = model
        self.windows = windows
        self.position = Position()
        self.unfinished: tuple[int, int] | None = None
        self._pending = pending

    @property
    def pending_rows(self) -> int | None:
        """Number of rows that wait for their labels; None if labels come with the rows."""
        return None if self._pending is None else self._pending.rows

    def take(self, block: Block) -> list[Window]:
        """Predict a block's rows, and learn from all rows whose labels are known.

        Args:
            block: The rows, which the learner may keep.

        Returns:
            The windows closed by it.

        Raises:
            ModelError: The model has diverged: a prediction is not finite.
        """
        if not len(block):
            return []
        codes = self.windows.encode(block.slices, len(block))
        closed: list[Window] = []
        self.unfinished = _rows(block)
        if self._pending is None:
            predictions = self.model.learn(block)
            _check(predictions, block)
            closed = self.windows.add(_scored(block, predictions, codes))
        else:
            for one in self._pending.due(block):
                self.unfinished = _rows(one.block)
                closed += self._learn_late(one)
            self.unfinished = _rows(block)
            predictions = self.model.predict(block)
            _check(predictions, block)
            self._pending.add(block, np.array(predictions), codes)
        self._move(block)
        self.unfinished = None
        return closed

    def finish(self) -> list[Window]:
        """Learn from the pending rows and close the last window, at the end of the stream."""
        closed: list[Window] = []
        if self._pending is not None:
            for one in self._pending.drain():
                closed += self._learn_late(one)
        return closed + self.windows.finish()

    def state(self) -> State:
        """Return the state needed to resume learning."""
        windows, meta = self.windows.state()
        arrays = {f"{_MODEL}{name}": array for name, array in self.model.state().items()} | windows
        if self._pending is not None:
            arrays |= self._pending.state()
        return State(arrays, {"position": msgspec.to_builtins(self.position), "windows": meta})

    def restore(self, arrays: Mapping[str, Array], meta: Mapping[str, object]) -> None:
        """Restore the state of a learner of the same settings.

        Raises:
            ConfigError: The state is of another model, or of other settings.
        """
        self.model.restore(
            {name.removeprefix(_MODEL): one for name, one in arrays.items() if name.startswith(_MODEL)}
        )
        if self._pending is not None:
            self._pending.restore(arrays)
        elif "pending.now" in arrays:
            raise ConfigError(
                "label-delay-seconds: the checkpoint was saved with a label delay; pass the same one"
            )
        windows = meta.get("windows")
        if not isinstance(windows, dict):
            raise ConfigError("checkpoint: it holds no windows; it was not written by `headrace train`")
        self.windows.restore(arrays, windows)
        self.position = msgspec.convert(meta.get("position"), Position)

    def _learn_late(self, one: Waiting) -> list[Window]:
        _check(self.model.learn(one.block), one.block)
        return self.windows.add(_scored(one.block, one.predictions, one.codes))

    def _move(self, block: Block) -> None:
        self.position.rows = block.first_row + len(block)
        if block.timestamps is not None:
            newest = int(block.timestamps.max())
            known = self.position.newest_timestamp
            self.position.newest_timestamp = newest if known is None else max(known, newest)


def _rows(block: Block) -> tuple[int, int]:
    return block.first_row, block.first_row + len(block)


def _scored(block: Block, predictions: Array, codes: Array) -> Scored:
    # Copy, because a model may reuse the array for its next predictions.
    return Scored(np.array(predictions), block.labels, block.weights, block.truth, codes, block.views)


def _check(predictions: Array, block: Block) -> None:
    # The sum is NaN if any prediction is; it cannot overflow, as probabilities are at most 1.
    if not np.isfinite(predictions.sum(dtype=np.float64)):
        raise ModelError(
            f"the model has diverged: from row {block.first_row} to {block.first_row + len(block) - 1} "
            "its predictions are not finite; start a new run with a lower learning rate, and with another "
            "directory if --checkpoint is given"
        )
