"""Click models for the conformance suite, with weights drawn at random."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from headrace.base.tensors import Array, Tensors
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.files.model_files import write_model
from headrace.ctr.model_settings import DEEP, Kind, ModelSettings
from headrace.ctr.models.missing import flagged
from headrace.ctr.models.vocabulary import Vocabulary
from headrace.stream.block import Block, Features
from headrace.stream.hashing import keys_of
from headrace.stream.schema import Field, Schema
from tests.conformance.runtime_example import Example, RuntimeUnderTest

SCHEMA = Schema(
    fields=(
        Field(name="user", role="categorical", buckets=500, text=True, context=True),
        Field(name="hour", role="categorical", buckets=24, keys="bucket", context=True),
        Field(name="topics", role="categorical", buckets=100, values=3, context=True),
        Field(name="ad", role="categorical", buckets=300),
        Field(name="words", role="categorical", buckets=200, values=2, pooling="sum", text=True),
        Field(name="age", role="dense", context=True),
        Field(name="price", role="dense"),
        Field(name="image", role="vector", size=4),
        Field(name="click", role="label"),
    )
)
EXACT = Schema(
    fields=tuple(
        msgspec.structs.replace(field, keys="exact") if field.name in ("user", "topics", "words") else field
        for field in SCHEMA.fields
    )
)
"""The same, but the values of some fields have rows of their own."""
LARGE = Schema(
    fields=(
        Field(name="ad", role="categorical", buckets=70_000, keys="bucket"),
        Field(name="price", role="dense", context=True),
    )
)


def random_weights(settings: ModelSettings, features: Features, seed: int = 0) -> Weights:
    """Weights of the right shapes; the row of no value is zero, as learning keeps it."""
    random = np.random.default_rng(seed)
    fields, factors = len(features.categorical), settings.factors

    def draw(*shape: int) -> Array:
        return (random.normal(size=shape) * 0.3).astype(np.float32)

    def table(rows: int, width: int) -> Table:
        values = draw(rows, width)
        values[0] = 0
        return Table.of(values)

    field_aware = settings.kind in ("ffm", "deepffm")
    tables = {"linear": table(features.rows + sum(one.buckets for one in settings.interactions), 1)}
    if settings.kind != "lr":
        tables["embeddings"] = table(features.rows, factors * (fields if field_aware else 1))
    features = flagged(settings, features)
    dense = {"bias": draw(1), "dense": draw(features.dense_width)}
    if settings.kind == "fwfm":
        dense["pairs"] = np.triu(draw(fields, fields), 1)
    if settings.kind in DEEP:
        inputs = fields * (fields - 1) // 2 if field_aware else fields * factors
        inputs += features.dense_width
        for layer, units in enumerate((*settings.hidden, settings.heads)):
            dense[f"layer{layer}.weights"], dense[f"layer{layer}.bias"] = draw(inputs, units), draw(units)
            inputs = units
    return Weights(tables, dense)


def known_keys(features: Features) -> dict[str, Array]:
    """Whose each row of exact tables is: some of the values in ``field_inputs`` have one, some do not."""
    vocabulary, some = Vocabulary(features), field_inputs(20)
    columns = [
        keys_of(some[field.name], field).reshape(20, -1)
        for field in features.categorical
        if field.keys == "exact"
    ]
    if columns:
        indices, dense = np.zeros((20, features.slots), np.uint32), np.zeros((20, 0), np.float32)
        keys = np.concatenate(columns, axis=1)
        vocabulary.admit(Block(indices, dense, np.zeros(20, np.float32), keys=keys))
    return vocabulary.living_keys(20)


def write(directory: Path, kind: Kind, schema: Schema = SCHEMA) -> None:
    """Write a version directory."""
    settings, features = ModelSettings(kind=kind, factors=4, hidden=(20, 10)), Features.of(schema)
    weights = replace(random_weights(settings, features), keys=known_keys(features))
    write_model(directory, settings, features, weights)


def field_inputs(rows: int) -> Tensors:
    """Values as they were in the stream."""
    number = np.arange(rows)

    def texts(*columns: list[str]) -> Array:
        array = np.array([[text.encode() for text in column] for column in columns], object)
        return array[0] if len(columns) == 1 else np.ascontiguousarray(array.T)

    return {
        "hour": number // 3 % 24,
        "topics": np.stack([number // 3 + 1, -(number % 2), np.full(rows, -1)], axis=1).astype(np.int64),
        "user": texts([f"user {one // 3}" if one % 5 else "" for one in number]),
        "ad": number * 7919 - 1,
        "words": texts([f"word {one % 9}" for one in number], ["blue" if one % 3 else "" for one in number]),
        "age": (number // 3 % 7 / 7).astype(np.float32),
        "image": np.sin(np.arange(rows * 4, dtype=np.float32)).reshape(rows, 4),
        "price": np.cos(number).astype(np.float32),
    }


def bucket_inputs(rows: int) -> Tensors:
    """One bucket and one number."""
    return {"ad": np.arange(rows) * 31 % 70_000, "price": np.linspace(0, 1, rows, dtype=np.float32)}


SIGNATURE = (
    "hour INT64 [rows]",
    "topics INT64 [rows, 3]",
    "user BYTES [rows]",
    "ad INT64 [rows]",
    "words BYTES [rows, 2]",
    "age FP32 [rows]",
    "image FP32 [rows, 4]",
    "price FP32 [rows]",
    "probability FP32 [rows]",
)

CTR = RuntimeUnderTest(
    kind="ctr",
    file="model.ctr",
    broken=(b"", b"not a model", b'{"format": 1}', b'{"format": 99}'),
    examples=(
        Example("deepfm", lambda directory: write(directory, "deepfm"), field_inputs, SIGNATURE, tolerance=0),
        Example("ffm", lambda directory: write(directory, "ffm"), field_inputs, SIGNATURE, tolerance=0),
        Example(
            "exact", lambda directory: write(directory, "fm", EXACT), field_inputs, SIGNATURE, tolerance=0
        ),
        Example("mdn", lambda directory: write(directory, "mdn"), field_inputs, SIGNATURE, tolerance=0),
        Example("lr", lambda directory: write(directory, "lr"), field_inputs, SIGNATURE, tolerance=0),
    ),
    failing=Example(
        "bucket",
        lambda directory: write(directory, "lr", LARGE),
        lambda rows: {"ad": np.full(rows, 70_000), "price": np.zeros(rows, np.float32)},
        (),
    ),
    large=Example("deepfm", lambda directory: write(directory, "deepfm", LARGE), bucket_inputs, ()),
)
