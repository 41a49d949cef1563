"""Files of click models: ``model.ctr``, its writer, and the reader, which checks descriptions and checksums.

``model.ctr`` describes a version: its settings, its schema, and how each array is stored. Each array is a
plain ``.npy`` file in the same directory. Large arrays are mapped from sealed copies
(``headrace.sealed_memory``); versions share copies of equal content. A version may be a patch: some of its
arrays are those of a whole version in the directory beside it, with some rows replaced; see
``headrace.training.releasing.patch``.

No file is a pickle. Every shape and dtype is checked against the settings here, because the kernels do not
check.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np

from headrace.base.errors import ConfigError, LoadError, listed
from headrace.base.files import read_file
from headrace.base.format_numbers import check_number
from headrace.base.tensors import Array
from headrace.ctr.click_model import NO_SHIFT, Table, Weights
from headrace.ctr.files.arrays import (
    MissingFile,
    Replaced,
    WrongChecksum,
    load_array,
    read_shape,
    write_array,
)
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.model_arrays import expected_shapes
from headrace.stream.block import Features
from headrace.stream.schema import FORMAT as SCHEMA_FORMAT
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


def write_model(directory: Path, settings: ModelSettings, features: Features, weights: Weights) -> None:
    """Write a whole version into an empty directory; ``training.releasing.publishing`` makes it visible.

    Args:
        directory: The directory.
        settings: The model's settings.
        features: Layout of the model's rows.
        weights: The model's weights; tables may be quantized.

    Raises:
        ConfigError: The weights do not fit the settings and features.
        OSError: A file cannot be written.
    """
    description = describe(settings, features, weights)
    for name, array in arrays_of(weights).items():
        write_array(directory / file_name(name), array)
    write_description(directory, description)


def write_description(directory: Path, description: FileDescription) -> None:
    """Write ``model.ctr``.

    Raises:
        OSError: The file cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(description), indent=2)
    (directory / MODEL_FILE).write_bytes(text + b"\n")


UNLISTED = "is read, and the manifest does not list it; publish the version again"
"""Error text for a file that is read but not listed in the manifest."""

_WAY_OUT = "publish a whole version"

LARGEST_DESCRIPTION_BYTES = 2**24
"""Size limit of ``model.ctr`` in bytes."""


def read_model(
    directory: Path, checksums: Mapping[str, str] | None = None
) -> tuple[ModelSettings, Features, Weights]:
    """Load the model of a version directory. Later changes to its files have no effect.

    The arrays are writable, but writes do not reach the files: a written page becomes private to the process.
    (So they have the same type in numba as arrays that learn, and share their compiled kernels.)

    Args:
        directory: The version directory. A patch's base is expected beside it.
        checksums: SHA-256 of each file, by name, from the manifest. Each file that is read must be listed.
            None without a manifest.

    Returns:
        The model's settings, the layout of its rows, and its weights.

    Raises:
        LoadError: A file is missing, damaged or not listed, does not fit the settings, or holds a weight that
            is not finite. Or a patch's base is not the one that it was made from, or memory is exhausted.
    """
    description = _description(_content(directory), checksums)
    try:
        features = Features.of(description.schema)
    except ConfigError as error:
        raise LoadError(f"{MODEL_FILE}: {error.message}") from error
    wrong = mismatch(description, features)
    if wrong:
        raise LoadError(f"{MODEL_FILE}: {wrong}")
    version = _Files(directory, checksums)
    base = None if description.base is None else _Base(directory, description.base)
    arrays = {name: _load(version, base, name, stored) for name, stored in description.arrays.items()}
    return description.settings, features, weights_of(arrays, description.shifts)


def read_description(directory: Path) -> FileDescription:
    """Read ``model.ctr``.

    Raises:
        LoadError: The file is missing, not a description, or of a newer format.
    """
    return _description(_content(directory), None)


def _content(directory: Path) -> bytes:
    try:
        return read_file(directory / MODEL_FILE, LARGEST_DESCRIPTION_BYTES)
    except OSError as error:
        raise LoadError(f"{MODEL_FILE} cannot be read: {error.strerror}") from error


