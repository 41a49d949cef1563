"""Rows that wait for their labels: predicted on arrival, learnt from once the labels are known.

The clock is the newest timestamp seen in the stream. A block waits until the label of its last row is known,
and is then learnt from as a whole, before the next block is predicted. So no prediction uses a label from its
future, and batches stay whole.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from headrace.base.errors import ConfigError, FailedPrecondition
from headrace.base.tensors import Array
from headrace.stream.block import Block

MICROSECONDS = 1_000_000
DEFAULT_PENDING_BYTES = 2**31
"""Default memory limit of waiting rows in bytes."""

_LAST = int(np.iinfo(np.int64).max)
_COLUMNS = tuple(one.name for one in fields(Block) if one.name not in ("slices", "first_row"))


class Waiting(NamedTuple):
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
        self._delay = round(delay_seconds * MICROSECONDS)
        self._most_bytes = most_bytes
        self._waiting: deque[Waiting] = deque()
        self._now = np.iinfo(np.int64).min
        self._bytes = 0
        self.rows = 0

    def due(self, block: Block) -> Iterator[Waiting]:
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
        one = Waiting(replace(block, slices={}), predictions, codes, due)
        needed = self._bytes + _size(one)
        if needed > self._most_bytes:
            raise FailedPrecondition(
                f"label-delay-seconds: the rows that wait for their labels would take "
                f"{math.ceil(needed / 2**20)} MiB, more than --pending-mib {self._most_bytes >> 20}; "
                "shorten --label-delay-seconds, or raise --pending-mib"
            )
        self._now = now
        self._put(one)

    def drain(self) -> Iterator[Waiting]:
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
            self._put(Waiting(block, predictions, codes, int(state["pending.due"][number])))

    def _put(self, one: Waiting) -> None:
        self._waiting.append(one)
        self._bytes += _size(one)
        self.rows += len(one.block)

    def _until(self, now: int) -> Iterator[Waiting]:
        while self._waiting and self._waiting[0].due <= now:
            one = self._waiting[0]
            yield one
            self._waiting.popleft()
            self._bytes -= _size(one)
            self.rows -= len(one.block)


def _size(one: Waiting) -> int:
    arrays = (getattr(one.block, name) for name in _COLUMNS)
    own = (one.predictions, one.codes)
    return sum(int(array.nbytes) for array in (*arrays, *own) if array is not None)


def _timestamps(block: Block) -> Array:
    if block.timestamps is None:
        raise ConfigError(
            "label-delay-seconds: the stream has no timestamps; its schema needs a field of that role"
        )
    return block.timestamps
