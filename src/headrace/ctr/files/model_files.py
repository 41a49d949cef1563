"""Files of click models: the writer, and the reader, which checks descriptions and checksums.

Large arrays are mapped from sealed copies (``headrace.sealed_memory``); versions share copies of equal
content. A version may be a patch: some of its arrays are those of a whole version in the directory beside it,
with some rows replaced; see ``headrace.training.releasing.patch``.

No file is a pickle. Every shape and dtype is checked against the settings here, because the kernels do not
check.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.base.errors import ConfigError, LoadError
from headrace.base.files import read_file
from headrace.base.format_numbers import check_number
from headrace.base.tensors import Array
from headrace.ctr.files.arrays import (
    MissingFile,
    Replaced,
    WrongChecksum,
    load_array,
    read_shape,
    write_array,
)
from headrace.ctr.files.description import (
    FORMAT,
    MODEL_FILE,
    Base,
    FileDescription,
    StoredArray,
    arrays_of,
    describe,
    file_name,
    mismatch,
    weights_of,
)
from headrace.ctr.interfaces import Weights
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.features import Features
from headrace.stream.schema import FORMAT as SCHEMA_FORMAT


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
