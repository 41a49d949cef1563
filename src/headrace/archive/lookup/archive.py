"""The Archive: vectors by key, in spaces. Lookups answer at once; misses return the OOV vector."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from itertools import compress
from types import TracebackType
from typing import TYPE_CHECKING

from headrace.archive.embedders.embedder import Embedder
from headrace.archive.lookup.background_reads import Reads
from headrace.archive.lookup.dead_letter_records import DeadLetters
from headrace.archive.lookup.miss_queue import Publisher, Wanted, message_key
from headrace.archive.lookup.reports import FillCounts, InputTotals, Reporter
from headrace.archive.lookup.space_reader import Counts, Lookup, SpaceReader
from headrace.archive.lookup.spaces import OpenEmbedder, Shared, Spaces
from headrace.archive.lookup.writes import (
    CLOCKS_APART_SECONDS,
    Forgotten,
    Writes,
    check_not_fed,
    check_output_array,
    checked_rows,
    checked_vectors,
    checked_written,
    size_of,
)
from headrace.archive.model.archive_toml import ArchiveConfig
from headrace.archive.model.catalog import SpaceRecord, SpaceVersion, with_forgotten
from headrace.archive.model.columns import Column
from headrace.archive.model.keys import checked, in_slices, wrong_key
from headrace.base.clock import unix_milliseconds
from headrace.base.errors import HeadraceError, Refused
from headrace.base.tensors import Array
from headrace.storage.queues.queue import Queue
from headrace.storage.stores.store import Store

if TYPE_CHECKING:
    from headrace.archive.lookup.as_of import PastLookup

_log = logging.getLogger(__name__)

_PUT_AT_ONCE = 1000
_PUT_AT_ONCE_BYTES = 4 * 1024 * 1024
DEFAULT_TIMEOUT_SECONDS = 1.0
"""Default timeout of a lookup in a remote store."""


class Archive:
    """Vectors by key, for use from any number of threads.

    Attributes:
        config: The settings.
        store: Store of the vectors.
        queue: Queue of the missing keys.
        catalog: Versions and defaults of the spaces.
        counts: Lookup counts, by space.
        fills: Filling counts of this process, by space.
        troubles: Current problems of this process, by the object that waits or the name of an unusable
            record; shown by ``headrace archive status``.
        of_models: Totals of the models' inputs, by model and input.
    """

    def __init__(
        self, config: ArchiveConfig, store: Store, queue: Queue, open_embedder: OpenEmbedder | None = None
    ) -> None:
        """Find or create the space versions, and start the threads.

        Args:
            config: The settings.
            store: Store of the vectors; closed with the archive.
            queue: Queue of the missing keys; closed with the archive.
            open_embedder: Opens an embedder by name. It is called for a space with an embedder and no
                version yet, to get the vectors' dimension and the fingerprint.

        Raises:
            ConfigError: An embedder cannot be opened, or the settings do not fit a space.
        """
        self.config, self.store, self.queue = config, store, queue
        self.dead_letters = DeadLetters(store)
        self.writes = Writes(store)
        self.forgotten = Forgotten(store)
        self.counts = {name: Counts() for name in config.spaces}
        self.fills: dict[str, FillCounts] = {}
        self.of_models: dict[tuple[str, str], InputTotals] = {}
        self.troubles: dict[object, str] = {}
        self._reporter = Reporter(store, self.counts, self.fills, self.troubles)
        self._reads = None if store.is_local else Reads(store, config.store.timeout_seconds)
        self._publisher = Publisher(queue, self._accepted, self.troubles)
        shared = Shared(store, self._reads, self._publisher, self.counts, open_embedder)
        self._spaces = Spaces(config, shared)
        self.catalog = self._spaces.catalog
        self._closed = threading.Event()
        try:
            self._spaces.begin()
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
        """Return the vectors of ``keys``, and the OOV vector for misses.

        Args:
            space: Name of the space.
            keys: The keys.
            version: Version number; 0 for the default.
            timeout_seconds: Longest wait for a remote store.
            caller: Name of the caller, for quotas.
            out: Array to write the vectors to: C-contiguous, ``[N, dimension]``, of the answers' dtype
                (float32 for int8). None allocates one; passing an array is cheaper.

        Returns:
            The result; it unpacks as ``vectors, found``.

        Raises:
            NotFound: There is no such space or version.
            InvalidRequest: A key is not text, empty or too long; there are too many; or ``out`` does not fit.
            Unavailable: The store has not been reached since the start. The default version is answered even
                then if the settings give a dimension or columns.
        """
        reader = self.answering(space, version)
        if out is not None:
            check_output_array(out, len(keys), reader.version)
        return reader.lookup(keys, timeout_seconds, caller, out)

    def as_of(
        self,
        space: str,
        keys: Sequence[str],
        times: Array,
        *,
        version: int = 0,
        written: Array | None = None,
    ) -> PastLookup:
        """Return the last values written by given times, as far back as ``history_seconds``.

        Args:
            space: Name of the space.
            keys: The keys, any number.
            times: Milliseconds of Unix time, uint64 ``[N]``.
            version: Version number; 0 for the present default.
            written: Write times of the values that were answered, uint64 ``[N]``, 0 for none. If given,
                exactly these values are returned and ``times`` is ignored.

        Raises:
            NotFound: There is no such space or version.
            InvalidRequest: A key is invalid, or the number of times differs from the number of keys.
            Unavailable: The store does not answer.
        """
        from headrace.archive.lookup.as_of import look_back  # noqa: PLC0415 - not needed for serving lookups

        reader = self.reader(space, version)
        return look_back(reader, self.writes.past(reader), keys, times, written)

    def answering(self, space: str, version: int = 0) -> SpaceReader:
        """Return the reader that answers lookups; before the store is reached, one without vectors.

        Raises:
            NotFound: There is no such space or version.
            Unavailable: As for ``lookup``.
        """
        return self._spaces.answering(space, version)

    def reader(self, space: str, version: int = 0) -> SpaceReader:
        """Return the reader of a space version, for callers that look up often or must not wait.

        Raises:
            NotFound: There is no such space or version.
            Unavailable: The store has not been reached since the start.
        """
        return self._spaces.reader(space, version)

    def put(self, space: str, keys: Sequence[str], vectors: Array, *, version: int = 0) -> None:
        """Store vectors, replacing existing ones; return once they are stored.

        Args:
            space: Name of the space.
            keys: The keys.
            vectors: Finite numbers, ``[N, dimension]``.
            version: Version number; 0 for the default.

        Raises:
            NotFound: There is no such space or version.
            InvalidRequest: The keys or vectors are invalid.
            Unavailable: The store does not answer; some vectors may have been stored.
        """
        reader = self.reader(space, version)
        given = checked_vectors(vectors, len(keys), reader.version)
        self._put(reader, keys, given)

    def put_rows(
        self,
        table: str,
        keys: Sequence[str],
        values: Mapping[str, Array],
        *,
        version: int = 0,
        written: Array | None = None,
    ) -> None:
        """Store rows of a feature table, replacing existing ones; return once they are stored.

        Args:
            table: Name of the table.
            keys: The keys.
            values: By column, each ``[N]``: finite numbers in the range of its dtype; texts as ``str`` or as
                ``bytes`` of UTF-8. A column with a default may be omitted, or contain None.
            version: Version number; 0 for the default.
            written: Write times in milliseconds of Unix time, uint64 ``[N]``; None for now.

        Raises:
            NotFound: There is no such table or version.
            InvalidRequest: The keys or values are invalid, or the table's rows are counted from a stream.
            Unavailable: The store does not answer; some rows may have been stored.
        """
        reader = self.reader(table, version)
        check_not_fed(table, reader.version)
        rows = checked_rows(values, len(keys), reader.version)
        self._put(reader, keys, rows, checked_written(written, len(keys)))

    def _put(
        self, reader: SpaceReader, keys: Sequence[str], values: Array, written: Array | None = None
    ) -> None:
        """Check the keys and store checked values under them."""
        texts = checked(keys, max(reader.settings.max_keys, len(keys)))
        longest = reader.settings.max_key_bytes
        at_once = max(1, min(_PUT_AT_ONCE, _PUT_AT_ONCE_BYTES // reader.version.form.record_bytes))
        slices = list(in_slices(texts, at_once, longest))
        for some in slices:
            reader.cache.hashes(texts[some], longest, some.start)  # raises for an invalid key
        for some in slices:
            self.store_vectors(reader, texts[some], values[some], None if written is None else written[some])
            if reader.version.embedder:
                self._drop_dead_letters(reader, texts[some])

    def _drop_dead_letters(self, reader: SpaceReader, keys: Sequence[str]) -> None:
        """Remove the dead letters of keys that now have a vector."""
        number = reader.version.number
        if dead := self.dead_letters.among(reader.space, keys, number):
            self.dead_letters.drop(reader.space, list(dead), [number])

    def store_vectors(
        self, reader: SpaceReader, keys: Sequence[str], vectors: Array, written: Array | None = None
    ) -> None:
        """Store a small number of checked vectors or rows.

        Args:
            reader: Reader of the space version.
            keys: Checked keys.
            vectors: Finite float32 ``[N, dimension]``; or rows, uint8 ``[N, row bytes]``.
            written: Write times in milliseconds of Unix time, uint64 ``[N]``; None for now. In a space that
                keeps its past, a value does not replace one that was written later.

        Raises:
            InvalidRequest: A number is out of range for the space's dtype.
            Unavailable: The store does not answer.
        """
        when = unix_milliseconds() if written is None else written
        records = reader.version.form.encode(vectors, when)
        self.writes.store(reader, keys, records, is_told=written is not None)

    def invalidate(self, space: str, keys: Sequence[str]) -> int:
        """Remove the values of keys from all versions of a space; an embedder makes them again on demand.

        Keys of a feature table, or of a space without an embedder, stay missing until they are stored again.
        Past values are kept for ``history_seconds``. The keys' dead letters are removed too, because the
        contents may have changed. Other processes may return the old values for another
        ``cache.poll_seconds``.

        Returns:
            Number of keys that had a value or a dead letter.

        Raises:
            NotFound: There is no such space.
            InvalidRequest: A key is invalid.
            Unavailable: The store does not answer.
        """
        return self._remove(space, keys, is_forgotten=False)

    def forget(self, space: str, keys: Sequence[str]) -> int:
        """Remove keys with everything kept of them: vectors, past values, queued messages, dead letters.

        A filler that is making a vector of such a key removes that vector afterwards.

        Returns:
            Number of keys that had a value or a dead letter.

        Raises:
            NotFound: There is no such space.
            InvalidRequest: A key is invalid.
            Unavailable: The store or the queue does not answer; try again.
        """
        texts = self._checked(space, keys)
        self.forgotten.add(space, texts)
        if not self.queue.remove([message_key(space, text) for text in texts]):
            # Fillers compare tombstones with queue times, which may come from another machine's clock.
            self.forgotten.add(space, texts, CLOCKS_APART_SECONDS)
        return self.forget_made(space, texts)

    def forget_made(self, space: str, keys: Sequence[str]) -> int:
        """Remove vectors and dead letters that fillers may have made of forgotten keys.

        Returns:
            Number of keys that had any.

        Raises:
            Unavailable: The store does not answer.
        """
        return self._remove(space, keys, is_forgotten=True)

    def want(self, space: str, keys: Sequence[str], version: int = 0) -> None:
        """Queue keys, whether or not they were looked up.

        Raises:
            NotFound: There is no such space or version.
            Unavailable: The queue does not accept them.
        """
        number = self.reader(space, version).version.number
        self.queue.publish([Wanted(space, number, key).message() for key in keys])

    def record(self, space: str) -> SpaceRecord:
        """Return the record of a space, as this process knows it.

        Raises:
            NotFound: There is no such space.
        """
        return self._spaces.record(space)

    def add_version(self, space: str, embedder: Embedder) -> SpaceVersion:
        """Return the space version that an embedder fills, creating it if there is none.

        Raises:
            NotFound: There is no such space.
            ConfigError: The settings give another dimension.
            Unavailable: The store does not answer.
        """
        return self._spaces.add_version(space, embedder)

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
        return self._spaces.table_version(table, columns, is_loading=is_loading)

    @property
    def is_store_silent(self) -> bool:
        """Whether the store is currently not asked because it does not answer."""
        return self._reads is not None and self._reads.breaker.is_open

    def close(self) -> None:
        """Queue the pending keys, end all threads, and close the store and the queue."""
        if self._closed.is_set():
            return
        self._closed.set()
        if hasattr(self, "_thread"):
            self._thread.join()
            self._tell(is_over=True)
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

    def _remove(self, space: str, keys: Sequence[str], *, is_forgotten: bool) -> int:
        texts, settings = self._checked(space, keys), self._spaces.settings(space)
        versions = list(self._spaces.versions(space))
        found = set[str]().union(
            *(self.dead_letters.among(space, texts, version.number) for version in versions)
        )
        self.dead_letters.drop(space, texts, [version.number for version in versions])
        for version in versions:
            reader = self._spaces.known(space, version.number)  # None for a version that is not served
            for some in in_slices(texts, _PUT_AT_ONCE, settings.max_key_bytes):
                there = self.writes.remove(space, version, settings, texts[some], is_forgotten=is_forgotten)
                found.update(compress(texts[some], there))
                if reader is not None:
                    reader.forget(texts[some])
        self._spaces.apply(space, self.catalog.change(space, with_forgotten))
        return len(found)

    def _checked(self, space: str, keys: Sequence[str]) -> list[str]:
        """Return the keys as a list; raise if any of them is invalid."""
        longest = self._spaces.settings(space).max_key_bytes
        for row, key in enumerate(texts := checked(keys, max(1, len(keys)))):
            if not 0 < size_of(key, longest) <= longest:
                raise wrong_key(key, row, longest)
        return texts

    def _accepted(self, wanted: Sequence[Wanted]) -> None:
        """Mark keys that the queue has accepted, so that lookups do not queue them again for a while."""
        by_version: dict[tuple[str, int], list[str]] = {}
        for one in wanted:
            by_version.setdefault((one.space, one.version), []).append(one.key)
        for where, keys in by_version.items():
            reader = self._spaces.known(*where)
            if reader is not None:
                reader.queued(keys)

    def _follow(self) -> None:
        """Report this process's state, and apply changes of other processes, every ``cache.poll_seconds``."""
        while not self._closed.wait(self.config.cache.poll_seconds):
            self._tell()
            for space in self.config.spaces:
                try:
                    self._look(space)
                except Exception:  # noqa: BLE001 - thread boundary: the next attempt may succeed
                    _log.exception("the record of the space %s could not be checked for changes", space)

    def _look(self, space: str) -> None:
        """Apply what other processes have decided about a space; log an error when its text changes."""
        here = f"record {space}"
        try:
            self._spaces.look(space)
        except Refused as error:  # lookups report it
            _log.debug("the record of the space %s cannot be read: %s", space, error.message)
        except HeadraceError as error:
            if self.troubles.get(here) != error.message:
                _log.warning("%s; keeping the last known record of the space", error.message)
            self.troubles[here] = error.message
        else:
            self.troubles.pop(here, None)

    def _tell(self, *, is_over: bool = False) -> None:
        """Report the state of this process to the store."""
        try:
            self._reporter.report(is_over=is_over)
        except HeadraceError as error:
            _log.debug("this process cannot report its state: %s", error.message)
        except Exception:  # noqa: BLE001 - thread boundary
            _log.exception("this process cannot report its state")
