"""Generate clicks whose best logloss is known: rows drawn from a hidden model, shaped like Criteo's.

The logit of a row is a sum of three parts. The first is an effect of each category. The second are products
of hidden vectors of some pairs of categories, which factorization machines can learn and logistic regression
cannot. The third are effects of the dense fields, some of them curved. The label is drawn with exactly the
probability in the column ``truth``. With drift, effects slowly rotate into others, and categories of large
fields are replaced by new ones.

A row is a pure function of the settings and its number: the same settings produce the same bytes, and any
range of rows can be drawn without those before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.config.checks import told
from headrace.stream import generator_kernels as kernels
from headrace.stream.schema import METADATA_KEY, Field, Schema

ShapeName = Literal["criteo", "small", "ffm12"]
GeneratedKeys = Literal["bucket", "hash"]

MOST_SEED = 2**53
"""Maximum seed: JSON numbers are exact up to here."""

_CALIBRATION_ROWS = 32768
_DRIFT_ROWS = 1_000_000
_CHURNING_CARDINALITY = 1000
_START_MICROSECONDS = 1_767_225_600_000_000  # 2026-01-01
_PURPOSES = ("rank", "effect", "vector", "renew", "count", "label")


class Shape(NamedTuple):
    """The layout and statistics of generated rows.

    Attributes:
        cardinalities: Number of categories at a time, for each categorical field.
        context: Number of categorical context fields, which come first; all dense fields belong to the
            context.
        dense: Number of dense fields.
        pairs: The pairs of categorical fields that interact.
        spreads: Standard deviations of the logit's parts: categories, pairs, dense fields.
    """

    cardinalities: tuple[int, ...]
    context: int
    dense: int
    pairs: tuple[tuple[int, int], ...]
    spreads: tuple[float, float, float]


_CRITEO = (
    *(1460, 583, 1_000_000, 200_000, 305, 24, 12_517, 633, 3, 40_000, 5683, 500_000, 3194, 27, 14_992),
    *(300_000, 10, 5652, 2173, 4, 100_000, 18, 15, 20_000, 105, 10_000),
)
_CRITEO_PAIRS = (
    *((0, 21), (1, 22), (4, 24), (5, 25), (7, 21), (8, 24), (13, 22), (16, 25)),
    *((4, 21), (18, 24), (5, 22), (0, 25)),
)
SHAPES: dict[ShapeName, Shape] = {
    "criteo": Shape(_CRITEO, 20, 13, _CRITEO_PAIRS, (0.9, 0.8, 0.5)),
    "small": Shape((50, 200, 8, 1000, 20, 30), 4, 2, ((0, 4), (1, 5), (2, 4), (3, 5)), (0.9, 0.8, 0.5)),
    "ffm12": Shape(
        (1000, 300, 100, 50, 30, 10, 5000, 2000, 500, 200, 40, 20),
        8,
        0,
        ((0, 8), (1, 9), (2, 10), (3, 11), (4, 8), (5, 9), (6, 10), (7, 11), (1, 10), (2, 11)),
        (0.9, 0.9, 0.0),
    ),
}
"""The shapes: Criteo's 26 categorical and 13 dense fields; 6 and 2, for tests; 12 without dense ones."""


@dataclass(frozen=True)
class GeneratorSettings:
    """Settings of the generator.

    Attributes:
        rows: Number of rows.
        seed: Seed of all draws, 0 to 2**53.
        shape: The shape of the rows.
        drift: Number of full rotations of the effects per million rows; categories of large fields are
            replaced at the same pace. 0 for no drift.
        from_row: The number of the first row to draw; rows before it are left out.
        base_rate: Approximate share of clicks.
        candidates: Number of consecutive rows that share their context: the candidates of a request.
        rows_per_second: Rows per second of the timestamps.
        keys: ``bucket`` writes categories as rows of their tables; ``hash`` as integers to be hashed.
        buckets: Maximum number of rows of a field's table.
        batch_rows: Number of rows per record batch.
    """

    rows: int = 1_000_000
    seed: int = 0
    shape: ShapeName = "criteo"
    drift: float = 0.0
    from_row: int = 0
    base_rate: float = 0.2
    candidates: int = 1
    rows_per_second: float = 1000.0
    keys: GeneratedKeys = "bucket"
    buckets: int = 2**16
    batch_rows: int = 8192

    def __post_init__(self) -> None:
        """Check each setting."""
        if self.shape not in SHAPES:
            raise ConfigError(f"shape: expected one of {', '.join(SHAPES)}, got {self.shape!r}")
        if self.keys not in get_args(GeneratedKeys):
            raise ConfigError(f"keys: expected bucket or hash, got {self.keys!r}")
        if not 0.0 < self.base_rate < 1.0:
            raise ConfigError(f"base-rate: expected more than 0 and less than 1, got {self.base_rate:g}")
        for name, value, least, most in (
            ("rows", self.rows, 0, 2**62),
            ("from-row", self.from_row, 0, 2**62),
            ("seed", self.seed, 0, MOST_SEED),
            ("candidates", self.candidates, 1, 2**20),
            ("buckets", self.buckets, 2, 2**31),
            ("batch-rows", self.batch_rows, 1, 2**20),
            ("drift", self.drift, 0.0, 1e6),
            ("rows-per-second", self.rows_per_second, 1e-3, 1e9),
        ):
            if not least <= value <= most:
                raise ConfigError(f"{name}: expected {least:g} to {most:g}, got {told(value)}")


