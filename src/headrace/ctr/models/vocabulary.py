"""Exact fields: tables without collisions, where a value that occurs often enough has a row of its own.

The row is the value's until it expires. The table is its own hash table with linear probing: a key's position
is its row. So a lookup needs only an array of keys beside the weights, and nothing moves when values come and
go. A row is never freed, only reassigned to another value, so a probe may stop at the first unassigned row.
Row 0 of a table is shared by all values that are missing or not admitted.

While learning, a ``Vocabulary`` admits values and assigns rows to them; another model learns from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.click_model import LearningModel, Weights
from headrace.jit.kernel_cache import cached
from headrace.stream.block import Block, ExactColumn, Features
from headrace.stream.schema import MOST_ADMIT

LONGEST_PROBE = 64
"""Number of rows probed before a value counts as absent, or a table as full."""

_COUNTERS_PER_ROW = 8


GONE = np.uint64(2**64 - 1)
"""Key of published rows whose value has expired, a tombstone: probes pass over it."""

_NEVER = np.iinfo(np.int64).max


class KeyTable(NamedTuple):
    """The keys of one table in the form that kernels take.

    Attributes:
        keys: Key of each row: uint64 ``[buckets]``; 0 for an unassigned row. Row 0 is never assigned.
        seen: Number of the stream's row in which each key was last seen: int64 ``[buckets]``.
        counts: Count-min sketch of values without a row: uint8 ``[8 * buckets]``. A value's hash selects two
            counters, and the lower one is its count. Values that share both are admitted too early.
        counted: Number of values counted since the counts were last halved: int64 ``[1]``. The counts are
            halved after as many values as the table has rows. Otherwise rare values would fill them up, and
            every value would be admitted.
    """

    keys: Array
    seen: Array
    counts: Array
    counted: Array


class Vocabulary:
    """The assignment of rows to values, for every exact table of a model."""

    def __init__(self, features: Features) -> None:
        """Create empty tables.

        Args:
            features: Layout of the rows; some of its fields are exact.
        """
        self.features = features
        self._tables: dict[str, KeyTable] = {}
        self._expire_rows: dict[str, int] = {}
        for column in features.exact_columns:
            field, rows = column.field, column.field.buckets
            self._expire_rows[field.table_name] = field.expire_rows or _NEVER
            self._tables.setdefault(
                field.table_name,
                KeyTable(
                    np.zeros(rows, np.uint64),
                    np.zeros(rows, np.int64),
                    np.zeros(rows * _COUNTERS_PER_ROW, np.uint8),
                    np.zeros(1, np.int64),
                ),
            )

    def admit(self, block: Block) -> tuple[Block, Array]:
        """Look up the rows of a block's exact values, and assign rows to values that occurred often enough.

        Args:
            block: A block with keys; not modified.

        Returns:
            The block with all indices filled in, and the rows of the tables to reinitialise, because their
            values had expired: int64, distinct.
        """
        indices, taken = block.indices.copy(), np.zeros(0, np.int64)
        for column, wanted in zip(self.features.exact_columns, _keys(block).T, strict=True):
            name = column.field.table_name
            rule = column.field.admit, self._expire_rows[name]
            fresh = _admit(self._tables[name], wanted, block.first_row, rule, indices[:, column.slot])
            _place(indices, column)
            taken = np.union1d(taken, fresh + column.table_start)
        _mark_missing(self.features, indices)
        return replace(block, indices=indices), taken

    def look_up(self, block: Block, now: int) -> Block:
        """Look up the rows of a block's exact values, ignoring expired ones as ``living_keys`` does.

        Args:
            block: A block with keys; not modified.
            now: Number of the stream's next row to learn.
        """
        indices = block.indices.copy()
        for column, wanted in zip(self.features.exact_columns, _keys(block).T, strict=True):
            name = column.field.table_name
            _find_living(self._tables[name], wanted, now, self._expire_rows[name], indices[:, column.slot])
            _place(indices, column)
        _mark_missing(self.features, indices)
        return replace(block, indices=indices)

    def living_keys(self, now: int) -> dict[str, Array]:
        """Return a copy of the keys for publication, with expired ones replaced by ``GONE``.

        Args:
            now: Number of the stream's next row to learn.
        """
        living = {}
        for name, table in self._tables.items():
            expired = now - table.seen > self._expire_rows[name]
            living[name] = np.where(expired & (table.keys != 0), GONE, table.keys)
        return living

    def state(self) -> dict[str, Array]:
        """Return the vocabulary's own arrays, not copies, by name."""
        return {
            f"vocabulary.{name}.{part}": array
            for name, table in self._tables.items()
            for part, array in zip(KeyTable._fields, table, strict=True)
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Copy in the arrays of a state.

        Raises:
            ConfigError: An array is missing or has another shape.
        """
        for name, own in self.state().items():
            if name not in state or state[name].shape != own.shape:
                raise ConfigError(f"{name}: expected an array of shape {list(own.shape)} in the state")
            own[:] = state[name]


class AdmittingModel(LearningModel):
    """A model with exact fields: a vocabulary in front of another model."""

    def __init__(self, inner: LearningModel) -> None:
        """Wrap a model.

        Args:
            inner: An untrained model with exact fields.
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
        """Return the probabilities of a click: float32 ``[rows]``."""
        return self._inner.predict(self._vocabulary.look_up(block, int(self._position[0])))

    def forget(self, rows: Array) -> None:
        """Reinitialise rows of the tables."""
        self._inner.forget(rows)

    def state(self) -> dict[str, Array]:
        """Return the arrays needed to resume learning, including the vocabulary's."""
        return {**self._inner.state(), **self._vocabulary.state(), "vocabulary.position": self._position}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state.

        Raises:
            ConfigError: An array is missing or has another shape.
        """
        if "vocabulary.position" not in state:
            raise ConfigError(
                "vocabulary.position is missing from the state, which is that of a model without exact fields"
            )
        self._vocabulary.restore(state)
        self._inner.restore(
            {name: array for name, array in state.items() if not name.startswith("vocabulary.")}
        )
        self._position[:] = state["vocabulary.position"]

    def strip(self) -> Weights:
        """Return a copy of the weights, with the keys of values that have not expired."""
        return replace(self._inner.strip(), keys=self._vocabulary.living_keys(int(self._position[0])))


def look_up(features: Features, keys: Mapping[str, Array], wanted: Array, indices: Array) -> None:
    """Fill in the rows of exact values, for predictions.

    Args:
        features: Layout of the rows.
        keys: Key of each row, by the table's name.
        wanted: The values' keys: uint64 ``[rows, exact slots]``; 0 for no value.
        indices: Output for the rows: uint32 ``[rows, slots]``; only slots of exact fields are written.
    """
    for column, values in zip(features.exact_columns, wanted.T, strict=True):
        _find(keys[column.field.table_name], values, indices[:, column.slot])
        _place(indices, column)
    _mark_missing(features, indices)


def _keys(block: Block) -> Array:
    if block.keys is None:
        raise ConfigError("the block has no keys, but the model has exact fields; join it with their schema")
    return block.keys


def _place(indices: Array, column: ExactColumn) -> None:
    """Turn rows of one table (0 for absent) into rows of all tables, in place.

    An absent value maps to the table's row 0. In a field with several values it is dropped.
    """
    rows = indices[:, column.slot]
    if column.field.values == 1:
        rows += np.uint32(column.table_start)
    else:
        rows += np.uint32(column.table_start) * (rows != 0)


def _mark_missing(features: Features, indices: Array) -> None:
    """Write row 0 of the table to the first slot of each field with several values that has no row."""
    for column in features.exact_columns:
        if column.first and column.field.values > 1:
            slots = indices[:, column.slot : column.slot + column.field.values]
            slots[~slots.any(axis=1), 0] = column.table_start


@cached(nogil=True)
def _home(key: np.uint64, rows: int) -> int:
    return 1 + int(((key >> np.uint64(32)) * np.uint64(rows - 1)) >> np.uint64(32))


@cached(nogil=True)
def _probe(keys: Array, key: np.uint64) -> int:
    """Return the row of a key; 0 if it has none."""
    rows = len(keys)
    place: int = _home(key, rows)
    for _ in range(LONGEST_PROBE):
        if keys[place] == key:
            return place
        if keys[place] == 0:
            return 0
        place = place + 1 if place + 1 < rows else 1
    return 0


@cached(nogil=True)
def _find(keys: Array, wanted: Array, out: Array) -> None:
    for row in range(len(wanted)):
        key = wanted[row]
        out[row] = _probe(keys, key) if key != 0 else 0


@cached(nogil=True)
def _find_living(table: KeyTable, wanted: Array, now: int, expire_rows: int, out: Array) -> None:
    for row in range(len(wanted)):
        key = wanted[row]
        place = _probe(table.keys, key) if key != 0 else 0
        out[row] = place if now - table.seen[place] <= expire_rows else 0


@cached(nogil=True)
def _room(table: KeyTable, key: np.uint64, oldest: int) -> int:
    """Return a row near a key's home that is unassigned or was not seen since ``oldest``; 0 for none."""
    rows = len(table.keys)
    place: int = _home(key, rows)
    for _ in range(LONGEST_PROBE):
        if table.keys[place] == 0 or table.seen[place] < oldest:
            return place
        place = place + 1 if place + 1 < rows else 1
    return 0


@cached(nogil=True)
def _counters(counts: Array, key: np.uint64) -> tuple[int, int]:
    places = np.uint64(len(counts))
    low, mixed = key & np.uint64(0xFFFFFFFF), (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return int((low * places) >> np.uint64(32)), int((mixed * places) >> np.uint64(32))


@cached(nogil=True)
def _counted(table: KeyTable, key: np.uint64) -> int:
    """Count an occurrence of a value without a row, and return its count."""
    if table.counted[0] >= len(table.keys):
        table.counted[0] = 0
        table.counts[:] >>= np.uint8(1)
    table.counted[0] += 1
    one, two = _counters(table.counts, key)
    count = min(int(table.counts[one]) + 1, int(table.counts[two]) + 1, MOST_ADMIT)
    for counter in (one, two):  # conservative update: raise no counter more than needed
        table.counts[counter] = max(int(table.counts[counter]), count)
    return count


@cached(nogil=True)
def _uncount(table: KeyTable, key: np.uint64, count: int) -> None:
    """Subtract a value's count from its counters, now that it has a row."""
    for counter in _counters(table.counts, key):
        table.counts[counter] = max(0, int(table.counts[counter]) - count)


@cached(nogil=True)
def _admit(table: KeyTable, wanted: Array, first_row: int, rule: tuple[int, int], out: Array) -> Array:
    """Look up or assign rows; return the assigned rows whose values had expired."""
    admit, expire_rows = rule
    fresh = np.empty(len(wanted), np.int64)
    taken = 0
    for row in range(len(wanted)):
        key, now = wanted[row], first_row + row
        out[row] = 0
        if key == 0:
            continue
        # A value seen in this block keeps its row: the block is learnt with one assignment of rows.
        oldest = min(now - expire_rows, first_row)
        place = _probe(table.keys, key)
        if place == 0 or table.seen[place] < oldest:
            count = _counted(table, key)
            if count < admit:
                continue
            place = place if place else _room(table, key, oldest)
            if place == 0:
                continue
            if table.keys[place] != 0:
                fresh[taken] = place
                taken += 1
            table.keys[place] = key
            _uncount(table, key, count)
        table.seen[place] = max(now, table.seen[place])  # an earlier column may have seen later rows
        out[row] = place
    return np.unique(fresh[:taken])
