"""Where the content of a key comes from: the key itself, an address with it, or a feature table."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from headrace.errors import ConfigError

KEY = "{key}"
"""What stands for the key in a template."""


TABLE = "table:"
"""What a content begins with that is a column of a feature table, as in ``table:films.title``."""


class TableColumn(NamedTuple):
    """A column of a feature table, whose texts are contents.

    Attributes:
        table: The table's name.
        column: The column's.
    """

    table: str
    column: str


def table_column(template: str) -> TableColumn | None:
    """The column that contents come from; None where they come from no table."""
    if not template.startswith(TABLE):
        return None
    table, _, column = template[len(TABLE) :].partition(".")
    return TableColumn(table, column)


def check_template(template: str) -> None:
    """Refuse a template that neither holds the key nor names a table.

    Raises:
        ConfigError: It does not.
    """
    source = table_column(template)
    if source is not None and not (source.table and source.column):
        raise ConfigError(
            f"content: expected a table and its column, as {TABLE}films.title, got {template!r}"
        )
    if source is None and KEY not in template:
        raise ConfigError(
            f"content: expected a text with {KEY} in it, or {TABLE}NAME.COLUMN, got {template!r}"
        )


def content_of(template: str, key: str) -> bytes:
    """The content of a key that comes from no table.

    Args:
        template: A text with ``{key}`` in it. Within a longer text, as an address is, the key is
            percent-encoded: it cannot lead out of its place.
        key: The key.
    """
    if template == KEY:
        return key.encode()
    return template.replace(KEY, quote(key, safe="")).encode()
