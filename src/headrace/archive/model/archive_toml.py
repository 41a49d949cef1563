"""Settings of an archive, ``archive.toml``, and the contents of keys that they describe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from headrace.archive.model.columns import TEXT, Column, ColumnSettings, columns_of
from headrace.archive.model.window_settings import FeedSettings, Window, check_windows
from headrace.base import memory
from headrace.base.errors import ConfigError, instead
from headrace.config.checks import DAY, YEAR, seconds, whole, wrong
from headrace.config.toml_reader import Table, convert, read_table
from headrace.storage.settings import AnyQueue, AnyStore, LmdbQueue, LmdbStore

_KEY = "{key}"
"""Placeholder of the key in a template."""

_TABLE = "table:"
"""Prefix of a content that is a column of a feature table, as in ``table:films.title``."""

_SPACE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""Pattern of a space's name, to be matched in full. Every store accepts such a name unchanged."""

_A_SPACE_NAME = "a space's name: a lowercase letter, then up to 31 lowercase letters, digits and _"
"""The pattern in words."""

LARGEST_DIMENSION = 65_536
"""Maximum length of a vector."""

ZEROS, MEAN = "zeros", "mean"
"""Values of a space's ``oov``; anything else is the path of a file."""

_LEAST_CACHE_BYTES = 2**16
_LARGEST_CACHE_BYTES = 2**44
_PART_OF_CACHE = 8
_MOST_KEYS = 1_000_000
_LARGEST_KEY_BYTES = 128 * 1024  # fits into a message of a queue

_SettingsT = TypeVar("_SettingsT", bound=msgspec.Struct)


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
    if not template.startswith(_TABLE):
        return None
    table, _, column = template[len(_TABLE) :].partition(".")
    return TableColumn(table, column)


def _check_template(template: str) -> None:
    """Refuse a template that neither contains the key nor names a table and its column.

    Raises:
        ConfigError: The template is invalid.
    """
    source = table_column(template)
    if source is not None and not (source.table and source.column):
        raise ConfigError(
            f"content: expected a table and its column, as {_TABLE}films.title, got {template!r}"
        )
    if source is None and _KEY not in template:
        raise ConfigError(
            f"content: expected a text with {_KEY} in it, or {_TABLE}NAME.COLUMN, got {template!r}"
        )


