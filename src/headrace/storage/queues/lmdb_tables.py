"""The tables of a queue's LMDB file, and each change to them within one transaction.

``messages``: number → time of publication, key, body. Numbers ascend and are never reused.
``keys``: digest of a key, 0, number → nothing: the messages of the key in order; and
digest of the key, 1, digest of a body → number: the known messages, to drop duplicates.
``ready``: number → nothing: the messages that can be received, which are the oldest of each key unless held.
``held``: number → receiver that holds the message.
``receivers``: receiver → end of its visibility timeout, length of that timeout, and boot id of the machine.
``state``: the last number.

Visibility timeouts use a clock that all processes share and that runs from boot to shutdown. Timeouts of an
earlier boot have expired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import NamedTuple
from uuid import UUID

import lmdb

from headrace.storage.lmdb_environment import NoRoom, Transaction
from headrace.storage.queues.queue import Delivery, Depth, Held, Message, check_room

NAMES = (b"messages", b"keys", b"ready", b"held", b"receivers", b"state")

_NUMBER = Struct(">Q")
_HEAD = Struct("<dH")
_VISIBILITY = Struct("<dd16s")
_DIGEST_BYTES = 16
_ORDER, _CONTENT = b"\0", b"\1"
_LAST = b"last"
_OVERHEAD_BYTES = 160  # per message, in all tables together


def _wall() -> float:
    return datetime.now(UTC).timestamp()


def boot_id() -> bytes:
    """Return the id of the current boot of the machine: 16 bytes, zeros if the system has none."""
    try:
        return UUID(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()).bytes
    except (OSError, ValueError):
        return bytes(16)


class Clocks(NamedTuple):
    """The clocks of a queue.

    Attributes:
        visibility: Clock in seconds since boot, the same for all processes.
        boot: Id of the boot.
        wall: Clock in seconds of Unix time, for display only.
    """

    visibility: Callable[[], float] = monotonic
    boot: bytes = boot_id()
    wall: Callable[[], float] = _wall


class QueueLimits(NamedTuple):
    """The capacity of a queue.

    Attributes:
        messages: Maximum number of unacknowledged messages.
        live_bytes: Maximum size in bytes of the used part of the file.
    """

    messages: int
    live_bytes: int


class Prospect(NamedTuple):
    """Whether, and from when on, a waiting receiver may get a message.

    Attributes:
        is_ready: Whether a message can be received.
        visibility_seconds: Seconds until the first visibility timeout expires; infinite if there is none.
    """

    is_ready: bool
    visibility_seconds: float


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


class Tables:
    """The tables of one file."""

    def __init__(
        self, environment: lmdb.Environment, made: Transaction, clocks: Clocks, visibility_seconds: float
    ) -> None:
        """Open the tables, creating them if needed.

        Args:
            environment: The open environment.
            made: A write transaction.
            clocks: Clocks to use.
            visibility_seconds: Visibility timeout in seconds.
        """
        self._clocks = clocks
        self._visibility_seconds = visibility_seconds
        self._all = [environment.open_db(name, made) for name in NAMES]
        self._messages, self._keys, self._ready, self._held, self._receivers, self._state = self._all
        self._page_bytes = environment.stat()["psize"]

    # ---- publishing -----------------------------------------------------------------------------

    def publish(self, transaction: Transaction, messages: Sequence[Message], limits: QueueLimits) -> int:
        """Add the messages that are not known yet.

        Returns:
            Number of messages that can be received now; 0 if all messages were known.

        Raises:
            Overloaded: The number of messages would exceed the limit; nothing was changed.
            NoRoom: The used part of the file would exceed the limit; nothing was changed.
        """
        new = self._unknown(transaction, messages)
        waiting = transaction.stat(self._messages)["entries"]
        check_room(waiting, len(new), limits.messages)
        if self.live_bytes(transaction) + sizes(message for message, _ in new) > limits.live_bytes:
            raise NoRoom("the queue's file is full: add fillers, or raise queue.largest_bytes")
        if not new:
            return 0
        queued = self._clocks.wall()
        last = _NUMBER.unpack(transaction.get(_LAST, _NUMBER.pack(0), db=self._state))[0]
        with transaction.cursor(self._keys) as cursor:
            for last, (message, content) in enumerate(new, last + 1):  # noqa: B020  # starts after ``last``
                self._append(transaction, cursor, _NUMBER.pack(last), content)
                record = _HEAD.pack(queued, len(message.key)) + message.key + message.body
                transaction.put(_NUMBER.pack(last), record, db=self._messages, append=True)
        transaction.put(_LAST, _NUMBER.pack(last), db=self._state)
        return int(transaction.stat(self._ready)["entries"])

    def _unknown(self, transaction: Transaction, messages: Sequence[Message]) -> list[tuple[Message, bytes]]:
        """Return the messages that are not known, each once, with their entries in ``keys``."""
        found: dict[bytes, Message] = {}
        for key, body in messages:
            content = _digest(key) + _CONTENT + _digest(body)
            if content not in found and transaction.get(content, db=self._keys) is None:
                found[content] = Message(key, body)
        return [(message, content) for content, message in found.items()]

    def _append(
        self, transaction: Transaction, cursor: lmdb.Cursor[bytes], number: bytes, content: bytes
    ) -> None:
        order = content[:_DIGEST_BYTES] + _ORDER
        if not (cursor.set_range(order) and cursor.key().startswith(order)):
            transaction.put(number, b"", db=self._ready, append=True)
        transaction.put(order + number, b"", db=self._keys)
        transaction.put(content, number, db=self._keys)

    def live_bytes(self, transaction: Transaction) -> int:
        """Return the size in bytes of the used part of the file."""
        pages = 0
        for table in self._all:
            found = transaction.stat(table)
            pages += found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
        return pages * self._page_bytes

    # ---- receiving --------------------------------------------------------------------------------

    def take(self, transaction: Transaction, receiver: bytes, limit: int) -> list[Delivery]:
        """Take the oldest available messages for a receiver."""
        self._expire_visibilities(transaction)
        with transaction.cursor(self._ready) as cursor:
            numbers = list(islice(cursor.iternext(values=False), limit))
        found = []
        for number in numbers:
            transaction.delete(number, db=self._ready)
            transaction.put(number, receiver, db=self._held)
            queued, message = self._read(transaction, number)
            found.append(Delivery(message, queued, _NUMBER.unpack(number)[0]))
        if found:
            self._write_visibility(transaction, receiver)
        return found

    def prospect(self, transaction: Transaction) -> Prospect:
        """Return the Prospect of a waiting receiver, without writing."""
        now, left = self._clocks.visibility(), float("inf")
        with transaction.cursor(self._receivers) as cursor:
            for _, visibility in cursor:
                until = _VISIBILITY.unpack(visibility)[0]
                left = min(left, 0.0 if self._has_expired(visibility, now) else until - now)
        return Prospect(transaction.stat(self._ready)["entries"] > 0, left)

    def keep(self, transaction: Transaction, receiver: bytes) -> None:
        """Renew a receiver's visibility timeout, unless it has expired."""
        visibility = transaction.get(receiver, db=self._receivers)
        if visibility is not None and not self._has_expired(visibility, self._clocks.visibility()):
            self._write_visibility(transaction, receiver)

    def settle(
        self, transaction: Transaction, receiver: bytes, numbers: Iterable[int], *, is_done: bool
    ) -> list[int]:
        """Acknowledge or release messages and return the numbers of those that this receiver held."""
        settled = []
        for number in numbers:
            packed = _NUMBER.pack(number)
            if transaction.get(packed, db=self._held) != receiver:
                continue
            settled.append(number)
            if is_done:
                transaction.delete(packed, db=self._held)
                self._forget_first(transaction, packed)
            else:
                self._give_back(transaction, packed)
        return settled

    def leave(self, transaction: Transaction, receiver: bytes) -> None:
        """Remove a receiver that holds nothing."""
        transaction.delete(receiver, db=self._receivers)

    def _write_visibility(self, transaction: Transaction, receiver: bytes) -> None:
        seconds = self._visibility_seconds
        visibility = _VISIBILITY.pack(self._clocks.visibility() + seconds, seconds, self._clocks.boot)
        transaction.put(receiver, visibility, db=self._receivers)

    def _has_expired(self, visibility: bytes, now: float) -> bool:
        until, seconds, boot = _VISIBILITY.unpack(visibility)
        # Without boot ids, a timeout that ends later than possible is known to be from an earlier boot.
        return bool(boot != self._clocks.boot or until <= now or until > now + seconds + 1)

    def _expire_visibilities(self, transaction: Transaction) -> None:
        now = self._clocks.visibility()
        with transaction.cursor(self._receivers) as cursor:
            gone = {receiver for receiver, visibility in cursor if self._has_expired(visibility, now)}
        if not gone:
            return
        for receiver in gone:
            transaction.delete(receiver, db=self._receivers)
        with transaction.cursor(self._held) as cursor:
            given_back = [number for number, held in cursor if held in gone]
        for number in given_back:
            self._give_back(transaction, number)

    def _give_back(self, transaction: Transaction, number: bytes) -> None:
        transaction.delete(number, db=self._held)
        transaction.put(number, b"", db=self._ready)

    # ---- removing -------------------------------------------------------------------------------

    def remove(self, transaction: Transaction, keys: Collection[bytes]) -> None:
        """Drop the messages of keys; held ones stay with their receiver, but are no longer known."""
        for key in keys:
            for number in self._numbers_of(transaction, _digest(key)):
                held = transaction.get(number, db=self._held)
                if held is None:
                    transaction.delete(number, db=self._ready)
                    self._forget(transaction, number)
                else:
                    _, message = self._read(transaction, number)
                    self._forget_content(transaction, number, message)

    def depth(self, transaction: Transaction) -> Depth:
        """Return the backlog."""
        with transaction.cursor(self._messages) as cursor:
            if not cursor.first():
                return Depth(0, 0.0)
            queued, _ = _HEAD.unpack_from(cursor.value())
        return Depth(transaction.stat(self._messages)["entries"], max(0.0, self._clocks.wall() - queued))

    def held(self, transaction: Transaction) -> Held:
        """Return the number of held messages, and how many of their receivers are silent."""
        now, silent = self._clocks.visibility(), {}
        with transaction.cursor(self._receivers) as cursor:
            for receiver, visibility in cursor:
                until, seconds, _ = _VISIBILITY.unpack(visibility)
                if self._has_expired(visibility, now):  # after a reboot, the silence is a guess
                    silent[receiver] = (max(seconds, min(now - until + seconds, now)), 0.0)
                elif until - now < seconds / 2:
                    silent[receiver] = (now - until + seconds, until - now)
        with transaction.cursor(self._held) as cursor:
            holders = Counter(holder for _, holder in cursor)
        with_silent = {holder: silent[holder] for holder in holders if holder in silent}
        return Held(
            holders.total(),
            sum(holders[holder] for holder in with_silent),
            min((since for since, _ in with_silent.values()), default=0.0),
            max((left for _, left in with_silent.values()), default=0.0),
        )

    def _numbers_of(self, transaction: Transaction, digest: bytes) -> list[bytes]:
        order, found = digest + _ORDER, []
        with transaction.cursor(self._keys) as cursor:
            if cursor.set_range(order):
                for known in cursor.iternext(values=False):
                    if not known.startswith(order):
                        break
                    found.append(known[len(order) :])
        return found

    def _forget_first(self, transaction: Transaction, number: bytes) -> None:
        """Drop the oldest message of a key, and make the next one available."""
        order = self._forget(transaction, number)
        with transaction.cursor(self._keys) as cursor:
            if cursor.set_range(order) and cursor.key().startswith(order):
                transaction.put(cursor.key()[len(order) :], b"", db=self._ready)

    def _forget(self, transaction: Transaction, number: bytes) -> bytes:
        """Drop a message, and return the prefix of the other messages of its key in ``keys``."""
        _, message = self._read(transaction, number)
        transaction.delete(number, db=self._messages)
        order = self._forget_content(transaction, number, message) + _ORDER
        transaction.delete(order + number, db=self._keys)
        return order

    def _forget_content(self, transaction: Transaction, number: bytes, message: Message) -> bytes:
        digest = _digest(message.key)
        content = digest + _CONTENT + _digest(message.body)
        if transaction.get(content, db=self._keys) == number:  # else it was removed and published again
            transaction.delete(content, db=self._keys)
        return digest

    def _read(self, transaction: Transaction, number: bytes) -> tuple[float, Message]:
        record = transaction.get(number, b"", db=self._messages)
        queued, length = _HEAD.unpack_from(record)
        body = _HEAD.size + length
        return queued, Message(record[_HEAD.size : body], record[body:])


def sizes(messages: Iterable[Message]) -> int:
    """Return the approximate size of messages in the file, in bytes."""
    return sum(len(key) + len(body) + _OVERHEAD_BYTES for key, body in messages)
