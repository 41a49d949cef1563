"""Filling a new space version with the keys of an older one, while both answer.

Keys go through the queue, as missing ones do: all fillers help, what cannot be embedded becomes a dead
letter, and no key is embedded twice. A few pages of keys are on their way at a time; how far all before them
are done is kept in the store, so that whoever goes on after a kill begins there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from headrace.archive.archive import Archive
from headrace.archive.catalog import partition
from headrace.archive.dead_letters import now
from headrace.archive.keys import all_stored, is_digest
from headrace.archive.looking import SpaceReader
from headrace.archive.records import joined
from headrace.errors import Conflict, FailedPrecondition, HeadraceError, InvalidRequest
from headrace.stores.store import Store, pages

PAGE = 500
"""How many keys are asked for at once, at the most."""

_PAGES_ON_THEIR_WAY = 4
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.1, 1.0
_CAUGHT_UP_SECONDS = 1.0
_ASK_AGAIN_SECONDS = 60.0


class Position(msgspec.Struct, frozen=True):
    """How far a backfill is.

    Attributes:
        cursor: Where the next page begins, in hexadecimal digits.
        keys: How many keys are done.
        is_done: Whether all are.
    """

    cursor: str = ""
    keys: int = 0
    is_done: bool = False


@dataclass(eq=False)
class _Page:
    """Keys on their way; those that are done are taken out."""

    keys: list[str]
    size: int
    cursor: bytes
    asked: float = field(default_factory=time.monotonic)
    queued: float = field(default_factory=now)


class Pace:
    """How fast keys are asked for; of what a stall has cost a second is caught up, and no more."""

    def __init__(self, keys_per_second: float) -> None:
        """Begin with none asked for.

        Args:
            keys_per_second: How many to ask for at the most; 0 for any number.
        """
        self._rate = keys_per_second
        self._due = float("-inf")

    @property
    def page(self) -> int:
        """How many to ask for at once: no more than in a second."""
        return max(1, min(PAGE, int(self._rate))) if self._rate else PAGE

    def wait(self, now: float) -> float:
        """How long to wait before more are asked for, in seconds; 0 for not at all."""
        return max(0.0, self._due - now)

    def asked(self, keys: int, now: float) -> None:
        """So many have been asked for."""
        if self._rate:
            self._due = max(self._due, now - _CAUGHT_UP_SECONDS) + keys / self._rate


class Backfill:
    """Fills one space version from another one's keys.

    Attributes:
        position: How far it is.
        failed: How many keys became dead letters, since this process goes on with it.
    """

    def __init__(self, archive: Archive, space: str, source: int, target: int) -> None:
        """Go on where the last one ended, if there was one.

        Args:
            archive: Where.
            space: Of which space.
            source: The version whose keys are taken.
            target: The version that is filled.

        Raises:
            NotFound: There is no such space, or version.
            FailedPrecondition: Both are the same.
            InvalidRequest: It is a feature table: nothing embeds its keys.
            Unavailable: The store does not answer.
        """
        if archive.reader(space, source).version.columns:
            problem = f"expected a space of vectors, got the feature table {space!r}; load the file anew"
            raise InvalidRequest(problem, field="space")
        if source == target:
            raise FailedPrecondition(f"version {source} of the space {space!r} cannot be filled from itself")
        self._archive, self._space = archive, space
        self._source: SpaceReader = archive.reader(space, source)
        self._target: SpaceReader = archive.reader(space, target)
        self._name = _name(space, source, target)
        self._saved = archive.store.read(self._name)
        self.position = _decoded(self._saved, self._name)
        if self.position.is_done:  # keys may have come since; those that are there cost a look
            self.position = Position()
        self.failed = 0

    def count(self) -> int:
        """How many keys there are, by a look at all of them."""
        where = partition(self._space, self._source.version.number)
        return sum(len(page.keys) for page in pages(self._archive.store, where, limit=10_000))

    def run(
        self, told: Callable[[int], object], stopping: threading.Event, keys_per_second: float = 0.0
    ) -> bool:
        """Fill, until all is done or somebody stops it.

        Args:
            told: Told how many keys are done, now and then.
            stopping: Ends it; what is on its way stays in the queue.
            keys_per_second: How fast to go at the most; 0 for as fast as it is filled.

        Returns:
            Whether all is done.

        Raises:
            Conflict: Somebody else runs the same backfill.
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
            # Where nothing moves, looks are few: each reads a page of keys from the store.
            pause = _LOOK_SECONDS if self.position != before else min(2 * pause, _LONGEST_LOOK_SECONDS)
            if not on_their_way:
                pause = 0.0 if is_last else min(pause, pace.wait(time.monotonic()))
            stopping.wait(pause)
        return False

    def make_default(self) -> None:
        """Have bare lookups answered by the version that was filled.

        Raises:
            FailedPrecondition: It is not done.
        """
        if not self.position.is_done:
            raise FailedPrecondition("the backfill is not done; the default stays where it is")
        number = self._target.version.number
        self._archive.catalog.move_default(self._space, number)

    def _pages(self, size: int) -> Iterator[_Page]:
        """The keys that are still to be done, a page at a time."""
        where = partition(self._space, self._source.version.number)
        cursor = bytes.fromhex(self.position.cursor)
        for page in pages(self._archive.store, where, cursor, size):
            yield _Page(self._texts(where, page.keys), len(page.keys), page.cursor)

    def _texts(self, where: str, keys: list[bytes]) -> list[str]:
        """The keys as callers have them; a long one stands behind its vector."""
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
        """See which keys are done, up to the first page with one that is not; save how far that is."""
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
                page.asked = time.monotonic()  # they are in the queue, unless somebody has emptied it
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
    """Whether one version has been filled with the keys of another to the end.

    Raises:
        HeadraceError: The record of it is damaged.
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
