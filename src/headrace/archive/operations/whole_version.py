"""All vectors of a space version in memory, as they are stored, for similarity search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.catalog import partition
from headrace.archive.model.keys import is_digest
from headrace.archive.model.records import HEAD, Form, joined
from headrace.base.errors import InvalidRequest, TooLarge
from headrace.base.tensors import Array
from headrace.storage.stores.store import Store, pages

MOST_BYTES = 16 * 1024**3
"""Default limit for the size of all vectors of a space version."""

_MOST_KEYS_A_PAGE = 2000
_PAGE_BYTES = 16 * 1024 * 1024

Told = Callable[[int], object]


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
    archive: Archive, space: str, version: int = 0, *, most_bytes: int = MOST_BYTES, told: Told | None = None
) -> Whole:
    """Read all vectors of a space version from the store.

    Vectors that are stored or forgotten meanwhile may be included or not.

    Args:
        archive: The archive.
        space: Name of the space.
        version: Version number; 0 for the default.
        most_bytes: Limit in bytes for the stored records.
        told: Called now and then with the number of vectors read.

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
        if told is not None:
            told(len(keys))
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
