"""Flags for missing vectors in an mdn, one for each vector field.

A vector of zeros counts as missing: null in a stream is read as zeros, an input omitted from a request is
zeros, and no encoder produces them. So neither streams nor requests need a marker of their own. The model
learns the effect of a missing vector in the flag's linear weight and its row of the first layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.block import Features
from headrace.stream.schema import Field

LEVEL = "level"
"""Name of the request input that sets an interval's confidence level."""


class Missing(NamedTuple):
    """The vectors of a model that have flags.

    Attributes:
        edges: First column and end of each vector among the dense columns.
    """

    edges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, settings: ModelSettings, features: Features) -> Missing | None:
        """Return the flagged vectors of a model, or None if it has none.

        Args:
            settings: The model's settings.
            features: Layout of the model's rows.
        """
        edges, column = [], 0
        for field in features.numeric:
            if field.role == "vector":
                edges.append((column, column + field.size))
            column += field.size
        return cls(tuple(edges)) if edges and settings.kind == "mdn" else None

    def flag(self, dense: Array) -> Array:
        """Append the flags to dense features: 1 for a vector of zeros, else 0.

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
    """Check that no field has a name that an mdn reserves.

    Raises:
        ConfigError: A field has a reserved name.
    """
    if settings.kind == "mdn" and any(
        one.name == LEVEL for one in (*features.categorical, *features.numeric)
    ):
        raise ConfigError(
            f"schema: {LEVEL!r} is reserved by an mdn for requesting an interval; rename the field"
        )


def flagged(settings: ModelSettings, features: Features) -> Features:
    """Return the layout of a model's weights, which has the flags after the dense features.

    Args:
        settings: The model's settings.
        features: Layout of the model's rows.

    Raises:
        ConfigError: A field has the name of a flag.
    """
    if Missing.of(settings, features) is None:
        return features
    flags = []
    for field in features.numeric:
        if field.role == "vector":
            name = flag_name(field.name)
            if name in features.schema.by_name:
                raise ConfigError(
                    f"schema: {name!r} is reserved by an mdn for a flag of its own; rename the field"
                )
            flags.append(Field(name=name, role="dense"))
    return Features(features.schema, features.categorical, (*features.numeric, *flags))


def flag_name(field: str) -> str:
    """Return the name of the dense feature that flags rows in which a vector is missing."""
    return f"{field} (missing)"
