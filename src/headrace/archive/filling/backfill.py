"""Filling a new space version with the keys of an older one, while both answer lookups.

Keys go through the queue like missing ones: all fillers help, keys that cannot be embedded become dead
letters, and keys that have a vector by then are dropped. A few pages of keys are in flight at a time. The
store keeps the position up to which all keys are done, so that a backfill resumes there after a crash.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.dead_letter_records import now
from headrace.archive.lookup.space_reader import SpaceReader
from headrace.archive.model.catalog import partition
from headrace.archive.model.keys import all_stored, is_digest
from headrace.archive.model.records import joined
from headrace.base.errors import Conflict, FailedPrecondition, HeadraceError, InvalidRequest
from headrace.storage.stores.store import Store, pages

PAGE = 500
"""Maximum number of keys in a page; a page is queued in one call."""

_PAGES_ON_THEIR_WAY = 4
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.1, 1.0
_CAUGHT_UP_SECONDS = 1.0
_ASK_AGAIN_SECONDS = 60.0


class Position(msgspec.Struct, frozen=True):
    """Progress of a backfill.

    Attributes:
        cursor: Start of the next page, in hexadecimal digits.
        keys: Number of keys done.
        is_done: Whether all keys are done.
    """

    cursor: str = ""
    keys: int = 0
    is_done: bool = False


@dataclass(eq=False)
class _Page:
    """Keys in flight; keys that are done are removed."""

    keys: list[str]
    size: int
    cursor: bytes
    asked: float = field(default_factory=time.monotonic)
    queued: float = field(default_factory=now)


class Pace:
    """Rate limit for queueing keys; after a stall it catches up on at most one second's worth."""

    def __init__(self, keys_per_second: float) -> None:
        """Start with no keys queued.

        Args:
            keys_per_second: Largest rate; 0 for no limit.
        """
        self._rate = keys_per_second
        self._due = float("-inf")

    @property
    def page(self) -> int:
        """Number of keys to queue at once: at most one second's worth."""
        return max(1, min(PAGE, int(self._rate))) if self._rate else PAGE

    def wait(self, now: float) -> float:
        """Return how many seconds to wait before queueing more; 0 for none."""
        return max(0.0, self._due - now)

    def asked(self, keys: int, now: float) -> None:
        """Record that keys were queued."""
        if self._rate:
            self._due = max(self._due, now - _CAUGHT_UP_SECONDS) + keys / self._rate