class _Category(NamedTuple):
    """One categorical field of the generator."""

    number: int
    cardinality: int
    context: bool
    buckets: int


class _Scale(NamedTuple):
    """The calibration that gives the logit's parts their spreads, and the rows their click rate.

    Attributes:
        factors: Factor of each part: ``[3]``.
        means: Means of the parts without rotation and, with drift, after a quarter turn: ``[1 or 2, 3]``.
        intercept: The intercept of the logit.
    """

    factors: Array
    means: Array
    intercept: float


def schema_of(settings: GeneratorSettings) -> Schema:
    """Return the schema of the rows; its ``generator`` records the settings that shape their values."""
    shape = SHAPES[settings.shape]
    categorical = [
        Field(
            name=f"c{one.number + 1}",
            role="categorical",
            buckets=one.buckets,
            keys=settings.keys,
            context=one.context,
        )
        for one in _categories(settings)
    ]
    dense = [Field(name=f"d{number + 1}", role="dense", context=True) for number in range(shape.dense)]
    recorded = ("seed", "drift", "base_rate", "candidates", "rows_per_second")
    return Schema(
        fields=(
            Field(name="label", role="label"),
            Field(name="timestamp", role="timestamp"),
            Field(name="truth", role="truth"),
            *categorical,
            *dense,
        ),
        generator={name: float(getattr(settings, name)) for name in recorded}
        | {"categorical": float(len(categorical)), "dense": float(len(dense))},
    )


def arrow_schema(settings: GeneratorSettings) -> pa.Schema:
    """Return the Arrow schema of the rows, with the Schema in its metadata."""
    schema = schema_of(settings)
    types = {
        "label": pa.int8(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "truth": pa.float32(),
        "categorical": pa.uint32() if settings.keys == "bucket" else pa.int64(),
        "dense": pa.float32(),
    }
    columns = [pa.field(field.name, types[field.role], nullable=False) for field in schema.fields]
    return pa.schema(columns, metadata={METADATA_KEY: schema.encode()})


def generate_batches(settings: GeneratorSettings) -> Iterator[pa.RecordBatch]:
    """Draw the rows.

    Yields:
        Batches of ``batch_rows`` rows, the last one possibly shorter, of ``arrow_schema(settings)``.
    """
    source = _Source(settings)
    scale = source.calibrate()
    schema = arrow_schema(settings)
    end = settings.from_row + settings.rows
    for first in range(settings.from_row, end, settings.batch_rows):
        columns = source.columns(first, min(settings.batch_rows, end - first), scale)
        yield pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema
        )


def _categories(settings: GeneratorSettings) -> list[_Category]:
    shape = SHAPES[settings.shape]
    found = []
    for number, cardinality in enumerate(shape.cardinalities):
        # Replaced categories get new identities, which need rows of their own; hashes need room to spread.
        room = 4 if settings.keys == "hash" else 2 if _churns(settings, cardinality) else 1
        buckets = max(2, min(settings.buckets, room * cardinality + 1))
        found.append(_Category(number, cardinality, number < shape.context, buckets))
    return found


def _churns(settings: GeneratorSettings, cardinality: int) -> bool:
    return settings.drift > 0.0 and cardinality >= _CHURNING_CARDINALITY


