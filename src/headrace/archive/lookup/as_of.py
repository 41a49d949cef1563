"""Lookups as of a time in the past, for training with the values that were served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.archive.history.history import Past
from headrace.archive.lookup.space_reader import Lookup, SpaceReader
from headrace.archive.model.keys import all_stored, checked
from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array

_MOST_AT_ONCE = 10_000


@dataclass(slots=True, eq=False)
class PastLookup(Lookup):
    """Result of a lookup as of given times.

    Attributes:
        lost: Whether there was, or may have been, a value that is no longer kept, bool ``[N]``; the vector is
            then the OOV vector.
    """

    lost: Array = field(kw_only=True)


def look_back(
    reader: SpaceReader, past: Past, keys: Sequence[str], times: Array, exact: Array | None
) -> PastLookup:
    """Return what lookups of keys answered.

    Args:
        reader: Reader of the space version.
        past: Its replaced values.
        keys: The keys, any number.
        times: Times of the lookups in milliseconds of Unix time, uint64 ``[N]``.
        exact: Write times of the values that were answered, uint64 ``[N]``, 0 for none; None if unknown.

    Raises:
        InvalidRequest: A key is not text, empty, or too long; or the number of times differs.
        Unavailable: The store does not answer.
    """
    texts = checked(keys, max(1, len(keys)))
    reader.cache.hashes(texts, reader.settings.max_key_bytes)  # raises for an invalid key
    times = _as_times(times, len(texts), "times")
    exact = None if exact is None else _as_times(exact, len(texts), "written")
    form, oov = reader.version.form, reader.cache.oov
    vectors = np.empty((len(texts), form.dimension), form.answered)
    written, lost = np.zeros(len(texts), np.uint64), np.zeros(len(texts), np.bool_)
    vectors[:] = oov
    for start in range(0, len(texts), _MOST_AT_ONCE):
        some = slice(start, start + _MOST_AT_ONCE)
        found = past.at(all_stored(texts[some]), times[some], None if exact is None else exact[some])
        there = start + np.flatnonzero(found.written)
        vectors[there] = form.decode(found.records[found.written != 0])
        written[some], lost[some] = found.written, found.lost
    version = reader.version
    return PastLookup(vectors, written, version.number, version.columns, oov=oov, lost=lost)


def _as_times(times: Array, rows: int, field_name: str) -> Array:
    times = np.asarray(times)
    if times.shape != (rows,) or times.dtype.kind not in "ui":
        expected = f"{rows} whole numbers, milliseconds of Unix time"
        raise InvalidRequest(f"expected {expected}, got {times.dtype}, {list(times.shape)}", field=field_name)
    return times.astype(np.uint64)
