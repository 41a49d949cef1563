"""Writes values that lookups find; keeps the replaced ones if the space has a history."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.archive.lookup.space_reader import SpaceReader
from headrace.archive.model.archive_toml import SpaceSettings
from headrace.archive.model.catalog import SpaceVersion, partition
from headrace.archive.model.keys import all_stored, is_digest
from headrace.archive.model.records import Form, joined
from headrace.base.tensors import Array
from headrace.storage.stores.store import Item, Store

if TYPE_CHECKING:
    from headrace.archive.history.history import Past


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
        self._turn = threading.Lock()  # no write between reading a value and replacing it

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
        reader.took(keys, records, epoch)