def _description(content: bytes, checksums: Mapping[str, str] | None) -> FileDescription:
    if checksums is not None and checksums.get(MODEL_FILE) != hashlib.sha256(content).hexdigest():
        wrong = "does not have the checksum that is listed for it; publish the version again"
        raise LoadError(f"{MODEL_FILE} {wrong if MODEL_FILE in checksums else UNLISTED}")
    try:
        header = msgspec.json.decode(content, type=_Header)
        check_number(header.format, FORMAT, MODEL_FILE)
        check_number(header.schema.format, SCHEMA_FORMAT, f"{MODEL_FILE}: schema")
        description = msgspec.json.decode(content, type=FileDescription)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise LoadError(f"{MODEL_FILE}: not a model's description: {error}") from error
    except ConfigError as error:
        raise LoadError(f"{MODEL_FILE}: {error.message}") from error
    base = description.base
    if base is not None and not re.fullmatch(r"[0-9]{1,19}", base.version):
        raise LoadError(f"{MODEL_FILE}: base.version: expected a version's number, got {base.version!r}")
    return description


class _SchemaHeader(msgspec.Struct, frozen=True):
    format: int = 1


class _Header(msgspec.Struct):
    format: int
    schema: _SchemaHeader = _SchemaHeader()


@dataclass(frozen=True, slots=True)
class _Files:
    """A version's directory and the checksums of its files.

    Attributes:
        directory: The directory.
        checksums: SHA-256 of each file, by name; None to skip the check.
        unlisted: Error text for a file that is not in ``checksums``.
    """

    directory: Path
    checksums: Mapping[str, str] | None
    unlisted: str = UNLISTED

    def load(self, file: str, dtype: str, shape: tuple[int, ...], replaced: Replaced | None = None) -> Array:
        return load_array(self.directory / file, (dtype, shape), self.checksum(file), replaced)

    def checksum(self, file: str) -> str | None:
        if self.checksums is None:
            return None
        if file not in self.checksums:
            raise LoadError(f"{file} {self.unlisted}")
        return self.checksums[file]


def _load(version: _Files, base: _Base | None, name: str, stored: StoredArray) -> Array:
    file = file_name(name)
    if stored.stored == "whole" or base is None:
        return version.load(file, stored.dtype, stored.shape)
    replaced = _replaced(version, name, stored) if stored.stored == "rows" else None
    return base.load(file, stored.dtype, stored.shape, replaced)


def _replaced(version: _Files, name: str, stored: StoredArray) -> Replaced:
    """Load the rows of a base's array that a patch replaces."""
    file = file_name(name, ".rows")
    (count,) = read_shape(version.directory / file, 1)
    rows = version.load(file, "uint32", (count,))
    values = version.load(file_name(name, ".values"), stored.dtype, (count, *stored.shape[1:]))
    if rows.size and int(rows.max()) >= stored.shape[0]:
        raise LoadError(f"{file}: row {rows.max()} is out of range for a table of {stored.shape[0]}")
    return Replaced(rows, values)


class _Base:
    """The base of a patch; each file must have the checksum that the patch recorded."""

    def __init__(self, directory: Path, base: Base) -> None:
        there = directory.parent / base.version
        self._what = f"{MODEL_FILE}: a patch of version {base.version}, "
        if not there.is_dir():
            raise LoadError(f"{self._what}which does not exist; restore it, or {_WAY_OUT}")
        self._files = _Files(there, base.files, f"is not listed in base.files; {_WAY_OUT}")

    def load(self, file: str, dtype: str, shape: tuple[int, ...], replaced: Replaced | None) -> Array:
        try:
            return self._files.load(file, dtype, shape, replaced)
        except MissingFile as error:
            missing = f"whose {file} is missing; restore it, or {_WAY_OUT}"
            raise LoadError(f"{self._what}{missing}") from error
        except WrongChecksum as error:
            raise LoadError(
                f"{self._what}whose {file} is not the one that the patch was made from; {_WAY_OUT}"
            ) from error
        except LoadError as error:
            raise LoadError(f"{self._what}which cannot be loaded: {error.message}") from error