class Backfill:
    """Fills one space version with another one's keys.

    Attributes:
        position: Progress.
        failed: Number of keys found to have a dead letter since this process started or resumed the backfill.
    """

    def __init__(self, archive: Archive, space: str, source: int, target: int) -> None:
        """Resume the last backfill of these versions, if there was one.

        Args:
            archive: The archive.
            space: Name of the space.
            source: Number of the version whose keys are taken.
            target: Number of the version to fill.

        Raises:
            NotFound: There is no such space or version.
            FailedPrecondition: Both versions are the same.
            InvalidRequest: The space is a feature table, whose keys are not embedded.
            Unavailable: The store does not answer.
        """
        if archive.reader(space, source).version.columns:
            problem = f"expected a space of vectors, got the feature table {space!r}; load its file again"
            raise InvalidRequest(problem, field="space")
        if source == target:
            raise FailedPrecondition(f"version {source} of the space {space!r} cannot be filled from itself")
        self._archive, self._space = archive, space
        self._source: SpaceReader = archive.reader(space, source)
        self._target: SpaceReader = archive.reader(space, target)
        self._name = _name(space, source, target)
        self._saved = archive.store.read(self._name)
        self.position = _decoded(self._saved, self._name)
        if self.position.is_done:  # start again, as keys may have been added; a finished page costs one read
            self.position = Position()
        self.failed = 0

    def count(self) -> int:
        """Return the number of keys in the source version, by scanning all of them."""
        where = partition(self._space, self._source.version.number)
        return sum(len(page.keys) for page in pages(self._archive.store, where, limit=10_000))

    def run(
        self, told: Callable[[int], object], stopping: threading.Event, keys_per_second: float = 0.0
    ) -> bool:
        """Fill until all keys are done or ``stopping`` is set.

        Args:
            told: Called at intervals with the number of keys done.
            stopping: Ends the run; keys in flight stay in the queue.
            keys_per_second: Largest rate; 0 for as fast as the fillers work.

        Returns:
            Whether all keys are done.

        Raises:
            Conflict: Another process runs the same backfill.
            Unavailable: The store or the queue does not answer; run it again.
        """
        pace = Pace(keys_per_second)
        pages = self._pages(pace.page)
        on_their_way: deque[_Page] = deque()
        is_last, pause = self.position.is_done, _LOOK_SECONDS
        while not stopping.is_set():
            while not is_last and len(on_their_way) < _PAGES_ON_THEIR_WAY and not pace.wait(time.monotonic()):
                page = next(pages, None)
                if page is None:
                    is_last = True
                    break
                self._ask_for(page)
                pace.asked(page.size, time.monotonic())
                on_their_way.append(page)
            if is_last and not on_their_way:
                self._save(msgspec.structs.replace(self.position, is_done=True))
                return True
            before = self.position
            self._look(on_their_way, told)
            # Back off while nothing changes: each look reads a page of keys from the store.
            pause = _LOOK_SECONDS if self.position != before else min(2 * pause, _LONGEST_LOOK_SECONDS)
            if not on_their_way:
                pause = 0.0 if is_last else min(pause, pace.wait(time.monotonic()))
            stopping.wait(pause)
        return False

    def make_default(self) -> None:
        """Make the filled version the default.

        Raises:
            FailedPrecondition: The backfill is not done.
        """
        if not self.position.is_done:
            raise FailedPrecondition("the backfill is not complete; the default version is unchanged")
        number = self._target.version.number
        self._archive.catalog.move_default(self._space, number)

    def _pages(self, size: int) -> Iterator[_Page]:
        """Yield the remaining keys, a page at a time."""
        where = partition(self._space, self._source.version.number)
        cursor = bytes.fromhex(self.position.cursor)
        for page in pages(self._archive.store, where, cursor, size):
            yield _Page(self._texts(where, page.keys), len(page.keys), page.cursor)

    def _texts(self, where: str, keys: list[bytes]) -> list[str]:
        """Return the keys as callers know them; a long key is stored after its vector."""
        long = [key for key in keys if is_digest(key)]
        size = self._source.version.form.record_bytes
        texts = [key for key in keys if not is_digest(key)]
        texts += [value[size:] for value in self._archive.store.get_many(where, long) if len(value) > size]
        return [text.decode(errors="replace") for text in texts]

    def _ask_for(self, page: _Page) -> None:
        page.keys = self._missing(page.keys)
        if page.keys:
            self._archive.want(self._space, page.keys, self._target.version.number)

    def _missing(self, keys: list[str]) -> list[str]:
        if not keys:
            return []
        form = self._target.version.form
        where = partition(self._space, self._target.version.number)
        values = self._archive.store.get_many(where, all_stored(keys), form.missing)
        there = form.are_records(joined(values, form))
        return [key for key, is_there in zip(keys, there, strict=True) if not is_there]

    def _look(self, on_their_way: deque[_Page], told: Callable[[int], object]) -> None:
        """Remove finished keys, up to the first page with unfinished ones; save the position."""
        for page in on_their_way:
            page.keys = self._missing(page.keys)
            dead = self._archive.dead_letters.among(self._space, page.keys, self._target.version.number)
            self.failed += len(dead)
            page.keys = [key for key in page.keys if key not in dead]
            if page.keys and time.monotonic() - page.asked > _ASK_AGAIN_SECONDS:
                wanted = [(self._space, key, page.queued) for key in page.keys]
                gone = self._archive.forgotten.since(wanted)
                page.keys = [key for key, is_gone in zip(page.keys, gone, strict=True) if not is_gone]
            if page.keys and time.monotonic() - page.asked > _ASK_AGAIN_SECONDS:
                page.asked = time.monotonic()  # they are still queued, unless the queue was emptied
                self._archive.want(self._space, page.keys, self._target.version.number)
            if page.keys:
                break
        done = self.position
        while on_their_way and not on_their_way[0].keys:
            page = on_their_way.popleft()
            done = Position(page.cursor.hex(), done.keys + page.size)
        if done != self.position:
            self._save(done)
        told(self.position.keys)

    def _save(self, position: Position) -> None:
        content = msgspec.json.encode(position)
        if not self._archive.store.swap(self._name, self._saved, content):
            raise Conflict(
                f"another process runs the backfill of the space {self._space!r}; wait for it to end"
            )
        self._saved, self.position = content, position


def is_done(store: Store, space: str, source: int, target: int) -> bool:
    """Return whether the backfill of one version from another is done.

    Raises:
        HeadraceError: Its record is damaged.
        Unavailable: The store does not answer.
    """
    name = _name(space, source, target)
    return _decoded(store.read(name), name).is_done


def _name(space: str, source: int, target: int) -> str:
    return f"backfill/{space}/{source}-{target}"


def _decoded(content: bytes | None, name: str) -> Position:
    if content is None:
        return Position()
    try:
        position = msgspec.json.decode(content, type=Position)
        bytes.fromhex(position.cursor)
    except (msgspec.MsgspecError, ValueError) as error:
        raise HeadraceError(f"the store's record {name!r} is damaged: {error}") from error
    return position
