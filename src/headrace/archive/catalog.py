"""The catalog: which versions a space has, and which one is its default; a small record in the store.

All processes of an archive go by it. It is changed by compare-and-swap only: no two processes make one
version twice, or undo what another has done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np

from headrace.archive.columns import Column, row_dtype
from headrace.archive.config import LARGEST_DIMENSION
from headrace.archive.records import DTYPES, ROW, Form
from headrace.errors import ConfigError, Conflict, FailedPrecondition, HeadraceError, NotFound, listed
from headrace.formats import check_format
from headrace.stores.store import Store
from headrace.tensors import Array

FORMAT = 1
"""The format of a space's record, and with it of all that the store keeps of the space: its vectors or rows,
their past, dead letters; newer ones are not read."""

_MOST_TRIES = 50
_MOST_VERSIONS = 1000
_MOST_MOVES = 1000


class SpaceVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of one space that one version of an encoder made; the rows of a table of one schema.

    Attributes:
        number: From 1; never given again.
        embedder: What made them, by its name in ``archive.toml``; "" where they only come by ``put``.
        fingerprint: What that embedder's files and settings are, or a table's columns; "" for none.
        dimension: How many numbers a vector has; how many bytes a row has.
        dtype: How they are stored; ``row`` for a feature table.
        created: When it was made, in seconds of Unix time.
        mean: The mean of its vectors, float32 in base64, where that is its out-of-vocabulary vector and there
            are enough of them.
        is_full: Whether it has a vector of every key that the default had; bare lookups may go to it.
        columns: Those of a feature table; none of a space of vectors.
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
        """Check what may come from a store, which others write to.

        Raises:
            ValueError: It is no version.
        """
        if not 0 < self.dimension <= LARGEST_DIMENSION or self.dtype not in DTYPES or self.number < 0:
            raise ValueError(f"no space version: {self.number}, {self.dimension} × {self.dtype}")
        row_bytes = row_dtype(self.columns).itemsize if self.columns else 0
        if (self.dtype == ROW) != bool(self.columns) or row_bytes not in (0, self.dimension):
            raise ValueError(
                f"no space version: {self.number}, {self.dimension} bytes for {row_bytes} of columns"
            )

    @property
    def form(self) -> Form:
        """How its vectors lie."""
        return Form(self.dimension, self.dtype)


class SpaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided about one space.

    Attributes:
        versions: Those that there are, ascending.
        default: Which of them bare lookups are answered from; 0 if there is none.
        last: The highest number that was ever given.
        generation: Counts how often keys were forgotten; who sees it change forgets what it keeps in memory.
        dropped: Versions that are there no more, of which not all is removed yet.
        moves: Since when which version has been the default, in seconds of Unix time, ascending; the newest
            thousand.
        format: The version of this format.
    """

    versions: tuple[SpaceVersion, ...] = ()
    default: int = 0
    last: int = 0
    generation: int = 0
    dropped: tuple[int, ...] = ()
    moves: tuple[tuple[float, int], ...] = ()
    format: int = FORMAT

    def defaults_at(self, times: Array) -> Array:
        """Which versions were the default at some times.

        Args:
            times: Milliseconds of Unix time, uint64 ``[N]``.

        Returns:
            int64 ``[N]``; 0 where there was none yet.
        """
        since = np.array([int(at * 1000) for at, _ in self.moves], np.uint64)
        numbers = np.array([0, *(number for _, number in self.moves)], np.int64)
        found: Array = numbers[np.searchsorted(since, times, "right")]
        return found

    def is_gone(self, number: int) -> bool:
        """Whether there was such a version, and is no more."""
        return number <= self.last and self.version(number) is None

    def version(self, number: int) -> SpaceVersion | None:
        """A version by its number, if it is there."""
        return next((one for one in self.versions if one.number == number), None)

    def made_by(self, fingerprint: str) -> SpaceVersion | None:
        """The newest version that an embedder of this fingerprint made."""
        return next((one for one in reversed(self.versions) if one.fingerprint == fingerprint), None)


