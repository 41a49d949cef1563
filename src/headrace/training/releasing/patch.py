"""A version as a patch: only the rows whose bits differ from a whole version that is there already.

Which rows those are is found by comparing with the base's files at publication, so that learning keeps no
books. What is compared is what would be stored. So a patch of quantized tables holds the rows whose numbers
changed, and the scales that did, as rows of their own array: on its base it gives the whole version, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from headrace.ctr.files.arrays import write_array
from headrace.ctr.files.description import Base, Description, StoredArray, arrays_of, file_name
from headrace.ctr.files.reading import read_description, read_model
from headrace.ctr.files.writing import write_description
from headrace.ctr.interfaces import Weights
from headrace.errors import LoadError
from headrace.tensors import Array
from headrace.versions.manifest import check_manifest

LARGEST_SHARE = 0.5
"""A patch larger than this share of the whole version is not worth the base that it needs."""

_CHUNK_BYTES = 2**22  # two of these fit into a core's caches
_INDEX_BYTES = 4


@dataclass(frozen=True)
class Whole:
    """A whole version that patches may lie on.

    Attributes:
        number: The version.
        description: What its ``model.ctr`` says.
        weights: Its weights.
        checksums: The SHA-256 of its files, by name, as its manifest lists them and as they are.
    """

    number: int
    description: Description
    weights: Weights
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class Patch:
    """What turns a base into another version.

    Attributes:
        base: The base's number.
        description: What ``model.ctr`` will say.
        rows: The numbers of the rows that changed, by array, where only rows are stored: uint32.
        size_bytes: The size of the arrays that it stores.
        whole_bytes: The size of the arrays that a whole version would store.
    """

    base: int
    description: Description
    rows: Mapping[str, Array]
    size_bytes: int
    whole_bytes: int

    @property
    def worth_it(self) -> bool:
        """Whether it is small enough."""
        return self.size_bytes <= LARGEST_SHARE * self.whole_bytes


def base_of(version_directory: Path) -> int | None:
    """The version that a version is a patch of; None if it is whole, or no click model that can be read."""
    try:
        base = read_description(version_directory).base
    except LoadError:
        return None
    return None if base is None else int(base.version)


def choose_base(bases: Mapping[int, int | None], whole_every: int) -> int | None:
    """Decide which version the next one can be a patch of.

    Args:
        bases: All versions, each with the version that it is a patch of, or None.
        whole_every: Of so many versions in a row, at least one is whole.

    Returns:
        The number; None if the next version is to be whole.
    """
    if not bases:
        return None
    newest = max(bases)
    base = bases[newest]
    base = newest if base is None else base
    if base not in bases or bases[base] is not None:
        return None
    since = sum(number > base for number in bases)
    return base if since + 1 < whole_every else None


def open_base(model_directory: Path, number: int) -> Whole | None:
    """Open a version to compare with.

    Args:
        model_directory: Where the model's versions are.
        number: The version.

    Returns:
        The version; None if it is gone, damaged, a patch itself, or has no manifest.
    """
    directory = model_directory / str(number)
    try:
        manifest = check_manifest(directory, but=lambda _: True)  # they are, as they are read
        description = read_description(directory)
        if manifest is None or description.base is not None:
            return None
        checksums = {name: record.sha256 for name, record in manifest.files.items()}
        weights = read_model(directory, checksums)[2]
    except LoadError:
        return None
    return Whole(number, description, weights, checksums)


def find_patch(base: Whole, description: Description, arrays: Mapping[str, Array]) -> Patch | None:
    """Compare a version that is to be with one that is there.

    Args:
        base: The version to compare with.
        description: The new version, described as a whole one.
        arrays: Its arrays by name.

    Returns:
        The patch; None if there can be none, because the base is of another model.
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
        directory: Where to.
        patch: What ``find_patch`` has found.
        arrays: The arrays that it was found for.

    Raises:
        OSError: It cannot be written.
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
    """The rows in which two arrays of one shape and dtype differ in a bit: uint32, ascending."""
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
    """How an array is stored in a patch, its rows that changed, and how many bytes it takes."""
    changed = changed_rows(array, old)
    row_bytes = array.nbytes // max(len(array), 1)
    size = len(changed) * (row_bytes + _INDEX_BYTES)
    if not len(changed):
        return msgspec.structs.replace(whole, stored="base"), changed, 0
    if size < array.nbytes and len(array) <= np.iinfo(np.uint32).max:
        return msgspec.structs.replace(whole, stored="rows"), changed, size
    return whole, changed, array.nbytes
