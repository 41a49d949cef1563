"""Moving a space's default to another version, and counting the keys that lookups would lose by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.writes import are_stored
from headrace.archive.model.catalog import SpaceRecord, SpaceVersion, partition
from headrace.archive.model.keys import is_digest
from headrace.base.errors import FailedPrecondition, shown
from headrace.storage.stores.store import pages

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

    def told(self, of: int) -> str:
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
            f"version {number} of {space!r} lacks {lost.told(record.default)}; version {record.default} "
            "stays the default. Fill the other version first, or accept missing keys with --fewer-keys"
        )
    return archive.catalog.move_default(space, number)


def _absent(archive: Archive, space: str, version: SpaceVersion, keys: Sequence[bytes]) -> list[bytes]:
    """Return the keys, in their stored form, that have no value in a version."""
    there = are_stored(archive.store, partition(space, version.number), version.form, keys)
    return [key for key, is_there in zip(keys, there, strict=True) if not is_there]
