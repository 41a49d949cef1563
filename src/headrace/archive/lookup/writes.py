"""Check values and write them to the store, and write tombstones for keys that are forgotten.

If a space has a history, its replaced values are kept. A tombstone tells fillers about a key that was
forgotten while it may have been queued or embedded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.archive.lookup.space_reader import SpaceReader
from headrace.archive.model.archive_toml import SpaceSettings
from headrace.archive.model.catalog import SpaceVersion, partition
from headrace.archive.model.columns import renumbered, row_dtype, rows_of
from headrace.archive.model.keys import all_stored, is_digest, stored
from headrace.archive.model.records import Form, joined
from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array
from headrace.storage.stores.store import Item, Store

if TYPE_CHECKING:
    from headrace.archive.history.history import Past

_PACKED_AT_ONCE_BYTES = 4 * 1024 * 1024


def size_of(key: object, longest: int) -> int:
    """Return a key's bytes of UTF-8; any number above ``longest`` if it is longer; 0 if it is not text."""
    if isinstance(key, str) and len(key) > longest:
        return len(key)
    try:
        return len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        return 0


def check_output_array(out: Array, keys: int, version: SpaceVersion) -> None:
    """Refuse an array that an answer cannot be written to.

    Raises:
        InvalidRequest: Its shape, dtype or flags are wrong.
    """
    form = version.form
    is_one = out.flags.c_contiguous and out.flags.writeable
    if out.shape != (keys, form.dimension) or out.dtype != form.answered or not is_one:
        expected = f"a writable C-contiguous array of {form.answered}, {[keys, form.dimension]}"
        raise InvalidRequest(f"expected {expected}, got {out.dtype}, {list(out.shape)}", field="out")


def checked_vectors(vectors: Array, keys: int, version: SpaceVersion) -> Array:
    """Return vectors as float32.

    Args:
        vectors: Numbers ``[keys, dimension]``.
        keys: Expected number of vectors.
        version: Space version to store them in.

    Raises:
        InvalidRequest: The numbers are not finite or of the wrong shape, or the space is a feature table.
    """
    if version.columns:
        raise InvalidRequest(
            "expected rows of columns, as for any feature table, got vectors", field="vectors"
        )
    vectors = np.asarray(vectors)
    if vectors.shape != (keys, version.dimension) or vectors.dtype.kind not in "fiu":
        expected = f"numbers {[keys, version.dimension]}"
        raise InvalidRequest(
            f"expected {expected}, got {vectors.dtype}, {list(vectors.shape)}", field="vectors"
        )
    with np.errstate(over="ignore"):
        vectors = vectors.astype(np.float32)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InvalidRequest("expected finite numbers of float32", field=f"vectors[{int(np.argmin(finite))}]")
    return vectors


