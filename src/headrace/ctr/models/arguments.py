"""What kernels are given: what they are compiled for, rows, weights, and working memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.ctr.kernels.memory import aligned_zeros, fixed
from headrace.ctr.settings import ModelSettings
from headrace.ctr.tables import Table
from headrace.stream.features import Features
from headrace.tensors import Array

LR, FM, FWFM, FFM = range(4)
"""The codes of kinds."""

KIND_CODES = {"lr": LR, "fm": FM, "fwfm": FWFM, "ffm": FFM}


class Shape(NamedTuple):
    """What a kernel is compiled for: constants in its machine code, so that loops become vectors.

    Attributes:
        kind: The kind's code.
        fields: How many categorical fields there are.
        factors: How many numbers an embedding has.
        width: How many numbers a row of the table of embeddings has.
        single: Whether every field has one value.
        scaled: Whether tables are in 16 or 8 bits.
        linear_code: The rule of linear weights: see ``headrace.ctr.learning.update_rules``.
        embedding_code: The rule of embeddings.
        slots: How many values a row has; like the next ones for the kernel that learns online only, else 0.
        dense: How many dense features there are.
        crossed: How many interactions there are.
        linear_width: How many numbers a row of the linear learning table has.
        shift: Where sums of squares forget, one value in ``2**shift`` is watched: see
            ``headrace.ctr.learning.pace``.
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


class Rows(NamedTuple):
    """The rows of a block.

    Attributes:
        indices: Rows of the tables: uint32 ``[rows, slots]``.
        crossed: Rows of the interactions: uint32 ``[rows, interactions]``.
        dense: Dense features: float32 ``[rows, dense_width]``.
        labels: float32 ``[rows]``; empty where rows are only predicted.
        weights: float32 ``[rows]``; empty for one each.
    """

    indices: Array
    crossed: Array
    dense: Array
    labels: Array
    weights: Array

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows, as views."""
        return Rows(*(one[start:stop] for one in self))


NOTHING = fixed(np.zeros(0, np.float32))
"""No labels, or no weights."""


class Slots(NamedTuple):
    """The layout of slots.

    Attributes:
        starts: The first slot of each field, and the number of slots last: int64 ``[fields + 1]``.
        mean: Which fields are pooled by their mean: bool ``[fields]``.
    """

    starts: Array
    mean: Array

    @classmethod
    def of(cls, features: Features) -> Slots:
        """The layout of features."""
        return cls(features.slot_starts, features.mean_pooled)


class Room(NamedTuple):
    """One thread's working memory for one row: float32.

    Attributes:
        shares: What each field's values are multiplied with ``[fields]``; only where fields have many.
        pooled: The fields' embeddings ``[fields * width]``.
        towards: The logit's gradient by each ``[fields * width]``.
        columns: fwfm's embeddings, transposed ``[width * fields]``.
        products: fwfm's dot products of all pairs ``[fields * fields]``.
    """

    shares: Array
    pooled: Array
    towards: Array
    columns: Array
    products: Array

    @classmethod
    def of(cls, shape: Shape) -> Room:
        """Make some."""
        fields, size = shape.fields, shape.fields * shape.width
        return cls(*(aligned_zeros((count,)) for count in (fields, size, size, size, fields * fields)))


class Work(NamedTuple):
    """One call's rows, their layout, and memory to work in."""

    rows: Rows
    slots: Slots
    room: Room


class Served(NamedTuple):
    """The weights that kernels read, and the learning one changes.

    Attributes:
        linear: The linear table.
        embeddings: The embeddings; for lr the linear table again.
        bias: float32 ``[1, 1]`` or wider.
        dense: The linear weights of dense features: float32 ``[1, dense_width]`` or wider.
        pairs: fwfm's: float32 ``[1, fields * fields]`` or wider, symmetric.
    """

    linear: Table
    embeddings: Table
    bias: Array
    dense: Array
    pairs: Array


def shape_of(settings: ModelSettings, features: Features) -> Shape:
    """What the kernels of a kind without a network are compiled for."""
    code = KIND_CODES[settings.kind]
    fields, factors = len(features.categorical), settings.factors if code else 0
    width = factors * fields if settings.kind == "ffm" else factors
    return Shape(code, fields, factors, width, features.single_valued)
