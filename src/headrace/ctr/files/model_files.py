"""The files of a version of a click model: ``model.ctr`` describes it; each array is a plain ``.npy`` file.

Large arrays are mapped from sealed copies (``headrace.sealed``); versions share those of equal content. A
version may be a patch: then some arrays are those of a whole version that lies beside it, with some of their
rows replaced; see ``headrace.training.releasing.patch``.

Nothing here is a pickle, and every shape and dtype is checked against the settings before a kernel, which
does not check, reads it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np

from headrace.ctr.files.arrays import MissingFile, WrongChecksum, load_array, read_shape, write_array
from headrace.ctr.interfaces import Weights
from headrace.ctr.settings import DEEP, ModelSettings
from headrace.ctr.tables import NO_SHIFT, Table
from headrace.disk import read_file
from headrace.errors import ConfigError, LoadError
from headrace.stream.features import Features
from headrace.stream.schema import Schema
from headrace.tensors import Array

MODEL_FILE = "model.ctr"
"""Describes the model, as JSON; what the runtime is recognised by."""

FORMAT = 1
"""The format that is written; newer ones are not read."""

UNLISTED = "is read, and the manifest does not list it; publish the version again"
"""What is wrong with a file that no manifest vouches for."""

_WAY_OUT = "publish a whole version"

LARGEST_DESCRIPTION_BYTES = 2**24
"""The largest ``model.ctr`` that is read."""

VALUE_DTYPES: dict[str, np.dtype[np.generic]] = {
    "float32": np.dtype(np.float32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
}
"""What a table's values may be."""

_T = TypeVar("_T")

Stored = Literal["whole", "rows", "base"]


class StoredArray(msgspec.Struct, frozen=True, kw_only=True):
    """How one array is stored.

    Attributes:
        dtype: NumPy's name of the element type.
        shape: Its shape.
        stored: ``whole``: in ``NAME.npy``; ``rows``: the base's, with the rows whose numbers are in
            ``NAME.rows.npy`` replaced by those in ``NAME.values.npy``; ``base``: the base's as it is.
    """

    dtype: str
    shape: tuple[int, ...]
    stored: Stored = "whole"


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The whole version that a patch starts from; it lies beside the patch's.

    Attributes:
        version: Its directory's name, a number.
        files: The SHA-256 of those of its files that are used, in hexadecimal digits.
    """

    version: str
    files: dict[str, str]


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What ``model.ctr`` says.

    Attributes:
        settings: The model.
        schema: The rows that it is for.
        arrays: How each array is stored, by name: ``table.linear``, ``table.linear.scales``, ``dense.bias``,
            ``keys.user``, …
        shifts: For each table, by name, the base-2 logarithm of the rows that share a scale.
        base: What it is a patch of; None for a whole version.
        format: The version of this format.
    """

    settings: ModelSettings
    schema: Schema
    arrays: dict[str, StoredArray]
    shifts: dict[str, int]
    base: Base | None = None
    format: int = FORMAT


def write_model(directory: Path, settings: ModelSettings, features: Features, weights: Weights) -> None:
    """Write a whole version into an empty directory; ``training.releasing.publishing`` makes it appear.

    Args:
        directory: Where to.
        settings: The model.
        features: The layout of the rows that it is for.
        weights: Its weights; tables may be quantized.

    Raises:
        ConfigError: The weights do not fit the settings and features.
        OSError: It cannot be written.
    """
    description = describe(settings, features, weights)
    for name, array in arrays_of(weights).items():
        write_array(directory / file_name(name), array)
    write_description(directory, description)


def describe(settings: ModelSettings, features: Features, weights: Weights) -> Description:
    """Describe a model as a whole version.

    Raises:
        ConfigError: The weights do not fit the settings and features.
    """
    arrays = {
        name: StoredArray(dtype=array.dtype.name, shape=array.shape)
        for name, array in arrays_of(weights).items()
    }
    shifts = {name: table.shift for name, table in weights.tables.items()}
    description = Description(settings=settings, schema=features.schema, arrays=arrays, shifts=shifts)
    wrong = _mismatch(description, features)
    if wrong:
        raise ConfigError(f"the weights do not fit the model: {wrong}")
    return description


