"""The Archive: vectors by key, in spaces; what is there is answered at once, and so is what is not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from itertools import compress
from types import TracebackType
from typing import TYPE_CHECKING

from headrace.archive.catalog import SpaceRecord, SpaceVersion, with_forgotten
from headrace.archive.columns import Column
from headrace.archive.config import ArchiveConfig
from headrace.archive.dead_letters import DeadLetters
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.fill_counts import FillCounts
from headrace.archive.forgotten import CLOCKS_APART_SECONDS, Forgotten
from headrace.archive.given import (
    check_not_fed,
    check_out,
    checked_rows,
    checked_vectors,
    checked_written,
    size_of,
)
from headrace.archive.keys import checked, in_slices, wrong_key
from headrace.archive.looking import Counts, Lookup, SpaceReader
from headrace.archive.model_inputs import InputTotals
from headrace.archive.publishing import Publisher, Wanted, message_key
from headrace.archive.reading import Reads
from headrace.archive.reports import Reporter
from headrace.archive.spaces import OpenEmbedder, Shared, Spaces
from headrace.archive.writing import Writes
from headrace.clock import unix_milliseconds
from headrace.errors import HeadraceError, Refused
from headrace.queues.queue import Queue
from headrace.stores.store import Store
from headrace.tensors import Array

if TYPE_CHECKING:
    from headrace.archive.replaying import PastLookup

_log = logging.getLogger(__name__)

_PUT_AT_ONCE = 1000
_PUT_AT_ONCE_BYTES = 4 * 1024 * 1024
DEFAULT_TIMEOUT_SECONDS = 1.0
"""How long a lookup may wait for a store that is elsewhere, where its caller says nothing."""


class Archive:
    """Vectors by key, for any number of threads.

    Attributes:
        config: The settings.
        store: Where vectors are.
        queue: Where missing keys wait.
        catalog: Which versions the spaces have.
        counts: What lookups came to, by space.
        fills: What filling in this process came to, by space.
        troubles: What this process waits for at present, by who waits: told by ``headrace archive status``.
        of_models: What models' inputs came to, by model and input.
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
            Unavailable: The store has not been reached since the start, and the settings do not say how long
                vectors are.
        """
        reader = self.answering(space, version)
        if out is not None:
            check_out(out, len(keys), reader.version)
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
        """What lookups answered at some times, as far as ``history_seconds`` reach.

        Args:
            space: Which space.
            keys: Texts, any number.
            times: When, in milliseconds of Unix time, uint64 ``[N]``: a value counts that was written until
                then.
            version: Which version of the space; 0 for its default.
            written: When the values that were answered had been written, uint64 ``[N]``, 0 for there was
                none; exactly those then, whatever the times.

        Raises:
            NotFound: There is no such space, or version.
            InvalidRequest: A key is none, or there are not as many times.
            Unavailable: The store does not answer.
        """
        from headrace.archive.replaying import look_back  # noqa: PLC0415 - not where lookups are served

        reader = self.reader(space, version)
        return look_back(reader, self.writes.past(reader), keys, times, written)

    def answering(self, space: str, version: int = 0) -> SpaceReader:
        """What answers a lookup: the space version, or one without vectors before the store is reached.

        Raises:
            NotFound: There is no such space, or version.
            Unavailable: As for ``lookup``.
        """
        return self._spaces.answering(space, version)

    def reader(self, space: str, version: int = 0) -> SpaceReader:
        """A space version to look up in; for those who do so often, or must not wait.

        Raises:
            NotFound: There is no such space, or version.
            Unavailable: The store has not been reached since the start.
        """
        return self._spaces.reader(space, version)

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
        """Store rows of a feature table; those that are there are replaced. When it returns, they are kept.

        Args:
            table: Which table.
            keys: Texts.
            values: By column, each ``[N]``: numbers that its dtype can hold, finite; texts as ``str`` or as
                ``bytes`` of UTF-8. A column with a default may be left out, and so may single values (None).
            version: Which version of the table; 0 for its default.
            written: When each was written, in milliseconds of Unix time, uint64 ``[N]``; None for now.

        Raises:
            NotFound: There is no such table, or version.
            InvalidRequest: Keys or values are not what they should be.
            Unavailable: The store does not answer; some may be stored.
        """
        reader = self.reader(table, version)
        check_not_fed(table, reader.version)
        rows = checked_rows(values, len(keys), reader.version)
        self._put(reader, keys, rows, checked_written(written, len(keys)))

    def _put(
        self, reader: SpaceReader, keys: Sequence[str], values: Array, written: Array | None = None
    ) -> None:
        """Store checked values under keys, which are checked first."""
        texts = checked(keys, max(reader.settings.max_keys, len(keys)))
        longest = reader.settings.max_key_bytes
        at_once = max(1, min(_PUT_AT_ONCE, _PUT_AT_ONCE_BYTES // reader.version.form.record_bytes))
        slices = list(in_slices(texts, at_once, longest))
        for some in slices:
            reader.cache.hashes(texts[some], longest, some.start)  # checks them
        for some in slices:
            self.store_vectors(reader, texts[some], values[some], None if written is None else written[some])
            if reader.version.embedder:
                self._mended(reader, texts[some])

    def _mended(self, reader: SpaceReader, keys: Sequence[str]) -> None:
        """Remove the dead letters of keys that have a vector now."""
        number = reader.version.number
        if dead := self.dead_letters.among(reader.space, keys, number):
            self.dead_letters.drop(reader.space, list(dead), [number])

    def store_vectors(
        self, reader: SpaceReader, keys: Sequence[str], vectors: Array, written: Array | None = None
    ) -> None:
        """Store checked vectors, or rows, a few at once.

        Args:
            reader: Of the space version.
            keys: Checked texts.
            vectors: float32 ``[N, dimension]``, finite; or rows, uint8 ``[N, row bytes]``.
            written: When, in milliseconds of Unix time, uint64 ``[N]``; None for now. Where the space keeps
                its past, a value does not replace one that was written later.

        Raises:
            InvalidRequest: A number is larger than the space's dtype can be.
            Unavailable: The store does not answer.
        """
        when = unix_milliseconds() if written is None else written
        records = reader.version.form.encode(vectors, when)
        self.writes.store(reader, keys, records, is_told=written is not None)

    def invalidate(self, space: str, keys: Sequence[str]) -> int:
        """Remove the values of keys from all versions of a space; an embedder makes them anew when asked for.

        Where there is none, as in a feature table, they are missing until somebody stores them. What they
        were stays, as long as ``history_seconds`` say. Their dead letters go, too: what could not be embedded
        may have changed. Other processes may answer the old ones for ``cache.poll_seconds`` more.

        Returns:
            How many of the keys had a value, or a dead letter.

        Raises:
            NotFound: There is no such space.
            InvalidRequest: A key is none.
            Unavailable: The store does not answer.
        """
        return self._remove(space, keys, is_forgotten=False)

    def forget(self, space: str, keys: Sequence[str]) -> int:
        """Remove keys with everything that was kept of them: vectors, messages that wait, dead letters.

        What is being embedded at this moment is removed by whoever does that.

        Returns:
            How many of the keys had a value, or a dead letter.

        Raises:
            NotFound: There is no such space.
            InvalidRequest: A key is none.
            Unavailable: The store or the queue does not answer; ask again.
        """
        texts = self._checked(space, keys)
        self.forgotten.add(space, texts)
        if not self.queue.remove([message_key(space, text) for text in texts]):
            # Fillers drop what waits, by when it was queued, which another machine's clock may have said.
            self.forgotten.add(space, texts, CLOCKS_APART_SECONDS)
        return self.forget_made(space, texts)

    def forget_made(self, space: str, keys: Sequence[str]) -> int:
        """Remove what may have been made of keys that are forgotten: vectors and dead letters.

        Returns:
            How many of the keys had any.

        Raises:
            Unavailable: The store does not answer.
        """
        return self._remove(space, keys, is_forgotten=True)

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
        return self._spaces.record(space)

    def add_version(self, space: str, embedder: Embedder) -> SpaceVersion:
        """The version of a space that an embedder makes; a new one if it has not made any.

        Raises:
            NotFound: There is no such space.
            ConfigError: The space is of another dimension.
            Unavailable: The store does not answer.
        """
        return self._spaces.add_version(space, embedder)

    def table_version(
        self, table: str, columns: Sequence[Column], *, is_loading: bool = False
    ) -> SpaceVersion:
        """The version of a feature table with exactly these columns, in any order; made if there is none.

        Args:
            table: Which table.
            columns: Its columns.
            is_loading: Whether it is not full until it is made the default, even if it is the first.

        Raises:
            NotFound: There is no such space.
            InvalidRequest: It is no table.
            ConfigError: These cannot be the columns of a table.
            Unavailable: The store does not answer.
        """
        return self._spaces.table_version(table, columns, is_loading=is_loading)

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
        texts = self._checked(space, keys)
        versions = list(self._spaces.versions(space))
        found = set[str]().union(
            *(self.dead_letters.among(space, texts, version.number) for version in versions)
        )
        self.dead_letters.drop(space, texts, [version.number for version in versions])
        for version in versions:
            reader = self.reader(space, version.number)
            for some in in_slices(texts, _PUT_AT_ONCE, reader.settings.max_key_bytes):
                there = self.writes.remove(reader, texts[some], is_forgotten=is_forgotten)
                found.update(compress(texts[some], there))
        self._spaces.apply(space, self.catalog.change(space, with_forgotten))
        return len(found)

    def _checked(self, space: str, keys: Sequence[str]) -> list[str]:
        """Keys that a space can have; nothing is done with any of them if one is wrong."""
        longest = self._spaces.settings(space).max_key_bytes
        for row, key in enumerate(texts := checked(keys, max(1, len(keys)))):
            if not 0 < size_of(key, longest) <= longest:
                raise wrong_key(key, row, longest)
        return texts

    def _accepted(self, wanted: Sequence[Wanted]) -> None:
        """The queue has taken keys: no lookup hands them on again for a while."""
        by_version: dict[tuple[str, int], list[str]] = {}
        for one in wanted:
            by_version.setdefault((one.space, one.version), []).append(one.key)
        for where, keys in by_version.items():
            reader = self._spaces.known(*where)
            if reader is not None:
                reader.queued(keys)

    def _follow(self) -> None:
        """See what other processes decide."""
        while not self._closed.wait(self.config.cache.poll_seconds):
            self._tell()
            for space in self.config.spaces:
                try:
                    self._look(space)
                except Exception:  # noqa: BLE001 - the boundary of the thread: the next look may succeed
                    _log.exception("the record of the space %s cannot be followed", space)

    def _look(self, space: str) -> None:
        """See what others have decided about a space; a record that cannot be used is said once."""
        here = f"record {space}"
        try:
            self._spaces.look(space)
        except Refused as error:  # which lookups tell of
            _log.debug("the record of the space %s cannot be read: %s", space, error.message)
        except HeadraceError as error:
            if self.troubles.get(here) != error.message:
                _log.warning("%s; what was known of the space stays", error.message)
            self.troubles[here] = error.message
        else:
            self.troubles.pop(here, None)

    def _tell(self, *, is_over: bool = False) -> None:
        """Tell others how this process fares."""
        try:
            self._reporter.report(is_over=is_over)
        except HeadraceError as error:
            _log.debug("this process cannot report: %s", error.message)
        except Exception:  # noqa: BLE001 - the boundary of the thread
            _log.exception("this process cannot report")
