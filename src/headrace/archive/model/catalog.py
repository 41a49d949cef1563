"""The catalog: the versions of each space, and its default, as a small record in the store.

All processes of an archive follow it. It is changed by compare-and-swap only, so that no two processes create
the same version or undo each other's changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np

from headrace.archive.model.archive_toml import LARGEST_DIMENSION
from headrace.archive.model.columns import Column, row_dtype
from headrace.archive.model.records import DTYPES, ROW, Form
from headrace.base.errors import ConfigError, Conflict, FailedPrecondition, HeadraceError, NotFound, listed
from headrace.base.format_numbers import check_format
from headrace.base.tensors import Array
from headrace.storage.stores.store import Store

FORMAT = 1
"""Format of a space's record, and of everything that the store keeps for the space: its vectors or rows,
their past, dead letters. Newer formats are not read."""

_MOST_TRIES = 50
_MOST_VERSIONS = 1000
_MOST_MOVES = 1000


class SpaceVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors that one version of an encoder made for a space; or the rows of a table, of one schema.

    Attributes:
        number: Version number, from 1; never reused.
        embedder: Name of the embedder in ``archive.toml``; "" if vectors come only from ``put``.
        fingerprint: Digest of the embedder's files and settings, or of a table's columns; "" for none.
        dimension: Numbers per vector; for a table, bytes per row.
        dtype: Stored dtype; ``row`` for a feature table.
        created: Time of creation, in seconds of Unix time.
        mean: Mean of its vectors, float32 in base64, if that is its OOV vector and there are enough vectors.
        is_full: Whether it has a vector for every key of the default, so that lookups that name no version
            may use it.
        columns: Columns of a feature table; empty for a space of vectors.
    """

    number: int
    embedder: str
    fingerprint: str
    dimension: int
    dtype: str
    created: float
    mean: str = ""
    is_full: bool = False
    columns: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields, which may come from a store that others write to.

        Raises:
            ValueError: They do not describe a version.
        """
        if not 0 < self.dimension <= LARGEST_DIMENSION or self.dtype not in DTYPES or self.number < 0:
            raise ValueError(f"not a space version: {self.number}, {self.dimension} × {self.dtype}")
        row_bytes = row_dtype(self.columns).itemsize if self.columns else 0
        if (self.dtype == ROW) != bool(self.columns) or row_bytes not in (0, self.dimension):
            raise ValueError(
                f"not a space version: {self.number}, {self.dimension} bytes for {row_bytes} of columns"
            )

    @property
    def form(self) -> Form:
        """Layout of its vectors."""
        return Form(self.dimension, self.dtype)


class SpaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """State of one space.

    Attributes:
        versions: Its versions, ascending.
        default: Version used by lookups that name none; 0 if there is none.
        last: Highest version number ever used.
        generation: Number of times that keys were invalidated or forgotten; after a change, processes clear
            their memory of the space.
        dropped: Versions that were dropped and are not yet removed completely.
        moves: Times at which versions became the default, in seconds of Unix time, with their numbers,
            ascending; the last thousand.
        format: Format of the record; see ``FORMAT``.
    """

    versions: tuple[SpaceVersion, ...] = ()
    default: int = 0
    last: int = 0
    generation: int = 0
    dropped: tuple[int, ...] = ()
    moves: tuple[tuple[float, int], ...] = ()
    format: int = FORMAT

    def defaults_at(self, times: Array) -> Array:
        """Return the default versions at given times.

        Args:
            times: Milliseconds of Unix time, uint64 ``[N]``.

        Returns:
            int64 ``[N]``; 0 before the first default.
        """
        since = np.array([int(at * 1000) for at, _ in self.moves], np.uint64)
        numbers = np.array([0, *(number for _, number in self.moves)], np.int64)
        found: Array = numbers[np.searchsorted(since, times, "right")]
        return found

    def is_gone(self, number: int) -> bool:
        """Return whether a version existed and was dropped."""
        return number <= self.last and self.version(number) is None

    def version(self, number: int) -> SpaceVersion | None:
        """Return a version by its number; None if there is no such version."""
        return next((one for one in self.versions if one.number == number), None)

    def made_by(self, fingerprint: str) -> SpaceVersion | None:
        """Return the newest version with a fingerprint; None if there is none."""
        return next((one for one in reversed(self.versions) if one.fingerprint == fingerprint), None)


NO_RECORD = SpaceRecord()


def with_version(record: SpaceRecord, version: SpaceVersion, *, is_loading: bool = False) -> SpaceRecord:
    """Return a record with one more version; the first version becomes the default, and is full.

    Args:
        record: The present record.
        version: The new version; its number is assigned here.
        is_loading: Whether even the first version is not full until ``with_default``.

    Raises:
        FailedPrecondition: The space has the largest number of versions.
    """
    if len(record.versions) >= _MOST_VERSIONS:
        raise FailedPrecondition(f"expected at most {_MOST_VERSIONS} versions of a space; drop old ones")
    number = record.last + 1
    new = msgspec.structs.replace(version, number=number, is_full=not record.versions and not is_loading)
    added = msgspec.structs.replace(record, versions=(*record.versions, new), last=number)
    if record.default:
        return added
    return msgspec.structs.replace(added, default=number, moves=_moved(record, number, version.created))


def with_default(record: SpaceRecord, number: int, at: float) -> SpaceRecord:
    """Return a record with another default version, which then counts as full.

    Args:
        record: The present record.
        number: The version.
        at: Time of the change, in seconds of Unix time.

    Raises:
        NotFound: There is no such version.
    """
    _version_of(record, number)
    versions = tuple(
        msgspec.structs.replace(one, is_full=True) if one.number == number else one for one in record.versions
    )
    moves = record.moves if number == record.default else _moved(record, number, at)
    return msgspec.structs.replace(record, versions=versions, default=number, moves=moves)


def _moved(record: SpaceRecord, number: int, at: float) -> tuple[tuple[float, int], ...]:
    return (*record.moves, (at, number))[-_MOST_MOVES:]


def without(record: SpaceRecord, number: int) -> SpaceRecord:
    """Return a record with a version moved to ``dropped``; the same record if it is there already.

    Raises:
        NotFound: There is no such version.
        FailedPrecondition: It is the default.
    """
    if number in record.dropped:
        return record
    _version_of(record, number)
    if number == record.default:
        raise FailedPrecondition(
            f"version {number} is the default; choose another default first: headrace archive default"
        )
    kept = tuple(one for one in record.versions if one.number != number)
    return msgspec.structs.replace(record, versions=kept, dropped=(*record.dropped, number))


def without_rest(record: SpaceRecord, number: int) -> SpaceRecord:
    """Return a record without a version in ``dropped``, once nothing is left of it."""
    return msgspec.structs.replace(record, dropped=tuple(one for one in record.dropped if one != number))


def with_forgotten(record: SpaceRecord) -> SpaceRecord:
    """Return a record that makes all processes clear the space from their memory."""
    return msgspec.structs.replace(record, generation=record.generation + 1)


def _version_of(record: SpaceRecord, number: int) -> SpaceVersion:
    found = record.version(number)
    if found is None:
        raise NotFound(f"no version {number} of the space; {describe_versions(record)}")
    return found


def describe_versions(record: SpaceRecord) -> str:
    """Return a sentence that lists the versions of a space."""
    if not record.versions:
        return "it has none"
    of = "version" if len(record.versions) == 1 else "versions"
    return f"it has {of} {listed(one.number for one in record.versions)}"


def partition(space: str, number: int) -> str:
    """Return the store partition of a space version."""
    return f"{space}_v{number}"


class Catalog:
    """The records of an archive's spaces."""

    def __init__(self, store: Store) -> None:
        """Read and write the records in a store."""
        self._store = store

    def read(self, space: str) -> SpaceRecord:
        """Return the record of a space; an empty one if there is none.

        Raises:
            Unavailable: The store does not answer.
            FailedPrecondition: A newer headrace wrote it.
            HeadraceError: It is damaged.
        """
        return self._decoded(space, self._store.read(_name(space)))

    def change(self, space: str, decide: Callable[[SpaceRecord], SpaceRecord]) -> SpaceRecord:
        """Change a record, by compare-and-swap against other processes.

        Args:
            space: Name of the space.
            decide: Returns the new record, given the present one; called again if that changed meanwhile.

        Returns:
            The record as it is now.

        Raises:
            Conflict: Other processes keep changing it.
            FailedPrecondition: A newer headrace wrote it.
            Unavailable: The store does not answer.
            HeadraceError: It is damaged, or ``decide`` refuses the change.
        """
        for _ in range(_MOST_TRIES):
            before = self._store.read(_name(space))
            record = self._decoded(space, before)
            wanted = decide(record)
            if wanted == record:
                return record
            if self._store.swap(_name(space), before, msgspec.json.encode(wanted)):
                return wanted
        raise Conflict(
            f"other processes changed the space {space!r} {_MOST_TRIES} times meanwhile; try again"
        )

    def move_default(self, space: str, number: int) -> SpaceRecord:
        """Make another version the default of a space, by compare-and-swap against other processes.

        Returns:
            The record as it is now.

        Raises:
            NotFound: There is no such version.
            Conflict: Other processes keep changing the record.
            Unavailable: The store does not answer.
        """
        return self.change(space, lambda record: with_default(record, number, time.time_ns() / 1e9))

    def _decoded(self, space: str, content: bytes | None) -> SpaceRecord:
        if content is None:
            return NO_RECORD
        check_format(content, FORMAT, f"the store's record of the space {space!r}", FailedPrecondition)
        try:
            return msgspec.json.decode(content, type=SpaceRecord)
        except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as error:
            raise HeadraceError(f"the store's record of the space {space!r} is damaged: {error}") from error


def _name(space: str) -> str:
    return f"space/{space}"