def write_description(directory: Path, description: Description) -> None:
    """Write ``model.ctr``.

    Raises:
        OSError: It cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(description), indent=2)
    (directory / MODEL_FILE).write_bytes(text + b"\n")


def read_model(
    directory: Path, checksums: Mapping[str, str] | None = None
) -> tuple[ModelSettings, Features, Weights]:
    """Load the model of a version directory; what happens to its files afterwards changes nothing.

    The arrays can be written to, but nothing reaches the files: a page that is written to becomes the
    process's own. (So kernels take them for what arrays that learn are, and are not compiled once more.)

    Args:
        directory: The version directory. A patch's base is looked for beside it.
        checksums: The SHA-256 of its files, by name, as its manifest lists them: each file that is read must
            be listed. None without a manifest.

    Returns:
        What the model is, the layout of the rows that it is for, and its weights.

    Raises:
        LoadError: A file is missing, damaged or not listed, does not fit the settings, holds a weight that is
            no finite number, or a patch's base is not the one that it was made from; or there is no memory
            for it.
    """
    description = _description(_content(directory), checksums)
    try:
        features = Features.of(description.schema)
    except ConfigError as error:
        raise LoadError(f"{MODEL_FILE}: {error.message}") from error
    wrong = _mismatch(description, features)
    if wrong:
        raise LoadError(f"{MODEL_FILE}: {wrong}")
    version = _Files(directory, checksums)
    base = None if description.base is None else _Base(directory, description.base)
    arrays = {name: _load(version, base, name, stored) for name, stored in description.arrays.items()}
    return description.settings, features, weights_of(arrays, description.shifts)


def read_description(directory: Path) -> Description:
    """Read ``model.ctr``.

    Raises:
        LoadError: It is missing, is none, or is one of a newer format.
    """
    return _description(_content(directory), None)


def _content(directory: Path) -> bytes:
    try:
        return read_file(directory / MODEL_FILE, LARGEST_DESCRIPTION_BYTES)
    except OSError as error:
        raise LoadError(f"{MODEL_FILE} cannot be read: {error.strerror}") from error


def _description(content: bytes, checksums: Mapping[str, str] | None) -> Description:
    if checksums is not None and checksums.get(MODEL_FILE) != hashlib.sha256(content).hexdigest():
        wrong = "does not have the checksum that is listed for it; publish the version again"
        raise LoadError(f"{MODEL_FILE} {wrong if MODEL_FILE in checksums else UNLISTED}")
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.format > FORMAT:
            raise LoadError(f"{MODEL_FILE}: format {header.format} is newer than {FORMAT}; update headrace")
        description = msgspec.json.decode(content, type=Description)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # a ValueError: not UTF-8
        raise LoadError(f"{MODEL_FILE}: not a model's description: {error}") from error
    except ConfigError as error:
        raise LoadError(f"{MODEL_FILE}: {error.message}") from error
    base = description.base
    if base is not None and not re.fullmatch(r"[0-9]{1,19}", base.version):
        raise LoadError(f"{MODEL_FILE}: base.version: expected a version's number, got {base.version!r}")
    return description


class _Header(msgspec.Struct):
    format: int


def arrays_of(weights: Weights) -> dict[str, Array]:
    """All arrays of a model under the names that they are stored by."""
    arrays = {}
    for name, table in weights.tables.items():
        arrays[f"table.{name}"] = table.values
        arrays[f"table.{name}.scales"] = table.scales
    arrays |= {f"dense.{name}": array for name, array in weights.dense.items()}
    return arrays | {f"keys.{name}": array for name, array in weights.keys.items()}


def weights_of(arrays: Mapping[str, Array], shifts: Mapping[str, int]) -> Weights:
    """The weights that ``arrays_of`` has taken apart."""
    tables = {
        name: Table(arrays[f"table.{name}"], arrays[f"table.{name}.scales"], shift)
        for name, shift in shifts.items()
    }
    return Weights(tables=tables, dense=_below("dense.", arrays), keys=_below("keys.", arrays))


def file_name(name: str, suffix: str = "") -> str:
    """The name of the file that holds an array."""
    return f"{quote(name, safe=' ')}{suffix}.npy"


def _below(prefix: str, named: Mapping[str, _T]) -> dict[str, _T]:
    return {name.removeprefix(prefix): one for name, one in named.items() if name.startswith(prefix)}


@dataclass(frozen=True, slots=True)
class _Files:
    """Where arrays are read from, and what they must be.

    Attributes:
        directory: Where they lie.
        checksums: What each file that is read must have; None where nothing is said about it.
        unlisted: What is wrong with a file that is read and has no checksum.
    """

    directory: Path
    checksums: Mapping[str, str] | None
    unlisted: str = UNLISTED

    def load(self, file: str, dtype: str, shape: tuple[int, ...]) -> Array:
        return load_array(self.directory / file, (dtype, shape), self.checksum(file))

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
    array = base.load(file, stored.dtype, stored.shape)
    if stored.stored == "rows":
        _apply(version, name, array)
    return array


def _apply(version: _Files, name: str, array: Array) -> None:
    """Replace rows of a base's array."""
    file = file_name(name, ".rows")
    (count,) = read_shape(version.directory / file, 1)
    rows = version.load(file, "uint32", (count,))
    values = version.load(file_name(name, ".values"), array.dtype.name, (count, *array.shape[1:]))
    if rows.size and int(rows.max()) >= len(array):
        raise LoadError(f"{file}: row {rows.max()} is beyond the table's {len(array)}")
    array[rows] = values


