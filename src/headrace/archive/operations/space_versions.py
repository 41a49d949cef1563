"""Versions of a space: moving its default, dropping a version that no model needs, and reading a whole one.

Moving the default is refused if lookups would lose keys by it, unless the caller accepts that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.archive.history.history import past_partition
from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.writes import are_stored
from headrace.archive.model.catalog import SpaceRecord, SpaceVersion, partition, without, without_rest
from headrace.archive.model.keys import is_digest
from headrace.archive.model.records import HEAD, Form, joined
from headrace.base.errors import (
    ConfigError,
    FailedPrecondition,
    InvalidRequest,
    LoadError,
    TooLarge,
    listed,
    shown,
)
from headrace.base.tensors import Array
from headrace.storage.stores.store import Store, pages
from headrace.versions.layout import MANIFEST_FILE
from headrace.versions.manifest import read_manifest, space_versions

MOST_COUNTED = 1000
"""Number of missing keys at which counting stops, approximately."""

_PAGE = 1000


@dataclass(frozen=True)
class Lacking:
    """Keys of one version of a space that another one lacks.

    Attributes:
        keys: Number of keys; from ``MOST_COUNTED`` on a lower bound.
        example: One of them; "" if there is none, or if it is too long to show.
    """

    keys: int = 0
    example: str = ""

    def describe(self, of: int) -> str:
        """Describe the missing keys in words.

        Args:
            of: Number of the version that has the keys.
        """
        least = "at least " if self.keys >= MOST_COUNTED else ""
        such = f", such as {shown(self.example)}" if self.example else ""
        plural = "key" if self.keys == 1 else "keys"
        return f"{least}{self.keys:,} {plural} of version {of}{such}"


def lacking(archive: Archive, space: str, older: SpaceVersion, newer: SpaceVersion) -> Lacking:
    """Return the keys of an older version that a newer one lacks.

    Reads all keys, but stops once about ``MOST_COUNTED`` are missing.

    Raises:
        Unavailable: The store does not answer.
    """
    found, example = 0, ""
    for page in pages(archive.store, partition(space, older.number), limit=_PAGE):
        absent = _absent(archive, space, newer, list(dict.fromkeys(page.keys)))
        gone = set(_absent(archive, space, older, absent))  # expired, or removed meanwhile
        lost = [key for key in absent if key not in gone]
        found += len(lost)
        if not example:
            example = next((key.decode(errors="replace") for key in lost if not is_digest(key)), "")
        if found >= MOST_COUNTED:
            break
    return Lacking(found, example)


def has_keys(archive: Archive, space: str, version: SpaceVersion) -> bool:
    """Return whether a version has any value.

    Raises:
        Unavailable: The store does not answer.
    """
    return any(
        len(_absent(archive, space, version, page.keys)) < len(page.keys)
        for page in pages(archive.store, partition(space, version.number), limit=_PAGE)
    )


def lost_by_moving(archive: Archive, space: str, record: SpaceRecord, number: int) -> Lacking:
    """Return the keys that lookups would lose if another version became the default.

    A default that was never full, because its first load did not finish, counts as having no keys.

    Raises:
        Unavailable: The store does not answer.
    """
    present, wanted = record.version(record.default), record.version(number)
    if present is None or wanted is None or number == record.default or not present.is_full:
        return Lacking()
    return lacking(archive, space, present, wanted)


def move_default(archive: Archive, space: str, number: int, *, may_lose: bool) -> SpaceRecord:
    """Change the version used by lookups that name none.

    Args:
        archive: The archive.
        space: Name of the space.
        number: Version number.
        may_lose: Whether the version may lack keys of the present default.

    Returns:
        The record as it is now.

    Raises:
        NotFound: There is no such space or version.
        FailedPrecondition: The version lacks keys.
        Unavailable: The store does not answer.
    """
    archive.reader(space, number)
    record = archive.catalog.read(space)
    if not may_lose and (lost := lost_by_moving(archive, space, record, number)).keys:
        raise FailedPrecondition(
            f"version {number} of {space!r} lacks {lost.describe(record.default)}; version {record.default} "
            "stays the default. Fill the other version first, or accept missing keys with --fewer-keys"
        )
    return archive.catalog.move_default(space, number)


def _absent(archive: Archive, space: str, version: SpaceVersion, keys: Sequence[bytes]) -> list[bytes]:
    """Return the keys, in their stored form, that have no value in a version."""
    there = are_stored(archive.store, partition(space, version.number), version.form, keys)
    return [key for key, is_there in zip(keys, there, strict=True) if not is_there]


# Dropping a version removes its vectors, its past, and its dead letters.

_DEPTH = 3  # DIR/NAME/NUMBER, and one level more
_NAMED = 10
_LETTERS = 1000


def check_unneeded(space: str, number: int, directories: Sequence[Path]) -> int:
    """Refuse to drop a space version that versions of models were trained on.

    Args:
        space: Name of the space.
        number: Version number.
        directories: Directories of models; all versions below them count.

    Returns:
        Number of model versions checked.

    Raises:
        FailedPrecondition: Some model versions need it, or cannot be read; the error names them.
        ConfigError: A directory does not exist, or is not empty and contains no models.
    """
    looked_at, needing, unclear = 0, list[str](), list[str]()
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"--models: {directory} is not a directory")
        before = looked_at
        for version in _with_manifest(directory, _DEPTH):
            looked_at += 1
            try:
                if space_versions(read_manifest(version)).get(space) == number:
                    needing.append(str(version))
            except LoadError as error:
                unclear.append(f"{version}: {error.message}")
        if looked_at == before and any(directory.iterdir()):
            raise ConfigError(
                f"--models: expected models published by headrace, found none below {directory}; name the "
                "directory that they are served from, or an empty directory if there are none"
            )
    if needing:
        raise FailedPrecondition(
            f"version {number} of the space {space!r} is needed: {listed(needing, _NAMED)} "
            f"{'was' if len(needing) == 1 else 'were'} trained on it; remove these first"
        )
    if unclear:
        raise FailedPrecondition(
            f"cannot determine whether version {number} of the space {space!r} is needed: "
            f"{listed(unclear, _NAMED)}; repair or remove the models that cannot be read"
        )
    return looked_at


def drop_version(archive: Archive, space: str, number: int) -> None:
    """Remove a space version with everything kept of it.

    The version is first removed from the catalog, so that lookups no longer find it, and then from the store.
    After a crash, call it again. Fillers acknowledge messages that ask for the version.

    Args:
        archive: The archive.
        space: Name of the space.
        number: Version number.

    Raises:
        NotFound: There is no such space or version.
        FailedPrecondition: It is the default.
        Unavailable: The store does not answer; try again.
    """
    archive.record(space)  # raises if there is no such space
    archive.catalog.change(space, lambda record: without(record, number))
    for where in (partition(space, number), past_partition(space, number)):
        archive.store.drop(where)
    letters = []
    for letter in archive.dead_letters.all(space):
        if letter.version == number:
            letters.append(letter)
        if len(letters) == _LETTERS:
            archive.dead_letters.remove(letters)
            letters = []
    archive.dead_letters.remove(letters)
    archive.catalog.change(space, lambda record: without_rest(record, number))


def _with_manifest(directory: Path, depth: int) -> Iterator[Path]:
    """Yield directories that have a manifest, up to ``depth`` levels down; also unfinished versions."""
    try:
        with os.scandir(directory) as entries:
            names = sorted((one.name, one.is_dir()) for one in entries)
    except OSError as error:
        raise FailedPrecondition(f"--models: {directory} cannot be read: {error.strerror}") from error
    if (MANIFEST_FILE, False) in names:
        yield directory
    elif depth:
        for name, is_directory in names:
            if is_directory:
                yield from _with_manifest(directory / name, depth - 1)


# A whole version is read into memory for similarity search: all vectors, as they are stored.

MOST_BYTES = 16 * 1024**3
"""Default limit for the size of all vectors of a space version."""

_MOST_KEYS_A_PAGE = 2000
_PAGE_BYTES = 16 * 1024 * 1024

Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Whole:
    """All vectors of a space version.

    Attributes:
        space: Name of the space.
        version: Version number.
        keys: Keys of the vectors, in the store's order.
        vectors: Stored vectors, ``[N, dimension]``: float32, float16 or int8.
        scales: Scale of each int8 vector, float32 ``[N]``; None for floats.
    """

    space: str
    version: int
    keys: list[str]
    vectors: Array
    scales: Array | None


def read_whole(
    archive: Archive,
    space: str,
    version: int = 0,
    *,
    most_bytes: int = MOST_BYTES,
    progress: Progress | None = None,
) -> Whole:
    """Read all vectors of a space version from the store.

    Vectors that are stored or forgotten meanwhile may be included or not.

    Args:
        archive: The archive.
        space: Name of the space.
        version: Version number; 0 for the default.
        most_bytes: Limit in bytes for the stored records.
        progress: Called now and then with the number of vectors read.

    Raises:
        NotFound: There is no such space or version.
        InvalidRequest: The space is a feature table.
        TooLarge: The vectors exceed ``most_bytes``.
        Unavailable: The store does not answer.
    """
    reader = archive.reader(space, version)
    if reader.version.columns:
        raise InvalidRequest(f"expected vectors, got the feature table {space!r}", field="space")
    form, number = reader.version.form, reader.version.number
    keys: list[str] = []
    read: list[Array] = []
    for texts, records in _pages(archive.store, partition(space, number), form):
        keys += texts
        read.append(records)
        if len(keys) * form.record_bytes > most_bytes:
            raise TooLarge(
                f"expected at most {most_bytes} bytes of vectors, but the first {len(keys)} keys of "
                f"{space!r} have more",
                field="space",
            )
        if progress is not None:
            progress(len(keys))
    scales = None
    if form.dtype == "int8":
        scales = np.concatenate([_heads(page)["scale"] for page in read] or [np.zeros(0, np.float32)])
    return Whole(space, number, keys, _vectors(read, form), scales)


def _pages(store: Store, where: str, form: Form) -> Iterator[tuple[list[str], Array]]:
    """Yield pages of keys that have a vector, with their records; no key twice."""
    seen: set[bytes] = set()
    limit = max(1, min(_MOST_KEYS_A_PAGE, _PAGE_BYTES // form.record_bytes))
    for page in pages(store, where, limit=limit):
        new = [key for key in dict.fromkeys(page.keys) if key not in seen]
        seen.update(new)
        values = store.get_many(where, new, form.missing)
        records = joined(values, form)
        there = np.flatnonzero(form.are_records(records))
        yield [_text(new[row], values[row], form) for row in there.tolist()], records[there]


def _text(key: bytes, value: bytes, form: Form) -> str:
    """Return the key as callers know it; a long key is stored after its vector."""
    whole = value[form.record_bytes :] if is_digest(key) else key
    return whole.decode(errors="replace")


def _heads(records: Array) -> Array:
    heads: Array = records[:, : HEAD.itemsize].view(HEAD)[:, 0]
    return heads


def _vectors(pages: list[Array], form: Form) -> Array:
    """Return the numbers of all records; each page is released once it is copied."""
    dtype = np.dtype(np.int8) if form.dtype == "int8" else form.answered
    made = np.empty((sum(map(len, pages)), form.dimension), dtype)
    start = 0
    for place, page in enumerate(pages):
        made[start : start + len(page)] = page[:, HEAD.itemsize :].view(dtype.newbyteorder("<"))
        start += len(page)
        pages[place] = page[:0]
    return made
