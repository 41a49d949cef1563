"""The Archive: vectors by key, in spaces; what is there is answered at once, and so is what is not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

import numpy as np

from headrace.archive.catalog import (
    Catalog,
    SpaceRecord,
    SpaceVersion,
    partition,
    with_forgotten,
    with_version,
)
from headrace.archive.config import ArchiveConfig, SpaceSettings
from headrace.archive.dead_letters import DeadLetters
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.fill_counts import FillCounts
from headrace.archive.forgotten import Forgotten
from headrace.archive.keys import all_stored, checked, is_digest, wrong_key
from headrace.archive.looking import Counts, Lookup, Parts, SpaceReader
from headrace.archive.publishing import Publisher, Wanted, message_key
from headrace.archive.quotas import Quota
from headrace.archive.reading import Reads
from headrace.archive.reports import Reporter
from headrace.errors import ConfigError, HeadraceError, InvalidRequest, NotFound, Unavailable, shown
from headrace.queues.queue import Queue
from headrace.stores.store import Item, Store
from headrace.tensors import Array

_log = logging.getLogger(__name__)

_PUT_AT_ONCE = 1000
DEFAULT_TIMEOUT_SECONDS = 1.0
"""How long a lookup may wait for a store that is elsewhere, where its caller says nothing."""

OpenEmbedder = Callable[[str], Embedder]


class Archive:
    """Vectors by key, for any number of threads.

    Attributes:
        config: The settings.
        store: Where vectors are.
        queue: Where missing keys wait.
        catalog: Which versions the spaces have.
        counts: What lookups came to, by space.
        fills: What filling in this process came to, by space.
    """

    def __init__(
        self, config: ArchiveConfig, store: Store, queue: Queue, open_embedder: OpenEmbedder | None = None
    ) -> None:
        """Begin to answer.

        Args:
            config: The settings.
            store: Where vectors are; closed with the archive.
            queue: Where missing keys wait; closed with the archive.
            open_embedder: Opens an embedder by its name; it is asked how many numbers its vectors have, where
                a space has no version yet and its settings do not say it.

        Raises:
            ConfigError: An embedder cannot be opened.
        """
        self.config, self.store, self.queue = config, store, queue
        self.catalog = Catalog(store)
        self.dead_letters = DeadLetters(store)
        self.forgotten = Forgotten(store)
        self.counts = {name: Counts() for name in config.spaces}
        self.fills: dict[str, FillCounts] = {}
        self._reporter = Reporter(store, self.counts, self.fills)
        self._open_embedder = open_embedder
        self._reads = None if store.is_local else Reads(store, config.store.timeout_seconds)
        self._publisher = Publisher(queue, self._accepted)
        self._records: dict[str, SpaceRecord] = {}
        self._generations: dict[str, int] = {}  # up to which keys are forgotten in memory
        self._quotas = {
            name: Quota(one.max_new_keys_per_second, one.max_new_keys_burst)
            for name, one in config.spaces.items()
        }
        self._readers: dict[tuple[str, int], SpaceReader] = {}
        self._turn = threading.Lock()
        self._closed = threading.Event()
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        self._thread = threading.Thread(target=self._follow, name="archive-follow", daemon=True)
        self._thread.start()

    def lookup(
        self,
        space: str,
        keys: Sequence[str],
        *,
        version: int = 0,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        caller: str = "",
        out: Array | None = None,
    ) -> Lookup:
        """The vectors of keys, and the out-of-vocabulary vector where there is none yet.

        Args:
            space: Which space.
            keys: Texts.
            version: Which version of the space; 0 for its default.
            timeout_seconds: How long to wait for a store that is elsewhere, at the most.
            caller: Who asks, for quotas.
            out: Where to put the vectors: C-contiguous, ``[N, dimension]``, of the space's dtype; a new array
                if there is none. That is the cheapest form.

        Returns:
            What was found; it unpacks as ``vectors, found``.

        Raises:
            NotFound: There is no such space, or version.
            InvalidRequest: A key is no text, empty, or too long; or there are too many.
            Unavailable: The store has not been reached since the start.
        """
        reader = self.reader(space, version)
        if out is not None:
            _check_out(out, len(keys), reader.version)
        return reader.lookup(keys, timeout_seconds, caller, out)

    def reader(self, space: str, version: int = 0) -> SpaceReader:
        """A space version to look up in; for those who do so often, or must not wait.

        Raises:
            NotFound: There is no such space, or version.
            Unavailable: The store has not been reached since the start.
        """
        found = self._readers.get((space, version))
        if found is None:
            raise self._no_reader(space, version)
        return found

    def put(self, space: str, keys: Sequence[str], vectors: Array, *, version: int = 0) -> None:
        """Store vectors; those that are there are replaced. When it returns, they are kept.

        Args:
            space: Which space.
            keys: Texts.
            vectors: Numbers ``[N, dimension]``, finite.
            version: Which version of the space; 0 for its default.

        Raises:
            NotFound: There is no such space, or version.
            InvalidRequest: Keys or vectors are not what they should be.
            Unavailable: The store does not answer; some may be stored.
        """
        reader = self.reader(space, version)
        texts = checked(keys, max(reader.settings.max_keys, len(keys)))
        reader.cache.hashes(texts, reader.settings.max_key_bytes)  # checks them
        checked_vectors = _checked_vectors(vectors, len(texts), reader.version)
        for start in range(0, len(texts), _PUT_AT_ONCE):
            some = slice(start, start + _PUT_AT_ONCE)
            self.store_vectors(reader, texts[some], checked_vectors[some])

    def store_vectors(self, reader: SpaceReader, keys: Sequence[str], vectors: Array) -> None:
        """Store checked vectors, a few at once.

        Args:
            reader: Of the space version.
            keys: Checked texts.
            vectors: float32 ``[N, dimension]``, finite.

        Raises:
            InvalidRequest: A number is larger than the space's dtype can be.
            Unavailable: The store does not answer.
        """
        records = reader.version.form.encode(vectors, time.time_ns() // 1_000_000)
        lines = [record.tobytes() for record in records]
        items = [
            Item(key, line + text.encode() if is_digest(key) else line)
            for key, line, text in zip(all_stored(keys), lines, keys, strict=True)
        ]
        where, epoch = partition(reader.space, reader.version.number), reader.epoch
        self.store.put_many(where, items, reader.settings.ttl_seconds)
        reader.took(keys, records, epoch)

    def invalidate(self, space: str, keys: Sequence[str]) -> None:
        """Remove the vectors of keys from all versions of a space; the next lookup has them made anew.

        Other processes may answer the old ones for ``cache.poll_seconds`` more.

        Raises:
            NotFound: There is no such space.
            InvalidRequest: A key is none.
            Unavailable: The store does not answer.
        """
        texts = self._checked(space, keys)
        for version in self._versions(space):
            reader = self.reader(space, version.number)
            self.store.delete_many(partition(space, version.number), all_stored(texts))
            reader.forget(texts)
        self._apply(space, self.catalog.change(space, with_forgotten))

    def forget(self, space: str, keys: Sequence[str]) -> None:
        """Remove keys with everything that was kept of them: vectors, messages that wait, dead letters.

        What is being embedded at this moment is removed by whoever does that.

        Raises:
            NotFound: There is no such space.
            InvalidRequest: A key is none.
            Unavailable: The store or the queue does not answer; ask again.
        """
        texts = self._checked(space, keys)
        self.forgotten.add(space, texts)
        self.queue.remove([message_key(space, text) for text in texts])
        self.forget_made(space, texts)

    def forget_made(self, space: str, keys: Sequence[str]) -> None:
        """Remove what may have been made of keys that are forgotten: vectors and dead letters.

        Raises:
            Unavailable: The store does not answer.
        """
        numbers = [version.number for version in self._versions(space)]
        self.dead_letters.drop(space, keys, numbers)
        self.invalidate(space, keys)

    def want(self, space: str, keys: Sequence[str], version: int = 0) -> None:
        """Have keys queued, whether or not anybody has looked them up.

        Raises:
            NotFound: There is no such space, or version.
            Unavailable: The queue does not take them.
        """
        number = self.reader(space, version).version.number
        self.queue.publish([Wanted(space, number, key).message() for key in keys])

    def record(self, space: str) -> SpaceRecord:
        """What is decided about a space, as this process knows it.

        Raises:
            NotFound: There is no such space.
        """
        self._settings(space)
        return self._records.get(space, SpaceRecord())

    def add_version(self, space: str, embedder: Embedder) -> SpaceVersion:
        """The version of a space that an embedder makes; a new one if it has not made any.

        Raises:
            NotFound: There is no such space.
            Unavailable: The store does not answer.
        """
        settings = self._settings(space)
        if settings.dimension not in (0, embedder.dimension):
            expected = f"{embedder.dimension}, as the embedder {settings.embedder!r} makes them"
            raise ConfigError(f"spaces.{space}.dimension: expected {expected}, got {settings.dimension}")
        return self._add(space, settings.embedder, embedder.fingerprint, embedder.dimension)

    @property
    def is_store_silent(self) -> bool:
        """Whether the store is not asked at present, because it does not answer."""
        return self._reads is not None and self._reads.breaker.is_open

    def close(self) -> None:
        """Queue what waits for that, end all threads, and close the store and the queue."""
        if self._closed.is_set():
            return
        self._closed.set()
        if hasattr(self, "_thread"):
            self._thread.join()
            self._tell(at_once=True)
        self._publisher.close()
        if self._reads is not None:
            self._reads.close()
        self.queue.close()
        self.store.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _checked(self, space: str, keys: Sequence[str]) -> list[str]:
        """Keys that a space can have; nothing is done with any of them if one is wrong."""
        longest = self._settings(space).max_key_bytes
        for row, key in enumerate(texts := checked(keys, max(1, len(keys)))):
            if not 0 < _size_of(key) <= longest:
                raise wrong_key(key, row, longest)
        return texts

    def _settings(self, space: str) -> SpaceSettings:
        settings = self.config.spaces.get(space)
        if settings is None:
            raise NotFound(f"no space {shown(space)}; there are {', '.join(self.config.spaces)}")
        return settings

    def _versions(self, space: str) -> Iterable[SpaceVersion]:
        self._settings(space)
        self._apply(space, self.catalog.read(space))
        return self._records[space].versions

    def _no_reader(self, space: str, version: int) -> HeadraceError:
        self._settings(space)
        record = self._records.get(space)
        if record is None:
            return Unavailable(
                f"the space {space!r} is not known yet: the store has not answered since the start"
            )
        there = ", ".join(str(one.number) for one in record.versions)
        return NotFound(f"no version {version} of the space {space!r}; there are {there}")

    def _begin(self) -> None:
        """Find or make the versions of all spaces; a store that is down is asked again later."""
        for space, settings in self.config.spaces.items():
            try:
                record = self.catalog.read(space)
                self._apply(space, record)
                if not record.versions:
                    self._first_version(space, settings)
            except Unavailable as error:
                _log.warning("the space %s is not known yet: %s", space, error.message)

    def _first_version(self, space: str, settings: SpaceSettings) -> None:
        if not settings.embedder:
            self._add(space, "", "", settings.dimension)
        elif self._open_embedder is None:
            raise ConfigError(f"the space {space!r} has no version yet; run headrace archive fill once")
        else:
            embedder = self._open_embedder(settings.embedder)
            try:
                self.add_version(space, embedder)
            finally:
                embedder.close()

    def _add(self, space: str, embedder: str, fingerprint: str, dimension: int) -> SpaceVersion:
        settings = self._settings(space)
        new = SpaceVersion(
            number=0,
            embedder=embedder,
            fingerprint=fingerprint,
            dimension=dimension,
            dtype=settings.dtype,
            created=time.time_ns() / 1e9,
        )

        def decide(record: SpaceRecord) -> SpaceRecord:
            if record.made_by(fingerprint) is not None:
                return record
            self.store.create(partition(space, record.last + 1))
            return with_version(record, new)

        record = self.catalog.change(space, decide)
        self._apply(space, record)
        made = record.made_by(fingerprint)
        if made is None:
            raise HeadraceError(f"the version of the space {space!r} that was just made is gone again")
        return made

    def _apply(self, space: str, record: SpaceRecord) -> None:
        """Have a reader for each version that there is; their share of the cache depends on how many are."""
        with self._turn:
            before = {key: reader for key, reader in self._readers.items() if key[0] == space}
            versions = {reader.version for reader in before.values()}
            readers = dict(self._readers)
            if versions != set(record.versions):
                parts = self._parts(max(1, len(record.versions)))
                readers = {key: reader for key, reader in readers.items() if key[0] != space}
                for version in record.versions:
                    reader = self._reader_of(
                        space, version, parts, is_default=version.number == record.default
                    )
                    if reader is not None:
                        readers[space, version.number] = reader
            if record.default:
                readers[space, 0] = readers[space, record.default]
            self._readers = readers
            self._records[space] = record  # what is known can be looked up in
            generation, self._generations[space] = self._generations.get(space), record.generation
        if generation not in (None, record.generation):
            for version in record.versions:
                if (space, version.number) in readers:
                    readers[space, version.number].forget_all()

    def _reader_of(
        self, space: str, version: SpaceVersion, parts: Parts, *, is_default: bool
    ) -> SpaceReader | None:
        """What looks up in a version; None for one that cannot be, which stops no other."""
        settings = self.config.spaces[space]
        try:
            return SpaceReader(space, version, settings, parts, self.counts[space], self._quotas[space])
        except ConfigError as error:
            if is_default:
                raise
            _log.error("version %d of the space %s is not served: %s", version.number, space, error.message)
            return None

    def _parts(self, versions: int) -> Parts:
        cache = self.config.cache
        share = cache.size_bytes // len(self.config.spaces) // versions
        return Parts(self.store, self._reads, self._publisher, cache, share)

    def _accepted(self, wanted: Sequence[Wanted]) -> None:
        """The queue has taken keys: no lookup hands them on again for a while."""
        by_version: dict[tuple[str, int], list[str]] = {}
        for one in wanted:
            by_version.setdefault((one.space, one.version), []).append(one.key)
        for where, keys in by_version.items():
            reader = self._readers.get(where)
            if reader is not None:
                reader.queued(keys)

    def _follow(self) -> None:
        """See what other processes decide."""
        while not self._closed.wait(self.config.cache.poll_seconds):
            self._tell()
            for space in self.config.spaces:
                try:
                    self._look(space)
                except HeadraceError as error:
                    _log.debug("the record of the space %s cannot be read: %s", space, error.message)
                except Exception:  # noqa: BLE001 - the boundary of the thread: the next look may succeed
                    _log.exception("the record of the space %s cannot be followed", space)

    def _tell(self, *, at_once: bool = False) -> None:
        """Tell others how this process fares."""
        try:
            self._reporter.report(at_once=at_once)
        except HeadraceError as error:
            _log.debug("this process cannot report: %s", error.message)
        except Exception:  # noqa: BLE001 - the boundary of the thread
            _log.exception("this process cannot report")

    def _look(self, space: str) -> None:
        record = self.catalog.read(space)
        if record != self._records.get(space):
            self._apply(space, record)
        if not record.versions:
            self._first_version(space, self.config.spaces[space])


def _size_of(key: object) -> int:
    """How many bytes of UTF-8 a key has; 0 for what is no Unicode text."""
    try:
        return len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        return 0


def _check_out(out: Array, keys: int, version: SpaceVersion) -> None:
    form = version.form
    is_one = out.flags.c_contiguous and out.flags.writeable
    if out.shape != (keys, form.dimension) or out.dtype != form.answered or not is_one:
        expected = f"a C-contiguous array of {form.answered}, {[keys, form.dimension]}, to be written to"
        raise InvalidRequest(f"expected {expected}, got {out.dtype}, {list(out.shape)}", field="out")


def _checked_vectors(vectors: Array, keys: int, version: SpaceVersion) -> Array:
    """Vectors as float32.

    Raises:
        InvalidRequest: They are no finite numbers, or not as many as they should be.
    """
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