class _Base:
    """The version that a patch lies on; its files are those that the patch was made from, to the bit."""

    def __init__(self, directory: Path, base: Base) -> None:
        there = directory.parent / base.version
        self._what = f"{MODEL_FILE}: a patch of version {base.version}, "
        if not there.is_dir():
            raise LoadError(f"{self._what}which is not there; bring it back, or {_WAY_OUT}")
        self._files = _Files(there, base.files, f"is not listed in base.files; {_WAY_OUT}")

    def load(self, file: str, dtype: str, shape: tuple[int, ...]) -> Array:
        try:
            return self._files.load(file, dtype, shape)
        except MissingFile as error:
            missing = f"whose {file} is not there; bring it back, or {_WAY_OUT}"
            raise LoadError(f"{self._what}{missing}") from error
        except WrongChecksum as error:
            raise LoadError(
                f"{self._what}whose {file} is not the one it was made from; {_WAY_OUT}"
            ) from error
        except LoadError as error:
            raise LoadError(f"{self._what}in it: {error.message}") from error


def expected_shapes(settings: ModelSettings, features: Features) -> dict[str, tuple[int, ...]]:
    """The shape of each array that a model of these settings has, by name, but for the tables' scales."""
    fields, inputs = len(features.categorical), features.dense_width
    wide = settings.kind in ("ffm", "deepffm")
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
        for layer, units in enumerate((*settings.hidden, 1)):
            shapes[f"dense.layer{layer}.weights"] = (inputs, units)
            shapes[f"dense.layer{layer}.bias"] = (units,)
            inputs = units
    exact = {field.table_name: field.buckets for field in features.categorical if field.keys == "exact"}
    return shapes | {f"keys.{name}": (buckets,) for name, buckets in exact.items()}


def _mismatch(description: Description, features: Features) -> str:
    """What is wrong with the arrays that a description lists, or ""."""
    arrays, shapes = description.arrays, expected_shapes(description.settings, features)
    tables = _below("table.", shapes)
    if description.shifts.keys() != tables.keys():
        return f"expected the tables {_listed(tables)}, got {_listed(description.shifts)}"
    for name, shape in tables.items():
        shift, values = description.shifts[name], arrays.get(f"table.{name}")
        if not 0 <= shift <= NO_SHIFT:
            return f"shifts: {name}: expected 0 to {NO_SHIFT}, got {shift}"
        if values is not None and values.dtype not in VALUE_DTYPES:
            return f"table.{name}: expected {_listed(VALUE_DTYPES)}, got {values.dtype}"
        shapes[f"table.{name}.scales"] = (((shape[0] - 1) >> shift) + 1,)
    if arrays.keys() != shapes.keys():
        missing, more = shapes.keys() - arrays.keys(), arrays.keys() - shapes.keys()
        return f"missing: {_listed(missing) or 'nothing'}; not of this model: {_listed(more) or 'nothing'}"
    for name, shape in shapes.items():
        found = arrays[name]
        dtype = "uint64" if name.startswith("keys.") else "float32"
        if found.shape != shape or (name not in _tables(tables) and found.dtype != dtype):
            return f"{name}: expected {dtype} {list(shape)}, got {found.dtype} {list(found.shape)}"
        if found.stored != "whole" and description.base is None:
            return f"{name}: stored as {found.stored}, but base is missing"
    return ""


def _tables(names: Mapping[str, object]) -> set[str]:
    return {f"table.{name}" for name in names}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
