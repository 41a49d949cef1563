"""The Learner: predicts each row before it learns from it, and scores the predictions.

Rows whose labels come late wait (``Pending``): predicted on arrival, learnt from once the labels are known.
The clock is the newest timestamp seen in the stream. A block waits until the label of its last row is known,
and is then learnt from as a whole, before the next block is predicted. So no prediction uses a label from its
future, and batches stay whole.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from headrace.base.errors import ConfigError, FailedPrecondition, ModelError
from headrace.base.tensors import Array
from headrace.evaluation.progressive_validation import Window, Windows
from headrace.evaluation.tallies import Scored
from headrace.stream.block import Block

_MICROSECONDS = 1_000_000
DEFAULT_PENDING_BYTES = 2**31
"""Default memory limit of waiting rows in bytes."""

_LAST = int(np.iinfo(np.int64).max)
_COLUMNS = tuple(one.name for one in fields(Block) if one.name not in ("slices", "first_row"))

_MODEL = "model."


class _Waiting(NamedTuple):
    """A block whose labels are not known yet.

    Attributes:
        block: The rows, without their slices.
        predictions: Predictions on arrival: float32 ``[rows]``.
        codes: Code of each row's value of each slice: int32 ``[slices, rows]``.
        due: Time at which the last label is known, in microseconds since 1970.
    """

    block: Block
    predictions: Array
    codes: Array
    due: int


class Pending:
    """Queue of the blocks that wait for their labels, in order of arrival.

    Attributes:
        rows: Number of waiting rows.
    """

    def __init__(self, delay_seconds: float, most_bytes: int = DEFAULT_PENDING_BYTES) -> None:
        """Create an empty queue.

        Args:
            delay_seconds: Time from a row's timestamp to its label, in the stream's time.
            most_bytes: Memory limit of the rows.

        Raises:
            ConfigError: The delay is not positive.
        """
        if not delay_seconds > 0.0:
            raise ConfigError(f"label-delay-seconds: expected seconds, more than 0, got {delay_seconds:g}")
        self._delay = round(delay_seconds * _MICROSECONDS)
        self._most_bytes = most_bytes
        self._waiting: deque[_Waiting] = deque()
        self._now = np.iinfo(np.int64).min
        self._bytes = 0
        self.rows = 0

    def due(self, block: Block) -> Iterator[_Waiting]:
        """Yield the blocks whose labels are all known when the first row of a new block arrives.

        Each one is removed when the next one is requested, so a block that cannot be learnt stays.

        Args:
            block: The new block.

        Raises:
            ConfigError: The stream has no timestamps.
        """
        now = max(self._now, int(_timestamps(block)[0])) if len(block) else self._now
        return self._until(now)

    def add(self, block: Block, predictions: Array, codes: Array) -> None:
        """Add a block to the queue.

        Args:
            block: The rows.
            predictions: Their predictions.
            codes: Code of each row's value of each slice.

        Raises:
            ConfigError: The stream has no timestamps.
            FailedPrecondition: The memory limit is exceeded.
        """
        now = max(self._now, int(_timestamps(block).max()))
        due = min(now + self._delay, _LAST)  # int64, as it is saved in an array
        one = _Waiting(replace(block, slices={}), predictions, codes, due)
        needed = self._bytes + _size(one)
        if needed > self._most_bytes:
            raise FailedPrecondition(
                f"label-delay-seconds: the rows that wait for their labels would take "
                f"{math.ceil(needed / 2**20)} MiB, more than --pending-mib {self._most_bytes >> 20}; "
                "shorten --label-delay-seconds, or raise --pending-mib"
            )
        self._now = now
        self._put(one)

    def drain(self) -> Iterator[_Waiting]:
        """Yield and remove all blocks, like ``due``; at the end of the stream, all labels are known."""
        return self._until(_LAST)

    def state(self) -> dict[str, Array]:
        """Return the queue as arrays by name."""
        arrays = {"pending.now": np.array([self._now], np.int64)}
        if self._waiting:
            blocks = [one.block for one in self._waiting]
            arrays["pending.lengths"] = np.array([len(one) for one in blocks], np.int64)
            arrays["pending.first_rows"] = np.array([one.first_row for one in blocks], np.int64)
            arrays["pending.due"] = np.array([one.due for one in self._waiting], np.int64)
            arrays["pending.predictions"] = np.concatenate([one.predictions for one in self._waiting])
            arrays["pending.codes"] = np.concatenate([one.codes for one in self._waiting], axis=1)
            for name in _COLUMNS:
                parts = [getattr(one, name) for one in blocks]
                if all(part is not None for part in parts):
                    arrays[f"pending.block.{name}"] = np.concatenate(parts)
        return arrays

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state.

        Raises:
            ConfigError: The state is of a run without a label delay.
        """
        if "pending.now" not in state:
            raise ConfigError(
                "label-delay-seconds: the checkpoint was saved without a label delay; omit "
                "--label-delay-seconds, or start a new run"
            )
        self._waiting.clear()
        self._bytes = self.rows = 0
        self._now = int(state["pending.now"][0])
        if "pending.lengths" not in state:
            return
        columns = {name: state.get(f"pending.block.{name}") for name in _COLUMNS}
        whole = Block(**{name: None if a is None else np.array(a) for name, a in columns.items()})  # type: ignore[arg-type]
        stops = np.cumsum(state["pending.lengths"]).tolist()
        starts = [0, *stops[:-1]]
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            block = replace(whole.part(start, stop), first_row=int(state["pending.first_rows"][number]))
            predictions = np.array(state["pending.predictions"][start:stop])
            codes = np.array(state["pending.codes"][:, start:stop])
            self._put(_Waiting(block, predictions, codes, int(state["pending.due"][number])))

    def _put(self, one: _Waiting) -> None:
        self._waiting.append(one)
        self._bytes += _size(one)
        self.rows += len(one.block)

    def _until(self, now: int) -> Iterator[_Waiting]:
        while self._waiting and self._waiting[0].due <= now:
            one = self._waiting[0]
            yield one
            self._waiting.popleft()
            self._bytes -= _size(one)
            self.rows -= len(one.block)


def _size(one: _Waiting) -> int:
    arrays = (getattr(one.block, name) for name in _COLUMNS)
    own = (one.predictions, one.codes)
    return sum(int(array.nbytes) for array in (*arrays, *own) if array is not None)


def _timestamps(block: Block) -> Array:
    if block.timestamps is None:
        raise ConfigError(
            "label-delay-seconds: the stream has no timestamps; its schema needs a field of that role"
        )
    return block.timestamps


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
            The windows completed.

        Raises:
            ModelError: The model has diverged: a prediction is not finite.
            ConfigError: Labels are delayed, but the stream has no timestamps.
            FailedPrecondition: The rows that wait for their labels exceed the memory limit.
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

    def _learn_late(self, one: _Waiting) -> list[Window]:
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
