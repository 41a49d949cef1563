"""Tables without collisions: each value that is seen often enough gets a row of its own, and may lose it.

The table is its own hash table: a key lies where linear probing from its hash finds room, and that place is
its row. So a lookup needs one array of keys beside the weights, and nothing moves when values come and go: a
row is never emptied, only given to another value, so that a probe may stop at the first row that is nobody's.
Row 0 of a table stays the row of all values that are missing or not admitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numba
import numpy as np

from headrace.ctr.model import LearningModel, Weights
from headrace.errors import ConfigError
from headrace.stream.block import Block
from headrace.stream.features import Features
from headrace.tensors import Array

LONGEST_PROBE = 64
"""How many rows are looked at before a value counts as not there, or a table as full."""

_COUNTERS_PER_ROW = 4
GONE = np.uint64(2**64 - 1)
"""The key of published rows whose value has expired: probes pass over it."""

_NEVER = np.iinfo(np.int64).max


class KeyTable(NamedTuple):
    """The keys of one table, as kernels take them.

    Attributes:
        keys: Whose each row is: uint64 ``[buckets]``; 0 for nobody's. Row 0 is never anybody's.
        seen: The number of the stream's row in which each key was seen last: int64 ``[buckets]``.
        counts: How often values without a row were seen, by their hash: uint8 ``[4 * buckets]``. Values that
            share a counter are admitted a little early.
    """

    keys: Array
    seen: Array
    counts: Array


class Vocabulary:
    """Who has which row, for every exact table of a model."""

    def __init__(self, features: Features) -> None:
        """Start with nobody in.

        Args:
            features: The layout; some of its fields are exact.
        """
        self.features = features
        self._slots = tuple((field, slot) for field, slot in features.field_slots() if field.keys == "exact")
        self._tables: dict[str, KeyTable] = {}
        for field, _ in self._slots:
            rows = field.buckets
            self._tables.setdefault(
                field.table_name,
                KeyTable(
                    np.zeros(rows, np.uint64),
                    np.zeros(rows, np.int64),
                    np.zeros(rows * _COUNTERS_PER_ROW, np.uint8),
                ),
            )

    def admit(self, block: Block) -> tuple[Block, Array]:
        """Find the rows of a block's exact values, and give rows to those that have come often enough.

        Args:
            block: A block with keys; it is left as it is.

        Returns:
            The block with all indices filled in, and the rows of the tables that now belong to another value
            than before: int64, distinct.
        """
        indices, taken = block.indices.copy(), np.zeros(0, np.int64)
        for column, (field, slot) in enumerate(self._slots):
            first, _ = self.features.tables[field.table_name]
            fresh = _admit(
                self._tables[field.table_name],
                _keys(block)[:, column],
                block.first_row,
                (field.admit, field.expire_rows or _NEVER),
                indices[:, slot],
            )
            _place(indices[:, slot], first, slot == self._first_slot(slot))
            taken = np.union1d(taken, fresh + first)
        return replace(block, indices=indices), taken

    def look_up(self, block: Block) -> Block:
        """Find the rows of a block's exact values; the block is left as it is."""
        indices = block.indices.copy()
        look_up(self.features, self.keys(), _keys(block), indices)
        return replace(block, indices=indices)

    def keys(self) -> dict[str, Array]:
        """Whose each row is, by the table's name: the vocabulary's own arrays."""
        return {name: table.keys for name, table in self._tables.items()}

    def living_keys(self, now: int) -> dict[str, Array]:
        """A copy of the keys without those that have expired: what is published.

        Args:
            now: The number of the stream's next row.
        """
        living = {}
        for field, _ in self._slots:
            table = self._tables[field.table_name]
            expired = now - table.seen > (field.expire_rows or _NEVER)
            living[field.table_name] = np.where(expired & (table.keys != 0), GONE, table.keys)
        return living

    def state(self) -> dict[str, Array]:
        """Everything, by name: the vocabulary's own arrays."""
        return {
            f"vocabulary.{name}.{part}": array
            for name, table in self._tables.items()
            for part, array in zip(KeyTable._fields, table, strict=True)
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over the arrays of a state.

        Raises:
            ConfigError: One is missing or of another shape.
        """
        for name, own in self.state().items():
            if name not in state or state[name].shape != own.shape:
                raise ConfigError(f"{name}: expected an array of shape {list(own.shape)} in the state")
            own[:] = state[name]

    def _first_slot(self, slot: int) -> int:
        starts = self.features.slot_starts
        return int(starts[np.searchsorted(starts, slot, side="right") - 1])


def look_up(features: Features, keys: Mapping[str, Array], wanted: Array, indices: Array) -> None:
    """Fill in the rows of exact values, for predictions.

    Args:
        features: The layout.
        keys: Whose each row is, by the table's name.
        wanted: The values' keys: uint64 ``[rows, exact slots]``; 0 for no value.
        indices: Where the rows go: uint32 ``[rows, slots]``; only slots of exact fields are written.
    """
    exact = ((field, slot) for field, slot in features.field_slots() if field.keys == "exact")
    starts = features.slot_starts
    for column, (field, slot) in enumerate(exact):
        _find(keys[field.table_name], wanted[:, column], indices[:, slot])
        _place(indices[:, slot], features.tables[field.table_name][0], bool(np.any(starts[:-1] == slot)))


class AdmittingModel(LearningModel):
    """A model with exact fields: another model behind a vocabulary."""

    def __init__(self, inner: LearningModel) -> None:
        """Put a vocabulary before a model.

        Args:
            inner: A fresh model, some of whose fields are exact.
        """
        self.settings, self.features = inner.settings, inner.features
        self._inner = inner
        self._vocabulary = Vocabulary(inner.features)
        self._position = np.zeros(1, np.int64)

    def learn(self, block: Block) -> Array:
        """Admit new values, predict the rows, then learn from them."""
        filled, taken = self._vocabulary.admit(block)
        if len(taken):
            self._inner.forget(taken)
        self._position[0] = block.first_row + len(block)
        return self._inner.learn(filled)

    def predict(self, block: Block) -> Array:
        """The probabilities of a click: float32 ``[rows]``."""
        return self._inner.predict(self._vocabulary.look_up(block))

    def forget(self, rows: Array) -> None:
        """Make rows of the tables fresh."""
        self._inner.forget(rows)

    def state(self) -> dict[str, Array]:
        """Everything that learning goes on from."""
        return {**self._inner.state(), **self._vocabulary.state(), "vocabulary.position": self._position}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state.

        Raises:
            ConfigError: An array is missing or of another shape.
        """
        self._inner.restore({name: array for name, array in state.items() if "vocabulary." not in name})
        self._vocabulary.restore(state)
        self._position[:] = state["vocabulary.position"]

    def strip(self) -> Weights:
        """A copy of what predictions depend on, with the keys of values that have not expired."""
        return replace(self._inner.strip(), keys=self._vocabulary.living_keys(int(self._position[0])))


def _keys(block: Block) -> Array:
    if block.keys is None:
        raise ConfigError("the block has no keys, but the model has exact fields; join it with their schema")
    return block.keys


def _place(column: Array, first: int, first_slot: bool) -> None:
    """Turn rows of one table (0 for not there, in place) into rows of all tables.

    Values that are not there share the table's row 0; further values of a field that has many are left out.
    """
    if first_slot:
        column += np.uint32(first)
    else:
        column += np.uint32(first) * (column != 0)


@numba.njit(cache=True, nogil=True)
def _home(key: np.uint64, rows: int) -> int:
    return 1 + int(((key >> np.uint64(32)) * np.uint64(rows - 1)) >> np.uint64(32))


@numba.njit(cache=True, nogil=True)
def _probe(keys: Array, key: np.uint64) -> int:
    """The row of a key; 0 if it has none."""
    rows = len(keys)
    place = _home(key, rows)
    for _ in range(LONGEST_PROBE):
        if keys[place] == key:
            return place
        if keys[place] == 0:
            return 0
        place = place + 1 if place + 1 < rows else 1
    return 0


@numba.njit(cache=True, nogil=True)
def _find(keys: Array, wanted: Array, out: Array) -> None:
    for row in range(len(wanted)):
        key = wanted[row]
        out[row] = _probe(keys, key) if key != 0 else 0


@numba.njit(cache=True, nogil=True)
def _room(table: KeyTable, key: np.uint64, now: int, expire_rows: int) -> int:
    """A row near a key's home that is nobody's, or whose value has expired; 0 if there is none."""
    rows = len(table.keys)
    place = _home(key, rows)
    for _ in range(LONGEST_PROBE):
        if table.keys[place] == 0 or now - table.seen[place] > expire_rows:
            return place
        place = place + 1 if place + 1 < rows else 1
    return 0


@numba.njit(cache=True, nogil=True)
def _counter(counts: Array, key: np.uint64) -> int:
    return int((key & np.uint64(0xFFFFFFFF)) * np.uint64(len(counts)) >> np.uint64(32))


@numba.njit(cache=True, nogil=True)
def _counted(counts: Array, key: np.uint64) -> int:
    """Count a value that has no row; how often it has come now."""
    counter = _counter(counts, key)
    if counts[counter] < 255:
        counts[counter] += 1
    return int(counts[counter])


@numba.njit(cache=True, nogil=True)
def _admit(table: KeyTable, wanted: Array, first_row: int, rule: tuple[int, int], out: Array) -> Array:
    """Find or give rows; returns the rows that had another value before."""
    admit, expire_rows = rule
    fresh = np.empty(len(wanted), np.int64)
    count = 0
    for row in range(len(wanted)):
        key, now = wanted[row], first_row + row
        out[row] = 0
        if key == 0:
            continue
        place = _probe(table.keys, key)
        if place == 0 or now - table.seen[place] > expire_rows:
            if _counted(table.counts, key) < admit:
                continue
            place = place if place else _room(table, key, now, expire_rows)
            if place == 0:
                continue
            if table.keys[place] != 0:
                fresh[count] = place
                count += 1
            table.keys[place] = key
            table.counts[_counter(table.counts, key)] = 0
        table.seen[place] = now
        out[row] = place
    return np.unique(fresh[:count])
