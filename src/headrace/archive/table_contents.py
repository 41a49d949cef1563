"""Contents from a feature table: the text that one of its columns has of each key.

A table that was never loaded holds up the spaces whose contents come from it, and no others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from headrace.archive.catalog import SpaceRecord, partition
from headrace.archive.columns import TEXT, Column, column_values
from headrace.archive.contents import TableColumn
from headrace.archive.keys import all_stored
from headrace.archive.records import joined
from headrace.archive.suppliers import Away
from headrace.errors import FailedPrecondition, instead
from headrace.stores.store import Store

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


class TableTexts:
    """The texts of a table as fillers ask for them; for any number of threads.

    Attributes:
        name: The space whose contents they are.
        table: The table.
        trouble: What is wrong at present with what was asked for; "" for nothing.
    """

    def __init__(
        self, space: str, source: TableColumn, store: Store, record: Callable[[str], SpaceRecord]
    ) -> None:
        """Ask for nothing yet.

        Args:
            space: The space whose contents they are.
            source: Where they come from.
            store: Where the table is.
            record: What is decided about a space or table, as this process knows it.
        """
        self.name, self.table, self.trouble = space, source.table, ""
        self._source, self._store, self._record = source, store, record
        self._was_missed = False

    def of(self, keys: Sequence[str]) -> list[bytes | None]:
        """The texts of keys; None where there is no row.

        Raises:
            Away: The table has no rows yet, or no such column.
            Unavailable: The store does not answer.
        """
        record = self._record(self.table)
        if text_column(record, self._source) is None:
            self._was_missed = True
            raise Away(self)
        return texts_of(self._store, record, self._source, keys)

    def may_be_asked(self, now: float) -> bool:
        """Whether there are texts, as far as this process knows.

        Args:
            now: The time; it makes no difference.
        """
        return text_column(self._record(self.table), self._source) is not None

    @property
    def due(self) -> float:
        """When it is worth looking again, on the monotonic clock: somebody must load the table."""
        return time.monotonic() + _LOOK_SECONDS

    def look(self) -> None:
        """Say what is wrong once it is, and when it is over."""
        record, before = self._record(self.table), self.trouble
        if text_column(record, self._source) is not None:
            self._was_missed, self.trouble = False, ""
            if before:
                _log.warning("the keys of the space %r wait no longer: %r is loaded", self.name, self.table)
        elif self._was_missed:
            self.trouble = f"the keys of the space {self.name!r} wait: {told(record, self._source)}"
            if self.trouble != before:
                _log.warning("%s", self.trouble)


def texts_of(
    store: Store, record: SpaceRecord, source: TableColumn, keys: Sequence[str]
) -> list[bytes | None]:
    """The texts of keys, as the store has them now; None where there is no row yet.

    Args:
        store: Where the table is.
        record: Its versions; the default one is read.
        source: Which column.
        keys: Checked texts.

    Raises:
        FailedPrecondition: The table has no rows yet, or no such column: somebody must load one.
        Unavailable: The store does not answer.
    """
    version = record.version(record.default)
    column = text_column(record, source)
    if version is None or column is None:
        raise FailedPrecondition(told(record, source))
    form = version.form
    values = store.get_many(partition(source.table, version.number), all_stored(keys), form.missing)
    records = joined(values, form)
    texts = column_values(column, version.columns, form.decode(records)).tolist()
    there = form.are_records(records).tolist()
    return [text if is_there else None for text, is_there in zip(texts, there, strict=True)]


def text_column(record: SpaceRecord, source: TableColumn) -> Column | None:
    """The column that contents come from, of a table's default version; None if that has no such texts."""
    version = record.version(record.default)
    columns = version.columns if version is not None else ()
    return next((one for one in columns if one.name == source.column and one.dtype == TEXT), None)


def told(record: SpaceRecord, source: TableColumn) -> str:
    """What is wrong with a source that there is no text column of, and the way out."""
    version = record.version(record.default)
    if version is None:
        return f"the table {source.table!r} has no rows yet; headrace archive load {source.table} FILE"
    texts = instead(source.column, [one.name for one in version.columns if one.dtype == TEXT])
    has = f"the table {source.table!r} has no text column {source.column!r} in version {version.number}"
    return f"{has}; {texts}"
