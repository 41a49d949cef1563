"""Arrays of models: their shapes, their memory, and the tuples in which kernels take them as arguments.

Arrays for kernels are aligned to cache lines, and of a single type.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.click_model import Table
from headrace.ctr.model_settings import DEEP, FIELD_AWARE, ModelSettings
from headrace.ctr.models.missing import flagged
from headrace.stream.block import Features

LINE_BYTES = 64
"""Size of a cache line in bytes."""

LINE_FLOATS = LINE_BYTES // 4
"""Number of float32 elements in a cache line."""


def aligned_zeros(shape: tuple[int, ...]) -> Array:
    """Return float32 zeros aligned to a cache line, so that a row of 64 bytes occupies one line, not two.

    NumPy itself requests huge pages for large arrays.
    """
    size = math.prod(shape)
    buffer = np.zeros(size + LINE_FLOATS, np.float32)
    first = (-buffer.ctypes.data % LINE_BYTES) // 4
    return buffer[first : first + size].reshape(shape)


def aligned(count: int) -> Array:
    """Return an uninitialised float32 array aligned to a cache line, so that no vector spans two lines."""
    room = np.empty(count + LINE_FLOATS, np.float32)
    start = -(room.ctypes.data // room.itemsize) % LINE_FLOATS
    return room[start : start + count]


def fixed(array: Array) -> Array:
    """Return a read-only C-contiguous view, so that kernels are compiled for one array type only."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


LR, FM, FWFM, FFM = range(4)
"""Codes of the kinds without a network."""

KIND_CODES = {"lr": LR, "fm": FM, "fwfm": FWFM, "ffm": FFM}


class Shape(NamedTuple):
    """Compile-time constants of a kernel, so that its loops are vectorised.

    Attributes:
        kind: Code of the kind.
        fields: Number of categorical fields.
        factors: Length of an embedding.
        width: Length of a row of the embeddings table.
        single: Whether every field has one value.
        scaled: Whether tables are quantized to 16 or 8 bits.
        linear_code: Update rule of linear weights: see ``headrace.ctr.learning.optimizers``.
        embedding_code: Update rule of embeddings.
        slots: Number of slots. This and the following are set only for the online learning kernel, else 0.
        dense: Number of dense features.
        crossed: Number of interactions.
        linear_width: Length of a row of the linear learning table.
        shift: One value in ``2**shift`` is sampled where sums of squares decay: see
            ``headrace.ctr.learning.adagrad_decay``.
    """

    kind: int
    fields: int
    factors: int
    width: int
    single: bool
    scaled: bool = False
    linear_code: int = 0
    embedding_code: int = 0
    slots: int = 0
    dense: int = 0
    crossed: int = 0
    linear_width: int = 0
    shift: int = 0


class BlockRows(NamedTuple):
    """The rows of a block.

    Attributes:
        indices: Rows of the tables: uint32 ``[rows, slots]``.
        crossed: Rows of the interactions: uint32 ``[rows, interactions]``.
        dense: Dense features: float32 ``[rows, dense_width]``.
        labels: float32 ``[rows]``; empty where rows are only predicted.
        weights: float32 ``[rows]``; empty for 1 each.
    """

    indices: Array
    crossed: Array
    dense: Array
    labels: Array
    weights: Array

    def part(self, start: int, stop: int) -> BlockRows:
        """Return a range of the rows, as views."""
        return BlockRows(*(one[start:stop] for one in self))


NOTHING = fixed(np.zeros(0, np.float32))
"""Placeholder for missing labels, weights or views."""


class Slots(NamedTuple):
    """The layout of slots.

    Attributes:
        starts: First slot of each field, then the number of slots: int64 ``[fields + 1]``.
        mean: Whether each field is pooled by its mean: bool ``[fields]``.
    """

    starts: Array
    mean: Array

    @classmethod
    def of(cls, features: Features) -> Slots:
        """Return the layout of a model's slots."""
        return cls(features.slot_starts, features.mean_pooled)


class Room(NamedTuple):
    """One thread's working memory for one row: float32.

    Attributes:
        shares: Factor of each field's values ``[fields]``; used only if a field has several values.
        pooled: The fields' pooled embeddings ``[fields * width]``.
        towards: The logit's gradient with respect to ``pooled`` ``[fields * width]``.
        columns: fwfm: the pooled embeddings, transposed ``[width * fields]``; fm: their sum ``[factors]``.
        products: fwfm: the dot products of all pairs ``[fields * fields]``.
    """

    shares: Array
    pooled: Array
    towards: Array
    columns: Array
    products: Array

    @classmethod
    def of(cls, shape: Shape) -> Room:
        """Allocate working memory."""
        fields, size = shape.fields, shape.fields * shape.width
        return cls(*(aligned_zeros((count,)) for count in (fields, size, size, size, fields * fields)))


class Work(NamedTuple):
    """The rows of one call, their layout, and working memory."""

    rows: BlockRows
    slots: Slots
    room: Room


class Served(NamedTuple):
    """The weights that kernels read, and that the online learning kernel updates.

    Attributes:
        linear: Table of linear weights.
        embeddings: Table of embeddings; for lr, the linear table again.
        bias: float32 ``[1, 1]`` or wider.
        dense: Linear weights of dense features: float32 ``[1, dense_width]`` or wider.
        pairs: fwfm's weights of pairs: float32 ``[1, fields * fields]`` or wider, symmetric.
    """

    linear: Table
    embeddings: Table
    bias: Array
    dense: Array
    pairs: Array


def shape_of(settings: ModelSettings, features: Features) -> Shape:
    """Return the compile-time constants of the kernels of a kind without a network."""
    code = KIND_CODES[settings.kind]
    fields, factors = len(features.categorical), settings.factors if code else 0
    width = factors * fields if settings.kind == "ffm" else factors
    return Shape(code, fields, factors, width, features.single_valued)


def expected_shapes(settings: ModelSettings, features: Features) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a model of these settings, by name, except the tables' scales."""
    features = flagged(settings, features)
    fields, inputs = len(features.categorical), features.dense_width
    wide = settings.kind in FIELD_AWARE
    shapes: dict[str, tuple[int, ...]] = {
        "table.linear": (features.rows + sum(one.buckets for one in settings.interactions), 1),
        "dense.bias": (1,),
        "dense.dense": (features.dense_width,),
    }
    if settings.kind != "lr":
        shapes["table.embeddings"] = (features.rows, settings.factors * (fields if wide else 1))
    if settings.kind == "fwfm":
        shapes["dense.pairs"] = (fields, fields)
    if settings.kind in DEEP:
        inputs += fields * (fields - 1) // 2 if wide else fields * settings.factors
        for layer, units in enumerate((*settings.hidden, settings.heads)):
            shapes[f"dense.layer{layer}.weights"] = (inputs, units)
            shapes[f"dense.layer{layer}.bias"] = (units,)
            inputs = units
    exact = {field.table_name: field.buckets for field in features.categorical if field.keys == "exact"}
    return shapes | {f"keys.{name}": (buckets,) for name, buckets in exact.items()}
