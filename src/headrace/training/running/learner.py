"""The Learner: predicts rows, is scored on what it predicted, then learns from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from headrace.errors import ConfigError, ModelError
from headrace.stream.block import Block
from headrace.tensors import Array
from headrace.training.running.delayed import Pending, Waiting
from headrace.training.scoring.tallies import Scored
from headrace.training.scoring.windows import Window, Windows

_MODEL = "model."


class Learnable(Protocol):
    """What can learn from blocks: click models, and whatever else predicts clicks."""

    def learn(self, block: Block) -> Array:
        """Predict the rows, then learn from them; what was predicted: float32 ``[rows]``."""

    def predict(self, block: Block) -> Array:
        """The probabilities of a click: float32 ``[rows]``."""

    def state(self) -> dict[str, Array]:
        """Everything that learning goes on from, by name."""

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state."""


class Position(msgspec.Struct, kw_only=True):
    """How far in the stream a learner is.

    Attributes:
        rows: The rows taken; those of them whose labels are not known yet are not learnt.
        newest_timestamp: The newest row's, in microseconds since 1970; None if there is none.
    """

    rows: int = 0
    newest_timestamp: int | None = None


class State(NamedTuple):
    """Everything that learning goes on from.

    Attributes:
        arrays: By name: the learner's own arrays, not copies.
        meta: What JSON can hold.
    """

    arrays: dict[str, Array]
    meta: dict[str, object]


class Learner:
    """Learns from blocks, one after the other.

    Attributes:
        model: What learns.
        windows: The scores of what it predicted.
        position: How far in the stream it is.
        unfinished: The first of the rows that are being learnt, and the one after the last; where learning
            them failed, the model may know a part of them. None if there are none.
    """

    def __init__(self, model: Learnable, windows: Windows, pending: Pending | None = None) -> None:
        """Put a model before a stream.

        Args:
            model: What learns.
            windows: What scores it.
            pending: Where rows wait for their labels; None if labels come with the rows.
        """
        self.model = model
        self.windows = windows
        self.position = Position()
        self.unfinished: tuple[int, int] | None = None
        self._pending = pending

    @property
    def pending_rows(self) -> int | None:
        """How many rows wait for their labels; None if labels come with the rows."""
        return None if self._pending is None else self._pending.rows

    def take(self, block: Block) -> list[Window]:
        """Predict a block's rows, and learn from all rows whose labels are known.

        Args:
            block: The rows, which the learner may keep.

        Returns:
            The windows that are over.

        Raises:
            ModelError: The model has diverged: its predictions are no numbers.
        """
        if not len(block):
            return []
        codes = self.windows.encode(block.slices, len(block))
        closed: list[Window] = []
        self.unfinished = (block.first_row, block.first_row + len(block))
        if self._pending is None:
            predictions = self.model.learn(block)
            _check(predictions, block)
            closed = self.windows.add(_scored(block, predictions, codes))
        else:
            for one in self._pending.due(block):
                closed += self._learn_late(one)
            predictions = self.model.predict(block)
            _check(predictions, block)
            self._pending.add(block, np.array(predictions), codes)
        self._move(block)
        self.unfinished = None
        return closed

    def finish(self) -> list[Window]:
        """Learn from the rows that wait, and close the last window: the stream is over."""
        closed: list[Window] = []
        if self._pending is not None:
            for one in self._pending.drain():
                closed += self._learn_late(one)
        return closed + self.windows.finish()

    def state(self) -> State:
        """Everything that learning goes on from."""
        windows, meta = self.windows.state()
        arrays = {f"{_MODEL}{name}": array for name, array in self.model.state().items()} | windows
        if self._pending is not None:
            arrays |= self._pending.state()
        return State(arrays, {"position": msgspec.to_builtins(self.position), "windows": meta})

    def restore(self, arrays: Mapping[str, Array], meta: Mapping[str, object]) -> None:
        """Go on from a state that a learner of the same settings had.

        Raises:
            ConfigError: It is that of another model, or of other settings.
        """
        self.model.restore(
            {name.removeprefix(_MODEL): one for name, one in arrays.items() if name.startswith(_MODEL)}
        )
        if self._pending is not None:
            self._pending.restore(arrays)
        elif "pending.now" in arrays:
            raise ConfigError("label-delay-seconds: the checkpoint is of a run with one; give the same one")
        windows = meta.get("windows")
        if not isinstance(windows, dict):
            raise ConfigError("checkpoint: it holds no windows; it is not one of `headrace train`")
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


def _scored(block: Block, predictions: Array, codes: Array) -> Scored:
    # A copy: a model may write its next predictions where these are.
    return Scored(np.array(predictions), block.labels, block.weights, block.truth, codes, block.views)


def _check(predictions: Array, block: Block) -> None:
    # One sum tells of any NaN; probabilities are at most 1, so it cannot overflow.
    if not np.isfinite(predictions.sum(dtype=np.float64)):
        raise ModelError(
            f"the model has diverged: from row {block.first_row} to {block.first_row + len(block)} it "
            "predicts what is no number; lower --learning-rate, and go on from the last checkpoint or version"
        )
