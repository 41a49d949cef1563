"""Sources of a key's content: the key itself, an address that contains it, or a feature table."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from headrace.base.errors import ConfigError

KEY = "{key}"
"""Placeholder of the key in a template."""


TABLE = "table:"
"""Prefix of a content that is a column of a feature table, as in ``table:films.title``."""


class TableColumn(NamedTuple):
    """A column of a feature table whose texts are contents.

    Attributes:
        table: Name of the table.
        column: Name of the column.
    """

    table: str
    column: str


def table_column(template: str) -> TableColumn | None:
    """Return the column of the contents; None if they come from no table."""
    if not template.startswith(TABLE):
        return None
    table, _, column = template[len(TABLE) :].partition(".")
    return TableColumn(table, column)


def check_template(template: str) -> None:
    """Refuse a template that neither contains the key nor names a table and its column.

    Raises:
        ConfigError: The template is invalid.
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
    """Return the content of a key, for a template that names no table.

    Args:
        template: Text that contains ``{key}``. In a longer text, such as an address, the key is
            percent-encoded, so that it cannot change the rest of it.
        key: The key.
    """
    if template == KEY:
        return key.encode()
    return template.replace(KEY, quote(key, safe="")).encode()
