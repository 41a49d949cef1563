"""Patches: versions that store only the rows whose bits differ from an existing whole version.

The changed rows are found by comparison with the base's files at publication, so learning need not track
changes. Arrays are compared as stored. So a patch of quantized tables holds the rows whose integers
changed, and the scales that changed, as rows of their own array. Applied to its base, a patch yields the
whole version bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from headrace.base.errors import LoadError
from headrace.base.tensors import Array
from headrace.ctr.click_model import Weights
from headrace.ctr.files.arrays import write_array
from headrace.ctr.files.model_files import (
    Base,
    FileDescription,
    StoredArray,
    arrays_of,
    file_name,
    read_description,
    read_model,
    write_description,
)
from headrace.versions.manifest import check_manifest

LARGEST_SHARE = 0.5
"""Largest size of a patch as a share of the whole version; if it is larger, a whole version is published."""

_CHUNK_BYTES = 2**22  # two of these fit into a core's caches
_INDEX_BYTES = 4


@dataclass(frozen=True)
class Whole:
    """A whole version that can be the base of patches.

    Attributes:
        number: Number of the version.
        description: Contents of its ``model.ctr``.
        weights: Its weights.
        checksums: SHA-256 of its files, by name, from its manifest; verified.
    """

    number: int
    description: FileDescription
    weights: Weights
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class Patch:
    """The difference between a base and another version.

    Attributes:
        base: Number of the base.
        description: Contents of the patch's ``model.ctr``.
        rows: Numbers of the changed rows, by array, for arrays of which only rows are stored: uint32.
        size_bytes: Size of the stored arrays in bytes.
        whole_bytes: Size of the arrays of a whole version in bytes.
    """

    base: int
    description: FileDescription
    rows: Mapping[str, Array]
    size_bytes: int
    whole_bytes: int

    @property
    def worth_it(self) -> bool:
        """Whether the patch is small enough to publish."""
        return self.size_bytes <= LARGEST_SHARE * self.whole_bytes


def base_of(version_directory: Path) -> int | None:
    """Return the base of a version; None if it is whole, or not a readable click model."""
    try:
        base = read_description(version_directory).base
    except LoadError:
        return None
    return None if base is None else int(base.version)


def choose_base(bases: Mapping[int, int | None], whole_every: int) -> int | None:
    """Choose the base of the next version.

    Args:
        bases: The base of each existing version, or None if it is whole.
        whole_every: At least one of this many consecutive versions is whole.

    Returns:
        The base's number; None if the next version must be whole.
    """
    if not bases:
        return None
    newest = max(bases)
    base = bases[newest]
    base = newest if base is None else base
    if base not in bases or bases[base] is not None:
        return None
    # By number, because the versions in between may have been deleted.
    return base if newest + 1 - base < whole_every else None


def open_base(model_directory: Path, number: int) -> Whole | None:
    """Open a version as a base.

    Args:
        model_directory: Directory of the model's versions.
        number: Number of the version.

    Returns:
        The version; None if it is missing, damaged, a patch itself, or has no manifest.
    """
    directory = model_directory / str(number)
    try:
        manifest = check_manifest(directory, but=lambda _: True)  # read_model checks the files
        description = read_description(directory)
        if manifest is None or description.base is not None:
            return None
        checksums = {name: record.sha256 for name, record in manifest.files.items()}
        weights = read_model(directory, checksums)[2]
    except LoadError:
        return None
    return Whole(number, description, weights, checksums)


def find_patch(base: Whole, description: FileDescription, arrays: Mapping[str, Array]) -> Patch | None:
    """Compute the patch from a base to a new version.

    Args:
        base: The base.
        description: Description of the new version as a whole one.
        arrays: Arrays of the new version, by name.

    Returns:
        The patch; None if the base is of another model, or its manifest lacks a file that is needed.
    """
    if base.description != description:
        return None
    stored, rows, size, old = {}, {}, 0, arrays_of(base.weights)
    for name, array in arrays.items():
        stored[name], changed, taken = _stored(description.arrays[name], array, old[name])
        size += taken
        if stored[name].stored == "rows":
            rows[name] = changed
    used = [file_name(name) for name, one in stored.items() if one.stored != "whole"]
    if not base.checksums.keys() >= set(used):
        return None
    lies_on = Base(version=str(base.number), files={file: base.checksums[file] for file in used})
    patched = msgspec.structs.replace(description, arrays=stored, base=lies_on)
    return Patch(base.number, patched, rows, size, sum(array.nbytes for array in arrays.values()))


def write_patch(directory: Path, patch: Patch, arrays: Mapping[str, Array]) -> None:
    """Write a patch into an empty directory.

    Args:
        directory: The directory.
        patch: Result of ``find_patch``.
        arrays: The arrays passed to ``find_patch``.

    Raises:
        OSError: A file cannot be written.
    """
    for name, stored in patch.description.arrays.items():
        if stored.stored == "whole":
            write_array(directory / file_name(name), arrays[name])
        elif stored.stored == "rows":
            rows = patch.rows[name]
            write_array(directory / file_name(name, ".rows"), rows)
            write_array(directory / file_name(name, ".values"), arrays[name][rows])
    write_description(directory, patch.description)


def changed_rows(new: Array, old: Array) -> Array:
    """Return the rows in which two arrays of one shape and dtype differ bitwise: uint32, ascending."""
    row_bytes = new[0].nbytes if len(new) else 0
    if row_bytes == 0:
        return np.zeros(0, np.uint32)
    word = next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)
    dtype, step = np.dtype(f"u{word}"), max(1, _CHUNK_BYTES // row_bytes)
    found = []
    for start in range(0, len(new), step):
        pair = [one[start : start + step].reshape(-1).view(dtype) for one in (new, old)]
        differs = (pair[0] != pair[1]).reshape(-1, row_bytes // word)
        found.append(np.flatnonzero(differs.any(axis=1)) + start)
    return np.concatenate(found).astype(np.uint32)


def _stored(whole: StoredArray, array: Array, old: Array) -> tuple[StoredArray, Array, int]:
    """Return the storage of an array in a patch, its changed rows, and its stored size in bytes."""
    changed = changed_rows(array, old)
    row_bytes = array.nbytes // max(len(array), 1)
    size = len(changed) * (row_bytes + _INDEX_BYTES)
    if not len(changed):
        return msgspec.structs.replace(whole, stored="base"), changed, 0
    if size < array.nbytes and len(array) <= np.iinfo(np.uint32).max:
        return msgspec.structs.replace(whole, stored="rows"), changed, size
    return whole, changed, array.nbytes