def content_of(template: str, key: str) -> bytes:
    """Return the content of a key, for a template that names no table.

    Args:
        template: Text that contains ``{key}``. In a longer text, such as an address, the key is
            percent-encoded, so that it cannot change the rest of it.
        key: The key.
    """
    if template == _KEY:
        return key.encode()
    return template.replace(_KEY, quote(key, safe="")).encode()


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the cache in a process's memory, in front of the store.

    Attributes:
        size_bytes: Size for all spaces together, which is divided evenly among them.
        absent_seconds: How long a key missing in the store is not looked up there again.
        poll_seconds: Interval for reading changes by other processes: defaults, and forgotten keys.
    """

    size_bytes: int = 256 * 1024 * 1024
    absent_seconds: float = 1.0
    poll_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("cache.size_bytes", self.size_bytes, least=_LEAST_CACHE_BYTES, most=_LARGEST_CACHE_BYTES)
        seconds("cache.absent_seconds", self.absent_seconds, most=DAY)
        seconds("cache.poll_seconds", self.poll_seconds, most=DAY, above_zero=True)


class SpaceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one space.

    Attributes:
        embedder: Name of the embedder: a table under ``[embedders]``, or a built-in one; "" if vectors come
            only from ``Put``.
        dimension: Numbers per vector; 0 for the embedder's dimension.
        dtype: Stored dtype, also that of answers. int8 is stored with a scale per vector, and answered as
            float32.
        oov: The OOV vector: ``zeros``, the ``mean`` of the space, or a file with one vector (``.npy``).
        ttl_seconds: Time to live of a vector; 0 for no limit.
        cache_seconds: How long a vector may be answered from memory after another process has replaced it; 0
            for ever, as vectors of one version do not change.
        pending_seconds: How long a queued key is not queued again.
        content: Source of a key's content. ``{key}`` stands for the key itself, also in an address such as
            ``https://images.example/{key}.jpg``; ``table:films.title`` names a column of a feature table that
            has the texts by key.
        max_key_bytes: Maximum length of a key in bytes of UTF-8.
        max_keys: Maximum number of keys in one lookup.
        max_new_keys_per_second: Maximum rate of new keys that a caller may queue, on average; 0 for no limit.
        max_new_keys_burst: Maximum number of new keys that a caller may queue at once.
        history_seconds: How long replaced values are kept, for training with the values that were served; 0
            to keep none.
        columns: Columns of a feature table, whose values are rows; empty if its first file defines them. None
            for vectors.
    """

    embedder: str = ""
    dimension: int = 0
    dtype: Literal["float32", "float16", "int8"] = "float32"
    oov: str = ZEROS
    ttl_seconds: float = 0.0
    cache_seconds: float = 0.0
    pending_seconds: float = 300.0
    content: str = "{key}"
    max_key_bytes: int = 8192
    max_keys: int = 10_000
    max_new_keys_per_second: float = 0.0
    max_new_keys_burst: int = 10_000
    history_seconds: float = 0.0
    columns: tuple[Column, ...] | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("dimension", self.dimension, most=LARGEST_DIMENSION)
        seconds("ttl_seconds", self.ttl_seconds, most=100 * YEAR)
        seconds("cache_seconds", self.cache_seconds, most=100 * YEAR)
        seconds("pending_seconds", self.pending_seconds, most=YEAR, above_zero=True)
        seconds("history_seconds", self.history_seconds, most=100 * YEAR)
        whole("max_key_bytes", self.max_key_bytes, least=1, most=_LARGEST_KEY_BYTES)
        whole("max_keys", self.max_keys, least=1, most=_MOST_KEYS)
        whole("max_new_keys_burst", self.max_new_keys_burst, least=1, most=2**31)
        if not 0 <= self.max_new_keys_per_second <= 10**9:
            raise wrong("max_new_keys_per_second", "a rate, 0 or more", self.max_new_keys_per_second)
        _check_template(self.content)
        if not self.oov:
            raise wrong("oov", "zeros, mean, or a .npy file", self.oov)
        if self.oov == MEAN and not self.embedder:
            raise wrong("oov", "zeros or a .npy file, as the mean is that of an embedder's vectors", self.oov)
        if not self.embedder and not self.dimension and not self.is_table:
            raise wrong("dimension", "the length of a vector, as no embedder defines it", 0)

    @property
    def is_table(self) -> bool:
        """Whether the space is a feature table: its values are rows of columns."""
        return self.columns is not None


class TableSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one feature table, which is a space to the rest of the archive.

    Attributes:
        columns: Dtype of each column by name, or a table with its ``dtype``, ``bytes`` and ``default``. If
            omitted, the first file that is loaded defines them.
        windows: Columns that ``headrace archive feed`` computes, by name; a table has these or ``columns``.
        feed: How the rows of a stream are read for the windows.
        ttl_seconds: Time to live of a row; 0 for no limit.
        cache_seconds: How long a row may be answered from memory after another process has replaced it; 0 for
            ever.
        history_seconds: How long replaced rows are kept, for training with the rows that were served; 0 to
            keep none.
        max_key_bytes: Maximum length of a key in bytes of UTF-8.
        max_keys: Maximum number of keys in one lookup.
    """

    columns: dict[str, str | ColumnSettings] = {}
    windows: dict[str, Window] = {}
    feed: FeedSettings | None = None
    ttl_seconds: float = 0.0
    cache_seconds: float = 1.0
    history_seconds: float = 0.0
    max_key_bytes: int = 8192
    max_keys: int = 10_000

    def space(self) -> SpaceSettings:
        """Return the settings of the table as a space.

        Raises:
            ConfigError: A setting is wrong.
        """
        return SpaceSettings(
            ttl_seconds=self.ttl_seconds,
            cache_seconds=self.cache_seconds,
            history_seconds=self.history_seconds,
            max_key_bytes=self.max_key_bytes,
            max_keys=self.max_keys,
            columns=columns_of(self.columns) if self.columns else self._windowed(),
        )

    def _windowed(self) -> tuple[Column, ...]:
        return tuple(Column(name=name, dtype=one.stored_as, window=one) for name, one in self.windows.items())

    def _check_windows(self) -> None:
        if self.columns:
            raise wrong("windows", "a separate table, without columns", list(self.windows))
        if self.feed is None:
            raise wrong("feed", "the columns of the stream, which windows need: key = COLUMN", None)
        check_windows(self.windows, self.feed.every_seconds)
        longest = max(one.seconds for one in self.windows.values())
        if 0 < self.ttl_seconds <= longest:
            expected = f"0, or more than the longest window, {longest}: a row is written when it changes"
            raise wrong("ttl_seconds", expected, self.ttl_seconds)

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.windows:
            self._check_windows()
        elif self.feed is not None:
            raise wrong("windows", "at least one window for the stream of feed", self.windows)
        self.space()


class ArchiveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of an archive.

    Attributes:
        store: Settings of the store.
        queue: Settings of the queue of missing keys.
        cache: Settings of the cache.
        spaces: Settings of the spaces, by name; after reading, also of the feature tables.
        tables: Settings of the feature tables, by name.
        embedders: Settings of the embedders, by name; each kind checks its own table.
        fill: Whether a server fills its misses itself, without ``headrace archive fill``.
    """

    store: AnyStore = msgspec.field(default_factory=LmdbStore)
    queue: AnyQueue = msgspec.field(default_factory=LmdbQueue)
    cache: CacheSettings = msgspec.field(default_factory=CacheSettings)
    spaces: dict[str, SpaceSettings] = {}
    tables: dict[str, TableSettings] = {}
    embedders: dict[str, dict[str, object]] = {}
    fill: bool = False

    def __post_init__(self) -> None:
        """Check the names."""
        for kind, names in (("spaces", self.spaces), ("tables", self.tables)):
            for name in names:
                if not _SPACE_NAME.fullmatch(name):
                    raise wrong(f"{kind}.{name}", _A_SPACE_NAME, name)


def read_archive_config(file: Path) -> ArchiveConfig:
    """Read an archive's settings; relative paths start from the file's directory.

    An unset cache size is limited to an eighth of the available memory.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown or wrong.
    """
    table = read_table(file, str(file))
    config = archive_config(table, str(file), file.absolute().parent)
    said = table.get("cache")
    if isinstance(said, dict) and "size_bytes" in said:
        return config
    size = memory.at_most(
        config.cache.size_bytes, memory.allowed_bytes(), _PART_OF_CACHE, least=_LEAST_CACHE_BYTES
    )
    return msgspec.structs.replace(config, cache=msgspec.structs.replace(config.cache, size_bytes=size))


def archive_config(table: Table, where: str, base: Path) -> ArchiveConfig:
    """Make an archive's settings from a table.

    Args:
        table: Content of the file.
        where: Name of the file, for errors.
        base: Directory that relative paths start from.

    Raises:
        ConfigError: A setting is unknown or wrong.
    """
    config = _converted(table, where)
    tables = {name: one.space() for name, one in config.tables.items()}
    for name in tables.keys() & config.spaces.keys():
        raise ConfigError(f"{where}: tables.{name}: expected another name, as a space has this name")
    if not config.spaces and not tables:
        raise ConfigError(f'{where}: expected at least one space, as in [spaces.titles] embedder = "minilm"')
    for name, one in config.spaces.items():
        if source := table_column(one.content):
            _check_source(source, tables, f"{where}: spaces.{name}.content")
    return msgspec.structs.replace(
        config,
        store=_based(config.store, base),
        queue=_based(config.queue, base),
        spaces={name: _with_file(one, base) for name, one in config.spaces.items()} | tables,
    )