class _Source:
    """Draws the columns."""

    def __init__(self, settings: GeneratorSettings) -> None:
        self._settings = settings
        self._shape = SHAPES[settings.shape]
        self._categories = _categories(settings)
        self._interacting = sorted({field for pair in self._shape.pairs for field in pair})

    def _key(self, purpose: str, field: int = 0) -> np.uint64:
        key = kernels.derive_key(np.uint64(self._settings.seed), _PURPOSES.index(purpose), field)
        return np.uint64(key)

    def calibrate(self) -> _Scale:
        """Measure the parts of the logit on the first rows, and return the calibration."""
        # A rotated value mixes the values at no rotation and at a quarter turn, so two measurements suffice.
        angles = (0.0, math.pi / 2) if self._settings.drift else (0.0,)
        measured = [self._features(0, np.full(_CALIBRATION_ROWS, angle))[2] for angle in angles]
        means = np.array([parts.mean(axis=1) for parts in measured])
        spreads = np.sqrt(np.mean([parts.var(axis=1) for parts in measured], axis=0))
        factors = np.divide(self._shape.spreads, spreads, out=np.zeros(3), where=spreads > 0.0)
        logits = factors @ (measured[0] - means[0][:, None])
        low, high = -30.0, 30.0
        for _ in range(60):
            middle = (low + high) / 2
            rate = float(np.mean(1.0 / (1.0 + np.exp(-logits - middle))))
            low, high = (middle, high) if rate < self._settings.base_rate else (low, middle)
        return _Scale(factors, means, (low + high) / 2)

    def columns(self, first: int, rows: int, scale: _Scale) -> list[Array]:
        """Return the columns of some rows, in the order of the schema."""
        angles = np.arange(first, first + rows) * (2 * math.pi * self._settings.drift / _DRIFT_ROWS)
        categorical, dense, parts = self._features(first, angles)
        if self._settings.drift:
            # Subtract the rotated means, so that the click rate stays about constant.
            centres = np.cos(angles) * scale.means[0][:2, None] + np.sin(angles) * scale.means[1][:2, None]
            parts[:2] -= centres
            parts[2] -= scale.means[0][2]
        else:
            parts -= scale.means[0][:, None]
        logits = scale.factors @ parts + scale.intercept
        truth, labels = np.empty(rows, np.float32), np.empty(rows, np.int8)
        kernels.draw_labels(self._key("label"), first, logits, truth, labels)
        seconds = np.arange(first, first + rows, dtype=np.float64) / self._settings.rows_per_second
        timestamps = _START_MICROSECONDS + (seconds * 1e6).astype(np.int64)
        return [labels, timestamps, truth, *categorical, *dense]

    def _features(self, first: int, angles: Array) -> tuple[list[Array], list[Array], Array]:
        """Return categorical columns, dense columns, and the parts of the logit: float64 ``[3, rows]``."""
        rows = len(angles)
        parts = np.zeros((3, rows))
        turning = np.stack([np.cos(angles), np.sin(angles)])
        resting = np.stack([np.ones(rows), np.zeros(rows)])
        vectors: dict[int, Array] = {}
        written = []
        for one in self._categories:
            ranks, identities = self._drawn(one, first, rows)
            kernels.add_effects(self._key("effect", one.number), ranks, identities, turning, parts[0])
            if one.number in self._interacting:
                vectors[one.number] = np.empty((kernels.LATENT_FACTORS, rows))
                # Two vectors that rotate alike keep their product, so only those of context fields rotate.
                turn = turning if one.context else resting
                key = self._key("vector", one.number)
                kernels.hidden_vectors(key, ranks, identities, turn, vectors[one.number])
            written.append(self._written(one, identities))
        for number, (left, right) in enumerate(self._shape.pairs):
            # Both signs, because a sum of positive products would be a plain factorization machine.
            kernels.add_products(vectors[left], vectors[right], -1.0 if number % 3 == 2 else 1.0, parts[1])
        return written, self._dense(first, rows, parts[2]), parts

    def _drawn(self, one: _Category, first: int, rows: int) -> tuple[Array, Array]:
        ranks = np.empty(rows, np.int64)
        shared = self._settings.candidates if one.context else 1
        kernels.draw_ranks(self._key("rank", one.number), first, shared, one.cardinality, ranks)
        if not _churns(self._settings, one.cardinality):
            return ranks, ranks
        times = np.arange(first, first + rows) // shared * shared
        lifetime_rows = _DRIFT_ROWS / self._settings.drift
        key = self._key("renew", one.number)
        return ranks, kernels.renew(key, times, lifetime_rows, one.cardinality, ranks)

    def _written(self, one: _Category, identities: Array) -> Array:
        if self._settings.keys == "hash":
            return identities
        return (1 + identities % (one.buckets - 1)).astype(np.uint32)

    def _dense(self, first: int, rows: int, part: Array) -> list[Array]:
        columns = []
        for number in range(self._shape.dense):
            numbers = np.empty(rows, np.float32)
            middle = 0.5 + 0.15 * number
            key = self._key("count", number)
            kernels.draw_counts(key, first, self._settings.candidates, middle, numbers)
            strength = -1.0 if number % 4 == 3 else 1.0
            if number % 2:
                kernels.add_bumps(numbers, 2.0 * strength, math.log1p(math.exp(middle)), part)
            else:
                kernels.add_slopes(numbers, 0.3 * strength, part)
            columns.append(numbers)
        return columns
