"""Vectors that are missing, as an mdn knows them: a flag of its own for each vector field.

A vector of zeros is none: null in a stream is read as zeros, an input that a request leaves out is zeros, and
no encoder gives them. So nothing but the numbers themselves has to be kept equal between a stream and a
request. What a missing vector means is learnt: by the flag's linear weight, and its row of the first layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.ctr.settings import ModelSettings
from headrace.errors import ConfigError
from headrace.stream.features import Features
from headrace.stream.schema import Field
from headrace.tensors import Array

LEVEL = "level"
"""The input of a request that says how sure an interval shall be."""


class Missing(NamedTuple):
    """Makes the flags.

    Attributes:
        edges: Where each vector starts and ends among the dense columns.
    """

    edges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, settings: ModelSettings, features: Features) -> Missing | None:
        """What makes the flags of a model; None where it has none.

        Args:
            settings: What the model is.
            features: The layout of the rows that it is given.
        """
        edges, column = [], 0
        for field in features.numeric:
            if field.role == "vector":
                edges.append((column, column + field.size))
            column += field.size
        return cls(tuple(edges)) if edges and settings.kind == "mdn" else None

    def flag(self, dense: Array) -> Array:
        """Dense features with the flags behind them, 1 for a vector of zeros.

        Args:
            dense: float32 ``[rows, dense_width]``.

        Returns:
            float32 ``[rows, dense_width + vectors]``.
        """
        width = dense.shape[1]
        made = np.empty((len(dense), width + len(self.edges)), np.float32)
        made[:, :width] = dense
        for number, (start, end) in enumerate(self.edges):
            made[:, width + number] = ~dense[:, start:end].any(axis=1)
        return made


def check_names(settings: ModelSettings, features: Features) -> None:
    """Check that no field has a name that an mdn needs.

    Raises:
        ConfigError: One has.
    """
    if settings.kind == "mdn" and any(
        one.name == LEVEL for one in (*features.categorical, *features.numeric)
    ):
        raise ConfigError(f"schema: {LEVEL!r} is what asks an mdn for an interval; rename the field")


def flagged(settings: ModelSettings, features: Features) -> Features:
    """The layout of dense features with the flags, as the weights of a model see it.

    Args:
        settings: What the model is.
        features: The layout of the rows that it is given.

    Raises:
        ConfigError: A field has the name of a flag.
    """
    if Missing.of(settings, features) is None:
        return features
    flags = []
    for field in features.numeric:
        if field.role == "vector":
            name = f"{field.name} (missing)"
            if name in features.schema.by_name:
                raise ConfigError(
                    f"schema: {name!r} is what an mdn calls a flag of its own; rename the field"
                )
            flags.append(Field(name=name, role="dense"))
    return Features(features.schema, features.categorical, (*features.numeric, *flags))
