"""Reads a version of a click model: checked against its description, and against its manifest's checksums.

Large arrays are mapped from sealed copies (``headrace.sealed``); versions share those of equal content. A
version may be a patch: then some arrays are those of a whole version that lies beside it, with some of their
rows replaced; see ``headrace.training.releasing.patch``.

Nothing here is a pickle, and every shape and dtype is checked against the settings before a kernel, which
does not check, reads it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.ctr.files.arrays import MissingFile, Replaced, WrongChecksum, load_array, read_shape
from headrace.ctr.files.description import (
    FORMAT,
    MODEL_FILE,
    Base,
    Description,
    StoredArray,
    file_name,
    mismatch,
    weights_of,
)
from headrace.ctr.interfaces import Weights
from headrace.ctr.settings import ModelSettings
from headrace.disk import read_file
from headrace.errors import ConfigError, LoadError
from headrace.formats import check_number
from headrace.stream.features import Features
from headrace.stream.schema import FORMAT as SCHEMA_FORMAT
from headrace.tensors import Array

UNLISTED = "is read, and the manifest does not list it; publish the version again"
"""What is wrong with a file that no manifest vouches for."""

_WAY_OUT = "publish a whole version"

LARGEST_DESCRIPTION_BYTES = 2**24
"""The largest ``model.ctr`` that is read."""


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
    wrong = mismatch(description, features)
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
        check_number(header.format, FORMAT, MODEL_FILE)
        check_number(header.schema.format, SCHEMA_FORMAT, f"{MODEL_FILE}: schema")
        description = msgspec.json.decode(content, type=Description)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # a ValueError: not UTF-8
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
    """Where arrays are read from, and what they must be.

    Attributes:
        directory: Where they lie.
        checksums: What each file that is read must have; None where nothing is said about it.
        unlisted: What is wrong with a file that is read and has no checksum.
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
    """The rows of a base's array that a patch replaces."""
    file = file_name(name, ".rows")
    (count,) = read_shape(version.directory / file, 1)
    rows = version.load(file, "uint32", (count,))
    values = version.load(file_name(name, ".values"), stored.dtype, (count, *stored.shape[1:]))
    if rows.size and int(rows.max()) >= stored.shape[0]:
        raise LoadError(f"{file}: row {rows.max()} is beyond the table's {stored.shape[0]}")
    return Replaced(rows, values)


class _Base:
    """The version that a patch lies on; its files are those that the patch was made from, to the bit."""

    def __init__(self, directory: Path, base: Base) -> None:
        there = directory.parent / base.version
        self._what = f"{MODEL_FILE}: a patch of version {base.version}, "
        if not there.is_dir():
            raise LoadError(f"{self._what}which is not there; bring it back, or {_WAY_OUT}")
        self._files = _Files(there, base.files, f"is not listed in base.files; {_WAY_OUT}")

    def load(self, file: str, dtype: str, shape: tuple[int, ...], replaced: Replaced | None) -> Array:
        try:
            return self._files.load(file, dtype, shape, replaced)
        except MissingFile as error:
            missing = f"whose {file} is not there; bring it back, or {_WAY_OUT}"
            raise LoadError(f"{self._what}{missing}") from error
        except WrongChecksum as error:
            raise LoadError(
                f"{self._what}whose {file} is not the one it was made from; {_WAY_OUT}"
            ) from error
        except LoadError as error:
            raise LoadError(f"{self._what}in it: {error.message}") from error
