"""Contents from a feature table: the texts of one of its columns, by key.

A table that was never loaded delays only the spaces whose contents come from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from headrace.archive.filling.pooled_embedder import DependencyUnavailable
from headrace.archive.model.archive_toml import TableColumn
from headrace.archive.model.catalog import SpaceRecord, partition
from headrace.archive.model.columns import TEXT, Column, column_values
from headrace.archive.model.keys import all_stored
from headrace.archive.model.records import joined
from headrace.base.errors import FailedPrecondition, instead
from headrace.storage.stores.store import Store

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


class TableTexts:
    """Texts of a table as contents, for use from any number of threads.

    Attributes:
        name: Space whose contents they are.
        table: Name of the table.
        trouble: Description of the current fault, if texts were asked for; "" for none.
    """

    def __init__(
        self, space: str, source: TableColumn, store: Store, record: Callable[[str], SpaceRecord]
    ) -> None:
        """Read nothing yet.

        Args:
            space: Space whose contents they are.
            source: The column.
            store: Store of the table.
            record: Returns the record of a space or table, as this process knows it.
        """
        self.name, self.table, self.trouble = space, source.table, ""
        self._source, self._store, self._record = source, store, record
        self._was_missed = False

    def of(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the texts of keys; None for a key without a row.

        Raises:
            DependencyUnavailable: The table has no rows yet, or no such text column.
            Unavailable: The store does not answer.
        """
        record = self._record(self.table)
        if text_column(record, self._source) is None:
            self._was_missed = True
            raise DependencyUnavailable(self)
        return texts_of(self._store, record, self._source, keys)

    def may_be_asked(self, now: float) -> bool:
        """Return whether the table has such a text column, as far as this process knows.

        Args:
            now: Not used.
        """
        return text_column(self._record(self.table), self._source) is not None

    @property
    def due(self) -> float:
        """Time of the next look, on the monotonic clock: shortly after now, as the table may be loaded."""
        return time.monotonic() + _LOOK_SECONDS

    def look(self) -> None:
        """Log when keys start and stop waiting for the table."""
        record, before = self._record(self.table), self.trouble
        if text_column(record, self._source) is not None:
            self._was_missed, self.trouble = False, ""
            if before:
                _log.warning("the keys of the space %r no longer wait: %r is loaded", self.name, self.table)
        elif self._was_missed:
            reason = missing_column_reason(record, self._source)
            self.trouble = f"the keys of the space {self.name!r} wait: {reason}"
            if self.trouble != before:
                _log.warning("%s", self.trouble)


def texts_of(
    store: Store, record: SpaceRecord, source: TableColumn, keys: Sequence[str]
) -> list[bytes | None]:
    """Return the texts of keys as stored now; None for a key without a row.

    Args:
        store: Store of the table.
        record: Record of the table, whose default version is read.
        source: The column.
        keys: Checked keys.

    Raises:
        FailedPrecondition: The table has no rows yet, or no such text column.
        Unavailable: The store does not answer.
    """
    version = record.version(record.default)
    column = text_column(record, source)
    if version is None or column is None:
        raise FailedPrecondition(missing_column_reason(record, source))
    form = version.form
    values = store.get_many(partition(source.table, version.number), all_stored(keys), form.missing)
    records = joined(values, form)
    texts = column_values(column, version.columns, form.decode(records)).tolist()
    there = form.are_records(records).tolist()
    return [text if is_there else None for text, is_there in zip(texts, there, strict=True)]


def text_column(record: SpaceRecord, source: TableColumn) -> Column | None:
    """Return the column of the contents in a table's default version; None if it has no such text column."""
    version = record.version(record.default)
    columns = version.columns if version is not None else ()
    return next((one for one in columns if one.name == source.column and one.dtype == TEXT), None)


def missing_column_reason(record: SpaceRecord, source: TableColumn) -> str:
    """Describe why a source has no text column, and the remedy."""
    version = record.version(record.default)
    if version is None:
        return f"the table {source.table!r} has no rows yet; headrace archive load {source.table} FILE"
    texts = instead(source.column, [one.name for one in version.columns if one.dtype == TEXT])
    has = f"the table {source.table!r} has no text column {source.column!r} in version {version.number}"
    return f"{has}; {texts}"