NO_RECORD = SpaceRecord()


def with_version(record: SpaceRecord, version: SpaceVersion, *, is_loading: bool = False) -> SpaceRecord:
    """A record with one more version; the first one is the default, and full.

    Args:
        record: As it was.
        version: The new one; its number is given here.
        is_loading: Whether even the first one is not full until somebody says so, by ``with_default``.

    Raises:
        FailedPrecondition: It has as many as it can have.
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
    """A record whose bare lookups go to another version, which counts as full from then on.

    Args:
        record: As it was.
        number: The version.
        at: When that is decided, in seconds of Unix time.

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
    """A record with one version fewer, of which the rest is still to be removed; as it is where that is so.

    Raises:
        NotFound: There is no such version.
        FailedPrecondition: It is the default.
    """
    if number in record.dropped:
        return record
    _version_of(record, number)
    if number == record.default:
        raise FailedPrecondition(
            f"version {number} is the default; move that first, by headrace archive default"
        )
    kept = tuple(one for one in record.versions if one.number != number)
    return msgspec.structs.replace(record, versions=kept, dropped=(*record.dropped, number))


def without_rest(record: SpaceRecord, number: int) -> SpaceRecord:
    """A record of a space where nothing is left of a version that was dropped."""
    return msgspec.structs.replace(record, dropped=tuple(one for one in record.dropped if one != number))


def with_forgotten(record: SpaceRecord) -> SpaceRecord:
    """A record that tells all processes to forget what they keep in memory."""
    return msgspec.structs.replace(record, generation=record.generation + 1)


def _version_of(record: SpaceRecord, number: int) -> SpaceVersion:
    found = record.version(number)
    if found is None:
        raise NotFound(f"no version {number} of the space; {versions_told(record)}")
    return found


def versions_told(record: SpaceRecord) -> str:
    """Which versions a space has, in words."""
    if not record.versions:
        return "it has none"
    of = "version" if len(record.versions) == 1 else "versions"
    return f"it has {of} {listed(one.number for one in record.versions)}"


def partition(space: str, number: int) -> str:
    """Where the vectors of a space version are in the store."""
    return f"{space}_v{number}"


class Catalog:
    """The records of an archive's spaces."""

    def __init__(self, store: Store) -> None:
        """Read and write them in a store."""
        self._store = store

    def read(self, space: str) -> SpaceRecord:
        """The record of a space; an empty one if nothing was ever decided.

        Raises:
            Unavailable: The store does not answer.
            FailedPrecondition: A newer headrace wrote it.
            HeadraceError: What stands there is no such record.
        """
        return self._decoded(space, self._store.read(_name(space)))

    def change(self, space: str, decide: Callable[[SpaceRecord], SpaceRecord]) -> SpaceRecord:
        """Change a record, whoever else changes it meanwhile.

        Args:
            space: Its space.
            decide: Gives what it should be, from what it is; called again when that has changed.

        Returns:
            What it is now.

        Raises:
            Conflict: Others change it all the time.
            FailedPrecondition: A newer headrace wrote it.
            Unavailable: The store does not answer.
        """
        for _ in range(_MOST_TRIES):
            before = self._store.read(_name(space))
            record = self._decoded(space, before)
            wanted = decide(record)
            if wanted == record:
                return record
            if self._store.swap(_name(space), before, msgspec.json.encode(wanted)):
                return wanted
        raise Conflict(f"others have changed the space {space!r} {_MOST_TRIES} times meanwhile; try again")

    def move_default(self, space: str, number: int) -> SpaceRecord:
        """Have bare lookups of a space go to another version from now on, whoever else changes it meanwhile.

        Returns:
            What the record is now.

        Raises:
            NotFound: There is no such version.
            Conflict: Others change it all the time.
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