def checked_rows(values: Mapping[str, Array], keys: int, version: SpaceVersion) -> Array:
    """Return the values of columns as rows, uint8 ``[keys, row bytes]``.

    Args:
        values: By column, each ``[keys]``.
        keys: Expected number of rows.
        version: Space version to store them in.

    Raises:
        InvalidRequest: The values do not fit the columns or the number of keys, or there are no columns.
    """
    if not version.columns:
        raise InvalidRequest(
            "expected vectors, as for any space that is not a feature table", field="columns"
        )
    step = max(1, _PACKED_AT_ONCE_BYTES // version.dimension)
    if keys <= step or {len(one) for one in values.values()} != {keys}:
        rows = rows_of(version.columns, values)
    else:  # in parts, so that wide rows and a copy of each column are not in memory together
        rows = np.empty(keys, row_dtype(version.columns))
        for start in range(0, keys, step):
            part = {name: one[start : start + step] for name, one in values.items()}
            try:
                rows[start : start + step] = rows_of(version.columns, part)
            except InvalidRequest as error:
                raise renumbered(error, start) from None
    if len(rows) != keys:
        raise InvalidRequest(
            f"expected {keys} values per column, one per key, got {len(rows)}", field="columns"
        )
    return rows.view(np.uint8).reshape(keys, version.dimension)


def check_not_fed(table: str, version: SpaceVersion) -> None:
    """Refuse a table whose rows are counted from a stream; a stored value would not be such a count.

    Raises:
        InvalidRequest: The table has windows.
    """
    if any(column.window for column in version.columns):
        problem = f"expected none, as {table!r} has windows; headrace archive feed counts them from a stream"
        raise InvalidRequest(problem, field="columns")


def checked_written(written: Array | None, keys: int) -> Array | None:
    """Return write times in milliseconds of Unix time, uint64 ``[keys]``; None for now.

    Raises:
        InvalidRequest: They are not such times.
    """
    if written is None:
        return None
    written = np.asarray(written)
    if written.shape != (keys,) or written.dtype.kind not in "iu" or (written <= 0).any():
        expected = f"milliseconds of Unix time, above 0, uint64 {[keys]}"
        raise InvalidRequest(
            f"expected {expected}, got {written.dtype} {list(written.shape)}", field="written"
        )
    return written.astype(np.uint64)


_TOMBSTONES = "forgotten"  # store partition
_KEPT_SECONDS = 30 * 86_400.0
_STAMP_BYTES = 8

CLOCKS_APART_SECONDS = 5.0
"""Largest assumed difference between two machines' clocks, when queue times and tombstones are compared."""


class Forgotten:
    """Times at which keys were forgotten. Fillers check them before embedding a key and after storing it.

    A queue may be unable to drop a key's message, and a filler may be making its vector. A tombstone holds a
    digest, not the key, for 30 days.
    """

    def __init__(self, store: Store) -> None:
        """Keep the tombstones in a store."""
        self._store = store

    def add(self, space: str, keys: Sequence[str], margin_seconds: float = 0.0) -> None:
        """Record that keys are forgotten now.

        Args:
            space: Name of the space.
            keys: The keys.
            margin_seconds: Messages queued up to this long after now also count as queued before.

        Raises:
            Unavailable: The store does not answer.
        """
        self._store.create(_TOMBSTONES)
        stamp = (time.time_ns() + int(margin_seconds * 1e9)).to_bytes(_STAMP_BYTES, "big")
        self._store.put_many(_TOMBSTONES, [Item(_name(space, key), stamp) for key in keys], _KEPT_SECONDS)

    def since(self, wanted: Sequence[tuple[str, str, float]]) -> list[bool]:
        """Return which keys were forgotten after they were queued.

        Args:
            wanted: Space, key, and queue time in seconds of Unix time.

        Raises:
            Unavailable: The store does not answer.
        """
        names = [_name(space, key) for space, key, _ in wanted]
        stamps = self._store.get_many(_TOMBSTONES, names)
        return [
            bool(stamp) and int.from_bytes(stamp, "big") >= queued * 1e9
            for stamp, (_, _, queued) in zip(stamps, wanted, strict=True)
        ]


def _name(space: str, key: str) -> bytes:
    digest = stored(f"{space}\0{key}".encode().ljust(480, b"\0"))
    return digest[-32:]


def are_stored(store: Store, where: str, form: Form, keys: Sequence[bytes]) -> list[bool]:
    """Return which keys, in their stored form, have a value of this form in a partition.

    Raises:
        Unavailable: The store does not answer.
    """
    if not keys:
        return []
    values = store.get_many(where, keys, form.missing)
    there: list[bool] = form.are_records(joined(values, form)).tolist()
    return there


class Writes:
    """The writes of one process."""

    def __init__(self, store: Store) -> None:
        """Write to a store."""
        self._store = store
        self._turn = threading.Lock()  # held from reading a value until it is replaced

    def past(self, reader: SpaceReader) -> Past:
        """Return the replaced values of a space version."""
        return self._past(reader.space, reader.version, reader.settings)

    def _past(self, space: str, version: SpaceVersion, settings: SpaceSettings) -> Past:
        from headrace.archive.history.history import Past  # noqa: PLC0415 - only where a space keeps its past

        return Past(self._store, space, version, settings)

    def store(self, reader: SpaceReader, keys: Sequence[str], records: Array, *, is_told: bool) -> None:
        """Store a small number of records.

        Args:
            reader: Reader of the space version.
            keys: Checked keys.
            records: uint8 ``[N, record bytes]``.
            is_told: Whether the caller gave the write times. If the space keeps its past, such a record does
                not replace one that was written later.

        Raises:
            Unavailable: The store does not answer.
        """
        if not reader.settings.history_seconds:
            self._put(reader, keys, records)
            return
        past = self.past(reader)
        with self._turn:
            rows, heads = past.keep(all_stored(keys), records, is_told=is_told)
            if rows:
                self._put(reader, [keys[row] for row in rows], records[rows])
            past.point(heads)

    def remove(
        self,
        space: str,
        version: SpaceVersion,
        settings: SpaceSettings,
        keys: Sequence[str],
        *,
        is_forgotten: bool,
    ) -> list[bool]:
        """Remove keys from the store.

        Args:
            space: Name of the space.
            version: The space version; it need not be served.
            settings: Settings of the space.
            keys: Checked keys.
            is_forgotten: Whether to remove their past values too.

        Returns:
            Which of them had a value that had not expired.

        Raises:
            Unavailable: The store does not answer.
        """
        stored, where = all_stored(keys), partition(space, version.number)
        with self._turn:
            were_there = are_stored(self._store, where, version.form, stored)
            if is_forgotten:
                self._past(space, version, settings).forget(stored)
            elif settings.history_seconds:
                past = self._past(space, version, settings)
                past.point(past.end(stored))
            self._store.delete_many(where, stored)
        return were_there

    def _put(self, reader: SpaceReader, keys: Sequence[str], records: Array) -> None:
        lines = [record.tobytes() for record in records]
        items = [
            Item(key, line + text.encode() if is_digest(key) else line)
            for key, line, text in zip(all_stored(keys), lines, keys, strict=True)
        ]
        where, epoch = partition(reader.space, reader.version.number), reader.epoch
        self._store.put_many(where, items, reader.settings.ttl_seconds)
        reader.cache_stored(keys, records, epoch)
