"""Contents from a feature table: the text that one of its columns has of each key."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.archive.catalog import SpaceRecord, partition
from headrace.archive.columns import TEXT, Column, column_values
from headrace.archive.contents import TableColumn
from headrace.archive.keys import all_stored
from headrace.archive.records import joined
from headrace.errors import FailedPrecondition, instead
from headrace.stores.store import Store


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
