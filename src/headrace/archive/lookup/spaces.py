"""The spaces of an archive as one process knows them: their versions, and the reader of each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.archive.embedders.embedder import Embedder
from headrace.archive.lookup.background_reads import Reads
from headrace.archive.lookup.miss_queue import Publisher, Quota
from headrace.archive.lookup.space_reader import Counts, Keys, Lookup, Parts, SpaceReader
from headrace.archive.model.archive_toml import ArchiveConfig, SpaceSettings
from headrace.archive.model.catalog import (
    Catalog,
    SpaceRecord,
    SpaceVersion,
    describe_versions,
    partition,
    with_version,
)
from headrace.archive.model.columns import Column, Columns, check_columns, fingerprint, row_dtype
from headrace.archive.model.records import ROW
from headrace.base.errors import (
    ConfigError,
    HeadraceError,
    InvalidRequest,
    NotFound,
    Unavailable,
    instead,
    listed,
    shown,
)
from headrace.base.tensors import Array
from headrace.storage.stores.store import Store

_log = logging.getLogger(__name__)

OpenEmbedder = Callable[[str], Embedder]

_SMALLEST_CACHE_BYTES = 2**16


@dataclass(frozen=True)
class Shared:
    """Objects that the spaces of an archive share.

    Attributes:
        store: Store of the vectors.
        reads: Background reads of the store; None for a local store.
        publisher: Queues missing keys.
        counts: Lookup counts, by space.
        open_embedder: Opens an embedder by name; None if none can be opened.
    """

    store: Store
    reads: Reads | None
    publisher: Publisher
    counts: dict[str, Counts]
    open_embedder: OpenEmbedder | None


class _Unreached(SpaceReader):
    """Answers with the OOV vector until the store has been reached and the versions are known."""

    def _read_here(self, lookup: Lookup, asked: Array, some: Keys) -> None:
        raise Unavailable("the store has not answered since the start")


class Spaces:
    """The spaces, for use from any number of threads.

    Attributes:
        catalog: The catalog of their versions.
    """

    def __init__(self, config: ArchiveConfig, shared: Shared) -> None:
        """Start without spaces; ``begin`` finds them."""
        self.catalog = Catalog(shared.store)
        self._config, self._shared = config, shared
        self._records: dict[str, SpaceRecord] = {}
        self._generations: dict[str, int] = {}  # generation up to which memory is cleared
        self._quotas = {
            name: Quota(one.max_new_keys_per_second, one.max_new_keys_burst)
            for name, one in config.spaces.items()
        }
        self._readers: dict[tuple[str, int], SpaceReader] = {}
        self._unreached: dict[str, SpaceReader] = {}
        self._turn = threading.Lock()

    def known(self, space: str, version: int) -> SpaceReader | None:
        """Return the reader of a space version, if known."""
        return self._readers.get((space, version))

    def reader(self, space: str, version: int = 0) -> SpaceReader:
        """Return the reader of a space version; 0 for the default.

        Raises:
            NotFound: There is no such space or version.
            Unavailable: The store has not been reached since the start.
        """
        found = self._readers.get((space, version))
        if found is None:
            raise self._no_reader(space, version)
        return found

    def answering(self, space: str, version: int = 0) -> SpaceReader:
        """Return the reader that answers lookups; before the store is reached, one without vectors.

        Raises:
            NotFound: There is no such space or version.
            Unavailable: The store has not been reached since the start, and a version is named or the
                settings give neither a dimension nor columns.
        """
        found = self._readers.get((space, version))
        if found is not None:
            return found
        error = self._no_reader(space, version)
        if version or not isinstance(error, Unavailable):
            raise error
        found = self._unreached.get(space)
        if found is None:
            settings = self.settings(space)
            if settings.columns:
                meant = of_columns(settings.columns)
            elif settings.dimension:
                meant = _made_by(settings, "", settings.dimension)
            else:
                raise error
            parts = replace(self._parts(1), reads=None, cache_bytes=_SMALLEST_CACHE_BYTES)
            counts, quota = self._shared.counts[space], self._quotas[space]
            found = self._unreached[space] = _Unreached(space, meant, settings, parts, counts, quota)
        return found

    def record(self, space: str) -> SpaceRecord:
        """Return the record of a space, as this process knows it.

        Raises:
            NotFound: There is no such space.
        """
        self.settings(space)
        return self._records.get(space, SpaceRecord())

    def add_version(self, space: str, embedder: Embedder) -> SpaceVersion:
        """Return the space version that an embedder fills, creating it if there is none.

        Raises:
            NotFound: There is no such space.
            ConfigError: The settings give another dimension.
            Unavailable: The store does not answer.
        """
        settings = self.settings(space)
        if settings.dimension not in (0, embedder.dimension):
            expected = f"{embedder.dimension}, as the embedder {settings.embedder!r} makes them"
            raise ConfigError(f"spaces.{space}.dimension: expected {expected}, got {settings.dimension}")
        return self._add(space, _made_by(settings, embedder.fingerprint, embedder.dimension))

    def table_version(
        self, table: str, columns: Sequence[Column], *, is_loading: bool = False
    ) -> SpaceVersion:
        """Return the version of a feature table with these columns in any order, creating it if needed.

        Args:
            table: Name of the table.
            columns: Its columns.
            is_loading: Whether the version counts as incomplete until it becomes the default, even if it is
                the first.

        Raises:
            NotFound: There is no such table.
            InvalidRequest: The space is not a feature table.
            ConfigError: The columns are invalid.
            Unavailable: The store does not answer.
        """
        if not self.settings(table).is_table:
            raise InvalidRequest(f"expected a feature table, got the space {table!r}", field="table")
        check_columns(columns)
        return self._add(table, of_columns(tuple(columns)), is_loading=is_loading)

    def settings(self, space: str) -> SpaceSettings:
        """Return the settings of a space.

        Raises:
            NotFound: There is no such space.
        """
        settings = self._config.spaces.get(space)
        if settings is None:
            raise NotFound(f"no space {shown(space)}", others=instead(space, self._config.spaces))
        return settings

    def versions(self, space: str) -> Iterable[SpaceVersion]:
        """Return the present versions of a space, as read from the store.

        Raises:
            NotFound: There is no such space.
            Unavailable: The store does not answer.
        """
        self.settings(space)
        record = self.catalog.read(space)
        if record.versions:
            self.apply(space, record)
        return record.versions

    def _no_reader(self, space: str, version: int) -> HeadraceError:
        self.settings(space)
        record = self._records.get(space)
        if record is None:
            return Unavailable(
                f"the space {space!r} is not known yet: the store, or the embedder that defines the length "
                "of its vectors, has not answered since the start"
            )
        if not record.versions and self.settings(space).is_table:
            way_out = "headrace archive load fills it from a file, or give its columns in the settings"
            return NotFound(f"the table {space!r} has no columns yet; {way_out}")
        return NotFound(f"no version {version} of the space {space!r}; {describe_versions(record)}")

    def begin(self) -> None:
        """Find or create the versions of all spaces; if the store is down, ``look`` does it later."""
        unknown: dict[str, list[str]] = {}
        for space in self._config.spaces:
            try:
                self.look(space)
            except Unavailable as error:
                unknown.setdefault(error.message, []).append(space)
        for reason, those in unknown.items():
            what = "the space %s is" if len(those) == 1 else "the spaces %s are"
            _log.warning(f"{what} not known yet: %s", listed(those), reason)

    def _first_version(self, space: str, settings: SpaceSettings) -> None:
        if settings.columns:
            self.table_version(space, settings.columns)
        elif not settings.embedder:
            self._add(space, _made_by(settings, "", settings.dimension))
        elif self._shared.open_embedder is None:
            raise ConfigError(f"the space {space!r} has no version yet; run headrace archive fill once")
        else:
            embedder = self._shared.open_embedder(settings.embedder)
            try:
                self.add_version(space, embedder)
            finally:
                embedder.close()

    def _add(self, space: str, new: SpaceVersion, *, is_loading: bool = False) -> SpaceVersion:
        def decide(record: SpaceRecord) -> SpaceRecord:
            if record.made_by(new.fingerprint) is not None:
                return record
            self._shared.store.create(partition(space, record.last + 1))
            return with_version(record, new, is_loading=is_loading)

        record = self.catalog.change(space, decide)
        self.apply(space, record)
        made = record.made_by(new.fingerprint)
        if made is None:
            raise HeadraceError(f"the version of the space {space!r} that was just created no longer exists")
        return made

    def apply(self, space: str, record: SpaceRecord) -> None:
        """Make the readers match a record, one per version; existing readers mostly keep their caches."""
        with self._turn:
            readers = {key: reader for key, reader in self._readers.items() if key[0] != space}
            readers.update(self._readers_of(space, record))
            if record.default:
                readers[space, 0] = readers[space, record.default]
            self._readers = readers
            self._records[space] = record  # after the readers: a known version can be looked up in
            self._unreached.pop(space, None)
            generation, self._generations[space] = self._generations.get(space), record.generation
        if generation not in (None, record.generation):
            for version in record.versions:
                if (space, version.number) in readers:
                    readers[space, version.number].forget_all()

    def _readers_of(self, space: str, record: SpaceRecord) -> dict[tuple[str, int], SpaceReader]:
        """Return the readers of a space: existing ones, updated, and new ones for new versions.

        The cache size of a version depends on the number of versions when it is added. Existing readers keep
        theirs unless the total would exceed twice the size for the space; then all are replaced.
        """
        found = {
            (space, version.number): self._readers[space, version.number]
            for version in record.versions
            if (space, version.number) in self._readers
        }
        count = max(1, len(record.versions))
        parts = self._parts(count)
        taken = sum(reader.cache_bytes for reader in found.values())
        if taken + (count - len(found)) * parts.cache_bytes > 2 * self._parts(1).cache_bytes:
            found = {}
        for version in record.versions:
            is_default = version.number == record.default
            reader = found.get((space, version.number))
            if reader is None:
                reader = self._reader_of(space, version, parts, is_default=is_default)
                if reader is not None:
                    found[space, version.number] = reader
            elif reader.version != version:
                reader.revise(version)
        return found

    def _reader_of(
        self, space: str, version: SpaceVersion, parts: Parts, *, is_default: bool
    ) -> SpaceReader | None:
        """Return a reader of a version; None if it cannot be served, which affects no other version."""
        settings = self._config.spaces[space]
        try:
            return SpaceReader(
                space, version, settings, parts, self._shared.counts[space], self._quotas[space]
            )
        except ConfigError as error:
            if is_default:
                raise
            _log.error("version %d of the space %s is not served: %s", version.number, space, error.message)
            return None

    def _parts(self, versions: int) -> Parts:
        cache = self._config.cache
        share = cache.size_bytes // len(self._config.spaces) // versions
        return Parts(self._shared.store, self._shared.reads, self._shared.publisher, cache, share)

    def look(self, space: str) -> None:
        """Apply what other processes have decided about a space.

        Raises:
            HeadraceError: The store does not answer, or its record is unusable.
        """
        record = self.catalog.read(space)
        settings = self._config.spaces[space]
        if not record.versions and (settings.columns or not settings.is_table):
            self._first_version(space, settings)  # tables without columns wait for their first file
        elif record != self._records.get(space):
            self.apply(space, record)


def of_columns(columns: Columns) -> SpaceVersion:
    """Return a version of a feature table that has no number yet."""
    return SpaceVersion(
        number=0,
        embedder="",
        fingerprint=fingerprint(columns),
        dimension=row_dtype(columns).itemsize,
        dtype=ROW,
        created=time.time_ns() / 1e9,
        columns=columns,
    )


def _made_by(settings: SpaceSettings, fingerprint: str, dimension: int) -> SpaceVersion:
    """Return a version of a space of vectors that has no number yet."""
    return SpaceVersion(
        number=0,
        embedder=settings.embedder,
        fingerprint=fingerprint,
        dimension=dimension,
        dtype=settings.dtype,
        created=time.time_ns() / 1e9,
    )
