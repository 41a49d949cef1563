"""A filler's work on a batch of messages: embed missing keys, store their vectors, and record failures.

Every step may be repeated: keys that have a vector are dropped first, so a batch delivered twice costs one
read. Storing the same vector twice changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import tenacity

from headrace.archive.embedders.embedder import Embedded
from headrace.archive.filling.encoder_calls import EncoderCalls, FillSources, Stop, Stopped, VersionEmbedder
from headrace.archive.filling.pooled_embedder import DependencyUnavailable
from headrace.archive.filling.retries_and_dead_letters import (
    ATTEMPTS,
    FIRST_WAIT_SECONDS,
    LONGEST_WAIT_SECONDS,
    EncoderFailed,
    Task,
    again,
    aside,
    is_last,
    is_poison,
    letter_of,
)
from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.dead_letter_records import now
from headrace.archive.lookup.miss_queue import Wanted, wanted_of
from headrace.archive.lookup.reports import FillCounts
from headrace.archive.lookup.space_reader import SpaceReader
from headrace.archive.lookup.writes import CLOCKS_APART_SECONDS, size_of
from headrace.archive.model.archive_toml import MEAN, content_of
from headrace.archive.model.catalog import NO_RECORD, partition
from headrace.archive.model.keys import all_stored
from headrace.archive.model.oov import ENOUGH, keep_mean
from headrace.archive.model.records import Form, joined
from headrace.base.errors import FailedPrecondition, HeadraceError, NotFound, Refused
from headrace.base.tensors import Array
from headrace.net.content_failures import Failure

_log = logging.getLogger(__name__)

_ResultT = TypeVar("_ResultT")

_JITTER_SECONDS = 0.2
_PATIENCE_SECONDS = 1.0  # for an embedder's answer, if there are other embedders to call
_PATIENCE_ALONE_SECONDS = 30.0
_PUT_BACK_AT_ONCE = 1000


Asked = Sequence[tuple[Wanted, Task]]
"""Keys that messages ask for, with their tasks."""


@dataclass(eq=False)
class _Group:
    """Keys of one space version, each once, with the first message that asks for it."""

    reader: SpaceReader
    encoder: VersionEmbedder
    keys: dict[str, Task] = field(default_factory=dict)
    missing: Sequence[str] = ()  # keys to embed
    dead: set[str] = field(default_factory=set)  # keys with a dead letter

    @property
    def where(self) -> tuple[str, int]:
        """The space version."""
        return self.reader.space, self.reader.version.number


class BatchFiller:
    """Fills batches of messages, for one thread.

    Attributes:
        counts: Filling counts, by space.
    """

    def __init__(
        self,
        archive: Archive,
        filled: FillSources,
        counts: Mapping[str, FillCounts],
        stop: Stop,
    ) -> None:
        """Fill an archive.

        Args:
            archive: The archive.
            filled: Embedders that fill it.
            counts: Counts to update, by space.
            stop: Stop signal, after which batches are left unfinished.
        """
        self._archive = archive
        self._filled = filled
        self.counts = counts
        self._stop = stop
        self._asking = EncoderCalls(filled, stop)
        # Filled count at which to try the mean of a space version again.
        self._mean_at: dict[tuple[str, int], int] = {}

    def fill(self, tasks: Sequence[Task]) -> list[Task]:
        """Process messages; those that are not returned may then be acknowledged.

        Returns:
            Tasks to pass in again when they are due: their content may become available, their embedder is
            unavailable or has not answered yet, or their table has no rows.

        Raises:
            Stopped: The batch was not finished.
        """
        self._asking.stop_awaiting([task.call for task in tasks])
        wanted = list(self._wanted(tasks))
        forgotten = self._persist(lambda: self._forgotten(wanted))
        later: set[tuple[str, str]] = set()
        groups, unavailable = self._groups(wanted, forgotten)
        for group in groups:
            try:
                later.update((group.reader.space, key) for key in self._fill_group(group))
            except DependencyUnavailable as left:
                if self._buried_as_refused(group, left):
                    continue
                unavailable.update(dict.fromkeys(((group.reader.space, key) for key in group.missing), left))
        # A key may have been forgotten while its vector was made, now or by a filler that was killed.
        gone = self._persist(lambda: self._forgotten(wanted))
        for (one, _), is_gone in zip(wanted, gone, strict=True):
            if is_gone and one.space in self._archive.config.spaces:
                self._persist(partial(self._archive.forget_made, one.space, [one.key]))
        return [
            aside(task, unavailable[one.space, one.key])
            if (one.space, one.key) in unavailable
            else again(task)
            for one, task in wanted
            if (one.space, one.key) in unavailable or (one.space, one.key) in later
        ]

    def begin_anew(self) -> None:
        """Record that the caller holds no messages any more; the queue delivers them again."""
        self._asking.stop_awaiting_all()

    def put_back(self, tasks: Sequence[Task]) -> None:
        """Put messages back to the queue's end; on return they may be acknowledged.

        Raises:
            Refused: The queue does not accept them, or the store does not answer; some may be queued twice.
        """
        wanted = list(self._wanted(tasks))
        for start in range(0, len(wanted), _PUT_BACK_AT_ONCE):
            some = wanted[start : start + _PUT_BACK_AT_ONCE]
            forgotten = self._forgotten(some)
            again = [one.again() for (one, _), is_gone in zip(some, forgotten, strict=True) if not is_gone]
            self._archive.queue.publish([one.message() for one in again])

    def _wanted(self, tasks: Sequence[Task]) -> Asked:
        found = []
        for task in tasks:
            try:
                found.append((wanted_of(task.delivery.message), task))
            except HeadraceError as error:  # it can never be processed
                _log.warning("dropped: %s", error.message)
        return found

    def _forgotten(self, wanted: Asked) -> list[bool]:
        # A message that was put back has a new queue time; the key may have been forgotten just before.
        back = self._archive.config.queue.timeout_seconds + CLOCKS_APART_SECONDS
        queued = [
            (one.space, one.key, task.delivery.queued - (back if one.turn else 0.0)) for one, task in wanted
        ]
        return self._archive.forgotten.since(queued)

    def _groups(
        self, wanted: Asked, forgotten: Sequence[bool]
    ) -> tuple[list[_Group], dict[tuple[str, str], DependencyUnavailable]]:
        """Group the keys to embed by space version; each key is also embedded for the newest version.

        Returns:
            The groups, and the keys whose embedder is not open.
        """
        groups: dict[tuple[str, int], _Group] = {}
        unavailable: dict[tuple[str, str], DependencyUnavailable] = {}
        awaited = dict(self._filled.awaited)  # read first: a space opened in between is still awaited then
        spaces = dict(self._filled.encoders)
        records = {space: self._archive.record(space) for space in spaces}
        for (one, task), is_forgotten in zip(wanted, forgotten, strict=True):
            record = records.get(one.space, NO_RECORD)
            encoders = [
                encoder for encoder in spaces.get(one.space, ()) if not record.is_gone(encoder.version)
            ]
            if is_forgotten or self._buried_as_invalid(one):
                continue
            if one.space in awaited:
                unavailable[one.space, one.key] = DependencyUnavailable(awaited[one.space])
                continue
            if not encoders or one.version > encoders[-1].version:
                if not record.is_gone(one.version):  # a dropped version is not wanted any more
                    self._bury_unfillable(one, encoders)
                continue
            for encoder in encoders:
                if encoder.version not in (one.version, encoders[-1].version):
                    continue
                where = one.space, encoder.version
                if where not in groups:
                    groups[where] = _Group(self._archive.reader(*where), encoder)
                groups[where].keys.setdefault(one.key, task)
        return list(groups.values()), unavailable

    def _buried_as_invalid(self, wanted: Wanted) -> bool:
        """Write a dead letter for a key that is too long or invalid for any lookup; return whether it is."""
        settings = self._archive.config.spaces.get(wanted.space)
        if settings is None or 0 < size_of(wanted.key, settings.max_key_bytes) <= settings.max_key_bytes:
            return False
        reason = f"expected a key of 1 to {settings.max_key_bytes} bytes of UTF-8 (max_key_bytes)"
        letter = letter_of(wanted, reason, 0, is_final=True)
        self._persist(lambda: self._archive.dead_letters.add([letter]))
        return True

    def _bury_unfillable(self, wanted: Wanted, encoders: Sequence[VersionEmbedder]) -> None:
        """Write a dead letter, which can be replayed, for a key of a version that this filler cannot fill."""
        made = f"it fills version {encoders[-1].version}" if encoders else "it has no embedder of this space"
        reason = (
            f"the filler that received it cannot make version {wanted.version}: {made}; restart the fillers "
            "with the current archive.toml, and replay"
        )
        letter = letter_of(wanted, reason, 0, is_final=False)
        self._persist(lambda: self._archive.dead_letters.add([letter]))

    def _buried_as_refused(self, group: _Group, unavailable: DependencyUnavailable) -> bool:
        """Write a dead letter if an embedder keeps refusing only this content; return whether it does."""
        if unavailable.refused != 1 or len(group.missing) != 1:
            return False
        (key,) = group.missing
        if aside(group.keys[key], unavailable).attempts < ATTEMPTS:
            return False
        error = unavailable.__cause__
        said = error.message if isinstance(error, HeadraceError) else repr(error)
        reason = f"the encoder refused it {ATTEMPTS} times, but answered others in between: {said}"
        self._bury(group, {key: Failure(reason, is_final=False)})
        return True

    def _fill_group(self, group: _Group) -> set[str]:
        """Fill the missing keys; return the keys whose content may become available later."""
        reader, counts = group.reader, self.counts[group.reader.space]
        there = self._persist(lambda: self._stored(reader, list(group.keys)))
        counts.there += sum(there)
        keys = [key for key, is_there in zip(group.keys, there, strict=True) if not is_there]
        group.missing = keys = self._without_poison(group, keys)
        if not keys:
            return set()
        embedded = self._made(group, keys)
        done = [place for place in range(len(keys)) if place not in embedded.failures]
        self._store(group, [keys[place] for place in done], embedded.vectors[done])
        failed = {keys[place]: failure for place, failure in embedded.failures.items()}
        final = {
            key: failure for key, failure in failed.items() if is_last(failure, group.keys[key].attempts)
        }
        self._bury(group, final)
        return failed.keys() - final.keys()

    def _without_poison(self, group: _Group, keys: list[str]) -> list[str]:
        """Return the keys except those that a dead letter keeps from retries; see ``is_poison``."""
        if not keys:
            return keys
        reader = group.reader
        number, ttl_seconds = reader.version.number, reader.settings.ttl_seconds
        letters = self._persist(lambda: self._archive.dead_letters.of(reader.space, keys, number))
        group.dead = set(letters)
        return [key for key in keys if key not in letters or not is_poison(letters[key], ttl_seconds)]

    def _stored(self, reader: SpaceReader, keys: list[str]) -> list[bool]:
        """Return which keys already have a vector."""
        form = reader.version.form
        where = partition(reader.space, reader.version.number)
        values = self._archive.store.get_many(where, all_stored(keys), form.missing)
        there: list[bool] = form.are_records(joined(values, form)).tolist()
        return there

    def _made(self, group: _Group, keys: Sequence[str]) -> Embedded:
        """Return the vectors of keys, with failures for keys without content."""
        form = group.reader.version.form
        contents = self._contents(group.reader, keys)
        there = [content for content in contents if content is not None]
        if len(there) == len(keys):
            return self._embed(group, form, there)
        table = self._filled.texts[group.reader.space].table
        reason = f"the table {table!r} has no row of this key yet; load it, and replay"
        failures = {place: Failure(reason, False) for place, one in enumerate(contents) if one is None}
        vectors = np.zeros((len(keys), form.dimension), np.float32)
        if there:
            places = [place for place, one in enumerate(contents) if one is not None]
            embedded = self._embed(group, form, there)
            vectors[places] = embedded.vectors
            failures |= {places[place]: failure for place, failure in embedded.failures.items()}
        return Embedded(vectors, failures)

    def _contents(self, reader: SpaceReader, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Return the contents of keys; None for a content that does not exist yet.

        Raises:
            DependencyUnavailable: The contents come from a table that has no rows yet.
        """
        texts = self._filled.texts.get(reader.space)
        if texts is None:
            return [content_of(reader.settings.content, key) for key in keys]
        return self._persist(lambda: texts.of(keys))

    def _embed(
        self, group: _Group, form: Form, contents: Sequence[bytes], patience: float = _PATIENCE_SECONDS
    ) -> Embedded:
        try:
            embedded = self._asking.ask(group.encoder, group.where, contents, patience)
        except (Stopped, DependencyUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - an encoder may be third-party code
            if len(contents) > 1:  # one of them may be the cause
                return self._one_by_one(group, form, contents)
            reason = error.message if isinstance(error, HeadraceError) else repr(error)
            failed = EncoderFailed(f"the encoder failed: {reason}", is_final=True)
            embedded = Embedded(np.zeros((1, group.encoder.embedder.dimension)), {0: failed})
        return _checked(embedded, len(contents), form)

    def _one_by_one(self, group: _Group, form: Form, contents: Sequence[bytes]) -> Embedded:
        vectors, failures = np.zeros((len(contents), form.dimension), np.float32), {}
        for place, content in enumerate(contents):
            alone = self._embed(group, form, [content], _PATIENCE_ALONE_SECONDS)
            vectors[place] = alone.vectors[0]
            if alone.failures:
                failures[place] = alone.failures[0]
        return Embedded(vectors, failures)

    def _store(self, group: _Group, keys: Sequence[str], vectors: Array) -> None:
        if not keys:
            return
        counts, time = self.counts[group.reader.space], now()
        try:
            self._persist(lambda: self._archive.store_vectors(group.reader, keys, vectors))
        except NotFound:  # the version has been dropped meanwhile
            return
        except HeadraceError as error:  # permanent: one faulty vector must not keep the others from the store
            if len(keys) > 1:
                for place, key in enumerate(keys):
                    self._store(group, [key], vectors[place : place + 1])
                return
            self._bury(group, {keys[0]: Failure(f"it cannot be stored: {error.message}", is_final=True)})
            return
        if mended := [key for key in keys if key in group.dead]:
            number = group.reader.version.number
            self._persist(lambda: self._archive.dead_letters.drop(group.reader.space, mended, [number]))
        counts.filled += len(keys)
        counts.late_seconds += sum(max(0.0, time - group.keys[key].delivery.queued) for key in keys)
        self._keep_mean(group.reader, counts.filled)

    def _keep_mean(self, reader: SpaceReader, filled: int) -> None:
        """Make the mean of a space its OOV vector once there are enough vectors."""
        where = reader.space, reader.version.number
        if reader.settings.oov != MEAN or reader.version.mean or filled < self._mean_at.get(where, 0):
            return
        self._mean_at[where] = filled + ENOUGH // 4
        archive = self._archive
        self._persist(lambda: keep_mean(archive.store, archive.catalog, reader.space, reader.version))

    def _bury(self, group: _Group, failures: Mapping[str, Failure]) -> None:
        if not failures:
            return
        reader = group.reader
        letters = [
            letter_of(
                Wanted(reader.space, reader.version.number, key),
                failure.reason,
                group.keys[key].attempts + 1,
                is_final=failure.is_final and not isinstance(failure, EncoderFailed),
            )
            for key, failure in failures.items()
        ]
        self._persist(lambda: self._archive.dead_letters.add(letters))
        self.counts[reader.space].dead += len(letters)

    def _persist(self, call: Callable[[], _ResultT]) -> _ResultT:
        """Repeat a call while it is refused; while the store is down, the batch waits here.

        Raises:
            Stopped: The filler must end.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((Refused, FailedPrecondition)),
            wait=tenacity.wait_exponential_jitter(
                multiplier=FIRST_WAIT_SECONDS, max=LONGEST_WAIT_SECONDS, jitter=_JITTER_SECONDS
            ),
            stop=tenacity.stop_when_event_set(self._stop.event),
            sleep=tenacity.sleep_using_event(self._stop.event),
            before_sleep=self._tell,
        )
        try:
            return retrying(call)
        except tenacity.RetryError:
            raise Stopped from None
        finally:
            self._archive.troubles.pop(self, None)

    def _tell(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        self._archive.troubles[self] = f"filling waits: {error}"
        if state.attempt_number == 1:
            _log.warning("filling waits: %s", error)


def _checked(embedded: Embedded, contents: int, form: Form) -> Embedded:
    """Return an embedder's result, with invalid vectors as failures."""
    vectors, dimension = embedded.vectors, form.dimension
    if vectors.shape != (contents, dimension):
        got = f"expected vectors {[contents, dimension]} from the encoder, got {list(vectors.shape)}"
        return Embedded(
            np.zeros((contents, dimension), np.float32),
            {place: EncoderFailed(got, is_final=True) for place in range(contents)},
        )
    failures = dict(embedded.failures)
    for place in np.flatnonzero(~form.fits(vectors)).tolist():
        is_finite = bool(np.isfinite(vectors[place]).all())
        wrong = f"a number too large for {form.dtype}" if is_finite else "NaN or infinity"
        failures.setdefault(place, Failure(f"the encoder returned a vector with {wrong}", True))
    return Embedded(vectors, failures)