def _converted(table: Table, where: str) -> ArchiveConfig:
    """Convert the settings; errors name the space or table."""
    try:
        named = {kind: _tables_in(table.get(kind), kind) for kind in ("spaces", "tables")}
        rest = {key: value for key, value in table.items() if named.get(key) is None}
        config = convert(rest, ArchiveConfig, "")
        spaces = {name: _space(name, one) for name, one in (named["spaces"] or {}).items()}
        tables = {name: _table(name, one) for name, one in (named["tables"] or {}).items()}
        return msgspec.structs.replace(config, spaces=spaces, tables=tables)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message.removeprefix(': ')}") from error


def _tables_in(value: object, where: str) -> dict[str, Table] | None:
    """Return tables by name; None for a value that is not a table, which ``convert`` refuses."""
    if not isinstance(value, Mapping):
        return None
    for name, one in value.items():
        if not isinstance(one, Mapping):
            raise wrong(f"{where}.{name}", "a table", one)
    return dict(value)


def _space(name: str, table: Table) -> SpaceSettings:
    if "columns" in table:
        raise ConfigError(f"spaces.{name}.columns: a space has vectors; write [tables.{name}]")
    return _named(table, SpaceSettings, f"spaces.{name}")


def _table(name: str, table: Table) -> TableSettings:
    """Return a feature table's settings; errors name the column or window."""
    made: dict[str, object] = {}
    if isinstance(columns := table.get("columns"), Mapping):
        made["columns"] = {key: _column(f"tables.{name}.columns.{key}", one) for key, one in columns.items()}
    if (windows := _tables_in(table.get("windows"), f"tables.{name}.windows")) is not None:
        made["windows"] = {
            key: _named(one, Window, f"tables.{name}.windows.{key}") for key, one in windows.items()
        }
    return _named({**table, **made}, TableSettings, f"tables.{name}")


def _column(where: str, given: object) -> str | ColumnSettings:
    if isinstance(given, Mapping):
        return _named(given, ColumnSettings, where)
    if not isinstance(given, str):
        raise wrong(where, "a dtype, or a table with one", given)
    return given


def _named(table: Table, kind: type[_SettingsT], name: str) -> _SettingsT:
    """Return the settings of a table; errors put its name before the setting's name."""
    try:
        return convert(table, kind, "")
    except ConfigError as error:
        raise ConfigError(f"{name}.{error.message.removeprefix(': ')}") from error


def _check_source(source: TableColumn, tables: dict[str, SpaceSettings], where: str) -> None:
    """Refuse a source that is no table, or no text column of a table whose columns are known.

    Raises:
        ConfigError: The source is invalid.
    """
    table = tables.get(source.table)
    if table is None:
        there = instead(source.table, tables)
        raise ConfigError(f"{where}: expected a table of this archive, got {source.table!r}; {there}")
    texts = [column.name for column in table.columns or () if column.dtype == TEXT]
    if table.columns and source.column not in texts:
        there = instead(source.column, texts)
        raise ConfigError(
            f"{where}: expected a text column of {source.table}, got {source.column!r}; {there}"
        )


def _with_file(space: SpaceSettings, base: Path) -> SpaceSettings:
    """Resolve the path of the OOV vector's file against a directory."""
    if space.oov in (ZEROS, MEAN):
        return space
    return msgspec.structs.replace(space, oov=str(base / space.oov))


def _based(settings: _SettingsT, base: Path) -> _SettingsT:
    """Resolve all paths of the settings against a directory."""
    changes: dict[str, object] = {}
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, Path):
            changes[name] = base / value
        elif isinstance(value, msgspec.Struct):
            changes[name] = _based(value, base)
    return msgspec.structs.replace(settings, **changes) if changes else settings
