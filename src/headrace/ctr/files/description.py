"""Contents of ``model.ctr``: a version's settings, its schema, and how each array is stored.

Each array is a plain ``.npy`` file in the same directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np

from headrace.base.errors import ConfigError, listed
from headrace.base.tensors import Array
from headrace.ctr.interfaces import Weights
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.array_shapes import expected_shapes
from headrace.ctr.tables import NO_SHIFT, Table
from headrace.stream.features import Features
from headrace.stream.schema import Schema

MODEL_FILE = "model.ctr"
"""File that describes the model as JSON; its presence identifies the runtime."""

FORMAT = 1
"""Version of the format that is written; newer versions are rejected on reading."""


VALUE_DTYPES: dict[str, np.dtype[np.generic]] = {
    "float32": np.dtype(np.float32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
}
"""Permitted dtypes of a table's values, by name."""

_T = TypeVar("_T")

Stored = Literal["whole", "rows", "base"]


class StoredArray(msgspec.Struct, frozen=True, kw_only=True):
    """Storage of one array.

    Attributes:
        dtype: NumPy's name of the element type.
        shape: Shape of the array.
        stored: ``whole``: in ``NAME.npy``; ``rows``: the base's, with the rows numbered in ``NAME.rows.npy``
            replaced by those in ``NAME.values.npy``; ``base``: the base's, unchanged.
    """

    dtype: str
    shape: tuple[int, ...]
    stored: Stored = "whole"


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The whole version that a patch is based on, in a directory beside the patch's.

    Attributes:
        version: Name of its directory, a number.
        files: SHA-256 of each of its files that the patch uses, in hexadecimal digits.
    """

    version: str
    files: dict[str, str]


class FileDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of ``model.ctr``.

    Attributes:
        settings: The model's settings.
        schema: Schema of the model's rows.
        arrays: Storage of each array, by name: ``table.linear``, ``table.linear.scales``, ``dense.bias``,
            ``keys.user``, …
        shifts: Base-2 logarithm of the rows that share a scale, by the table's name.
        base: The base of a patch; None for a whole version.
        format: Version of this format.
    """

    settings: ModelSettings
    schema: Schema
    arrays: dict[str, StoredArray]
    shifts: dict[str, int]
    base: Base | None = None
    format: int = FORMAT


def describe(settings: ModelSettings, features: Features, weights: Weights) -> FileDescription:
    """Return the description of a whole version.

    Raises:
        ConfigError: The weights do not fit the settings and features.
    """
    arrays = {
        name: StoredArray(dtype=array.dtype.name, shape=array.shape)
        for name, array in arrays_of(weights).items()
    }
    shifts = {name: table.shift for name, table in weights.tables.items()}
    description = FileDescription(settings=settings, schema=features.schema, arrays=arrays, shifts=shifts)
    wrong = mismatch(description, features)
    if wrong:
        raise ConfigError(f"the weights do not fit the model: {wrong}")
    return description


def arrays_of(weights: Weights) -> dict[str, Array]:
    """Return all arrays of a model, by their stored names."""
    arrays = {}
    for name, table in weights.tables.items():
        arrays[f"table.{name}"] = table.values
        arrays[f"table.{name}.scales"] = table.scales
    arrays |= {f"dense.{name}": array for name, array in weights.dense.items()}
    return arrays | {f"keys.{name}": array for name, array in weights.keys.items()}


def weights_of(arrays: Mapping[str, Array], shifts: Mapping[str, int]) -> Weights:
    """Build weights from stored arrays; the inverse of ``arrays_of``."""
    tables = {
        name: Table(arrays[f"table.{name}"], arrays[f"table.{name}.scales"], shift)
        for name, shift in shifts.items()
    }
    return Weights(tables=tables, dense=_below("dense.", arrays), keys=_below("keys.", arrays))


def file_name(name: str, suffix: str = "") -> str:
    """Return the name of the file that holds an array."""
    return f"{quote(name, safe=' ')}{suffix}.npy"


def _below(prefix: str, named: Mapping[str, _T]) -> dict[str, _T]:
    return {name.removeprefix(prefix): one for name, one in named.items() if name.startswith(prefix)}


def mismatch(description: FileDescription, features: Features) -> str:
    """Return the first fault in the arrays that a description lists, or "" for none."""
    arrays, shapes = description.arrays, expected_shapes(description.settings, features)
    tables = _below("table.", shapes)
    if description.shifts.keys() != tables.keys():
        return f"expected the tables {listed(sorted(tables))}, got {listed(sorted(description.shifts))}"
    for name, shape in tables.items():
        shift, values = description.shifts[name], arrays.get(f"table.{name}")
        if not 0 <= shift <= NO_SHIFT:
            return f"shifts: {name}: expected 0 to {NO_SHIFT}, got {shift}"
        if values is not None and values.dtype not in VALUE_DTYPES:
            return f"table.{name}: expected {listed(sorted(VALUE_DTYPES))}, got {values.dtype}"
        shapes[f"table.{name}.scales"] = (((shape[0] - 1) >> shift) + 1,)
    if arrays.keys() != shapes.keys():
        missing, more = shapes.keys() - arrays.keys(), arrays.keys() - shapes.keys()
        lacks, has = listed(sorted(missing)) or "nothing", listed(sorted(more)) or "nothing"
        return f"missing: {lacks}; not of this model: {has}"
    for name, shape in shapes.items():
        found = arrays[name]
        dtype = "uint64" if name.startswith("keys.") else "float32"
        dtype = found.dtype if name in _tables(tables) else dtype
        if (found.dtype, found.shape) != (dtype, shape):
            return f"{name}: expected {dtype} {list(shape)}, got {found.dtype} {list(found.shape)}"
        if found.stored != "whole" and description.base is None:
            return f"{name}: stored as {found.stored}, but base is missing"
    return ""


def _tables(names: Mapping[str, object]) -> set[str]:
    return {f"table.{name}" for name in names}
