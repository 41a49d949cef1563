"""What a filler does with a batch of messages: embed what is not there yet, store it, and say what cannot be.

Every step may be done again: what is there already is dropped first, so that a batch that was delivered twice
costs one look, and storing the same vector twice changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import tenacity

from headrace.archive.archive import Archive
from headrace.archive.catalog import NO_RECORD, partition
from headrace.archive.config import MEAN
from headrace.archive.contents import content_of
from headrace.archive.dead_letters import DeadLetter, now
from headrace.archive.embedders.embedder import Embedded, Failure
from headrace.archive.encoders import Asking, Encoder, Filled, Stop, Stopped
from headrace.archive.fill_counts import FillCounts
from headrace.archive.forgotten import CLOCKS_APART_SECONDS
from headrace.archive.given import size_of
from headrace.archive.held import Task
from headrace.archive.keys import all_stored
from headrace.archive.looking import SpaceReader
from headrace.archive.oov import ENOUGH, keep_mean
from headrace.archive.publishing import Wanted, wanted_of
from headrace.archive.records import Form, joined
from headrace.archive.suppliers import Away
from headrace.errors import FailedPrecondition, HeadraceError, NotFound, Refused
from headrace.tensors import Array

_log = logging.getLogger(__name__)

_ResultT = TypeVar("_ResultT")

ATTEMPTS = 5
"""How often a content that may be had later is tried before it becomes a dead letter."""

_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 30.0
_JITTER_SECONDS = 0.2
_LONGEST_REASON = 2000
_PATIENCE_SECONDS = 1.0  # for an embedder's answer, where others are to be asked
_PATIENCE_ALONE_SECONDS = 30.0
_PUT_BACK_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class _EncoderFailed(Failure):
    """The encoder failed, which may be no fault of the content: who asks for it again has it tried again."""


Asked = Sequence[tuple[Wanted, Task]]
"""What messages ask for."""


@dataclass(eq=False)
class _Group:
    """The keys of one space version, each once, with the first message that asks for it."""

    reader: SpaceReader
    encoder: Encoder
    keys: dict[str, Task] = field(default_factory=dict)
    missing: Sequence[str] = ()  # those to embed
    dead: set[str] = field(default_factory=set)  # those with a dead letter

    @property
    def where(self) -> tuple[str, int]:
        """The space version."""
        return self.reader.space, self.reader.version.number


class BatchFiller:
    """Fills batches of messages; one for each thread.

    Attributes:
        counts: By space.
    """

    def __init__(
        self,
        archive: Archive,
        filled: Filled,
        counts: Mapping[str, FillCounts],
        stop: Stop,
    ) -> None:
        """Fill an archive.

        Args:
            archive: What is filled.
            filled: What fills it.
            counts: Where it is counted, by space.
            stop: When a batch is to be left undone.
        """
        self._archive = archive
        self._filled = filled
        self.counts = counts
        self._stop = stop
        self._asking = Asking(filled, stop)
        # How many of a space version must be filled before its mean is tried again.
        self._mean_at: dict[tuple[str, int], int] = {}

    def fill(self, tasks: Sequence[Task]) -> list[Task]:
        """Do what messages ask for; when it returns, those that it does not give may be acknowledged.

        Returns:
            Those whose content may be had later, and those whose embedder is away or has not answered yet, or
            whose table has no rows, to be given again when they are due: nobody waits for them meanwhile.

        Raises:
            Stopped: Not all was done.
        """
        self._asking.come([task.call for task in tasks])
        wanted = list(self._wanted(tasks))
        forgotten = self._persist(lambda: self._forgotten(wanted))
        later: set[tuple[str, str]] = set()
        groups, away = self._groups(wanted, forgotten)
        for group in groups:
            try:
                later.update((group.reader.space, key) for key in self._fill_group(group))
            except Away as left:
                if self._is_refused(group, left):
                    continue
                away.update(dict.fromkeys(((group.reader.space, key) for key in group.missing), left))
        # What was forgotten while its vector was being made, now or by a filler that was killed, is stored.
        gone = self._persist(lambda: self._forgotten(wanted))
        for (one, _), is_gone in zip(wanted, gone, strict=True):
            if is_gone and one.space in self._archive.config.spaces:
                self._persist(partial(self._archive.forget_made, one.space, [one.key]))
        return [
            _aside(task, away[one.space, one.key]) if (one.space, one.key) in away else _again(task)
            for one, task in wanted
            if (one.space, one.key) in away or (one.space, one.key) in later
        ]

    def begin_anew(self) -> None:
        """All messages that it has given back to be held are received again, if at all."""
        self._asking.nobody_waits()

    def put_back(self, tasks: Sequence[Task]) -> None:
        """Put messages back to the queue's end; when it returns, they may be acknowledged.

        Raises:
            Refused: The queue does not take them, or the store does not answer; some may be there twice.
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
            except HeadraceError as error:  # nobody can do anything with it, nor ever will
                _log.warning("dropped: %s", error.message)
        return found

    def _forgotten(self, wanted: Asked) -> list[bool]:
        # What is put back was queued before, at least by as much as putting it back may take.
        back = self._archive.config.queue.timeout_seconds + CLOCKS_APART_SECONDS
        queued = [
            (one.space, one.key, task.delivery.queued - (back if one.turn else 0.0)) for one, task in wanted
        ]
        return self._archive.forgotten.since(queued)

    def _groups(
        self, wanted: Asked, forgotten: Sequence[bool]
    ) -> tuple[list[_Group], dict[tuple[str, str], Away]]:
        """The keys to embed, by space version; those of a version that nobody can fill go to the newest.

        Returns:
            Those, and the keys whose embedder is not open.
        """
        groups: dict[tuple[str, int], _Group] = {}
        away: dict[tuple[str, str], Away] = {}
        awaited = dict(self._filled.awaited)  # first: what is open by then has its encoders
        spaces = dict(self._filled.encoders)
        records = {space: self._archive.record(space) for space in spaces}
        for (one, task), is_forgotten in zip(wanted, forgotten, strict=True):
            record = records.get(one.space, NO_RECORD)
            encoders = [
                encoder for encoder in spaces.get(one.space, ()) if not record.is_gone(encoder.version)
            ]
            if is_forgotten or self._is_too_long(one):
                continue
            if one.space in awaited:
                away[one.space, one.key] = Away(awaited[one.space])
                continue
            if not encoders or one.version > encoders[-1].version:
                if not record.is_gone(one.version):  # else nobody can want it any more
                    self._leave(one, encoders)
                continue
            for encoder in encoders:
                if encoder.version not in (one.version, encoders[-1].version):
                    continue
                where = one.space, encoder.version
                if where not in groups:
                    groups[where] = _Group(self._archive.reader(*where), encoder)
                groups[where].keys.setdefault(one.key, task)
        return list(groups.values()), away

    def _is_too_long(self, wanted: Wanted) -> bool:
        """Whether no lookup can ask for a key, and none could have; it becomes a dead letter then."""
        settings = self._archive.config.spaces.get(wanted.space)
        if settings is None or 0 < size_of(wanted.key, settings.max_key_bytes) <= settings.max_key_bytes:
            return False
        reason = f"expected a key of 1 to {settings.max_key_bytes} bytes of UTF-8 (max_key_bytes)"
        letter = _letter(wanted, reason, 0, is_final=True)
        self._persist(lambda: self._archive.dead_letters.add([letter]))
        return True

    def _leave(self, wanted: Wanted, encoders: Sequence[Encoder]) -> None:
        """Keep what this filler cannot make as a dead letter: with its reason it can be replayed."""
        made = f"it fills version {encoders[-1].version}" if encoders else "it has no embedder of this space"
        reason = (
            f"the filler that got it cannot make version {wanted.version}: {made}; start fillers anew with "
            "the archive.toml of now, and replay"
        )
        letter = _letter(wanted, reason, 0, is_final=False)
        self._persist(lambda: self._archive.dead_letters.add([letter]))

    def _is_refused(self, group: _Group, away: Away) -> bool:
        """Whether an embedder that answers others refuses one content for good, which then has a letter."""
        if away.refused != 1 or len(group.missing) != 1:
            return False
        (key,) = group.missing
        if _aside(group.keys[key], away).attempts < ATTEMPTS:
            return False
        error = away.__cause__
        said = error.message if isinstance(error, HeadraceError) else repr(error)
        reason = f"the encoder refused it {ATTEMPTS} times, and answered others in between: {said}"
        self._bury(group, {key: Failure(reason, is_final=False)})
        return True

    def _fill_group(self, group: _Group) -> set[str]:
        """Fill what is not there; give the keys whose content may be had later."""
        reader, counts = group.reader, self.counts[group.reader.space]
        there = self._persist(lambda: self._stored(reader, list(group.keys)))
        counts.there += sum(there)
        keys = [key for key, is_there in zip(group.keys, there, strict=True) if not is_there]
        group.missing = keys = self._without_poison(group, keys)
        if not keys:
            return set()
        counts.retried += any(group.keys[key].attempts for key in keys)
        embedded = self._made(group, keys)
        done = [place for place in range(len(keys)) if place not in embedded.failures]
        self._store(group, [keys[place] for place in done], embedded.vectors[done])
        failed = {keys[place]: failure for place, failure in embedded.failures.items()}
        final = {
            key: failure
            for key, failure in failed.items()
            if failure.is_final or group.keys[key].attempts + 1 >= ATTEMPTS
        }
        self._bury(group, final)
        return failed.keys() - final.keys()

    def _without_poison(self, group: _Group, keys: list[str]) -> list[str]:
        """Keys but for those that are known to have no vector: asking for them again does not help.

        They are tried when they are replayed, or invalidated, or a vector would have lost its worth by now.
        """
        if not keys:
            return keys
        reader = group.reader
        number, ttl_seconds = reader.version.number, reader.settings.ttl_seconds
        letters = self._persist(lambda: self._archive.dead_letters.of(reader.space, keys, number))
        group.dead = set(letters)
        since = now() - ttl_seconds if ttl_seconds else 0.0
        poison = {key for key, letter in letters.items() if letter.is_final and letter.died >= since}
        return [key for key in keys if key not in poison]

    def _stored(self, reader: SpaceReader, keys: list[str]) -> list[bool]:
        """Which keys have a vector already."""
        form = reader.version.form
        where = partition(reader.space, reader.version.number)
        values = self._archive.store.get_many(where, all_stored(keys), form.missing)
        there: list[bool] = form.are_records(joined(values, form)).tolist()
        return there

    def _made(self, group: _Group, keys: Sequence[str]) -> Embedded:
        """Vectors of keys: of the contents that there are."""
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
        """What is to be embedded; None for what is not there yet.

        Raises:
            Away: It comes from a table that has no rows yet.
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
        except (Stopped, Away):
            raise
        except Exception as error:  # noqa: BLE001 - the boundary to an encoder, which may be anybody's
            if len(contents) > 1:  # one of them may be what it cannot stand
                return self._one_by_one(group, form, contents)
            reason = error.message if isinstance(error, HeadraceError) else repr(error)
            failed = _EncoderFailed(f"the encoder failed: {reason}", is_final=True)
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
        except HeadraceError as error:  # nor ever: what is wrong with one must not keep the others
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
        """Have the mean of a space be its out-of-vocabulary vector, as soon as there are enough vectors."""
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
            _letter(
                Wanted(reader.space, reader.version.number, key),
                failure.reason,
                group.keys[key].attempts + 1,
                is_final=failure.is_final and not isinstance(failure, _EncoderFailed),
            )
            for key, failure in failures.items()
        ]
        self._persist(lambda: self._archive.dead_letters.add(letters))
        self.counts[reader.space].dead += len(letters)

    def _persist(self, call: Callable[[], _ResultT]) -> _ResultT:
        """Call until it is not refused: a store that is down keeps the batch where it is.

        Raises:
            Stopped: The filler is to end.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((Refused, FailedPrecondition)),
            wait=tenacity.wait_exponential_jitter(
                multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS, jitter=_JITTER_SECONDS
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


def _again(task: Task) -> Task:
    """A task whose content may be had later: when to try it again."""
    attempts = task.attempts + 1
    seconds = min(_LONGEST_WAIT_SECONDS, 2 * _FIRST_WAIT_SECONDS * 2**attempts)
    return Task(task.delivery, attempts, time.monotonic() + seconds)


def _aside(task: Task, away: Away) -> Task:
    """A task whose embedder is away: that is no attempt, unless it refused this one alone, and not others."""
    attempts, answers = task.attempts, task.answers
    if away.refused == 1:
        attempts += 0 <= answers < away.answers
        answers = away.answers
    return Task(
        task.delivery,
        attempts,
        awaits=away.awaited,
        call=away.call,
        refused=away.refused,
        answers=answers,
    )


def _letter(wanted: Wanted, reason: str, attempts: int, *, is_final: bool) -> DeadLetter:
    return DeadLetter(
        space=wanted.space,
        version=wanted.version,
        key=wanted.key,
        reason=reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} …",
        attempts=attempts,
        died=now(),
        is_final=is_final,
    )


def _checked(embedded: Embedded, contents: int, form: Form) -> Embedded:
    """What an embedder gave, with vectors that cannot be one as failures."""
    vectors, dimension = embedded.vectors, form.dimension
    if vectors.shape != (contents, dimension):
        got = f"the encoder gave {list(vectors.shape)}, and not {[contents, dimension]}"
        return Embedded(
            np.zeros((contents, dimension), np.float32),
            {place: _EncoderFailed(got, is_final=True) for place in range(contents)},
        )
    failures = dict(embedded.failures)
    for place in np.flatnonzero(~form.fits(vectors)).tolist():
        is_finite = bool(np.isfinite(vectors[place]).all())
        wrong = f"a number that {form.dtype} cannot be" if is_finite else "NaN or infinity"
        failures.setdefault(place, Failure(f"the encoder gave a vector with {wrong} in it", True))
    return Embedded(vectors, failures)
