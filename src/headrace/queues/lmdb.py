"""The Queue in an LMDB file, which the processes of one machine share.

Whoever writes goes through a turnstile first, so a process that is stopped while it writes makes others
``Unavailable`` and no more. Receivers that wait look at the number of the file's last transaction, in memory,
at pauses that grow to 50 ms; those of the publisher's own process are woken.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from secrets import token_bytes
from threading import Condition, Lock
from weakref import WeakSet

from headrace.errors import ConfigError, FailedPrecondition, HeadraceError
from headrace.lmdb_file import LmdbOptions, NoRoom, Transaction, open_lmdb
from headrace.queues.lmdb_tables import NAMES, Clocks, Limits, Prospect, Tables, sizes
from headrace.queues.lmdb_writer import LmdbWriter
from headrace.queues.queue import Delivery, Depth, Held, Message, check_messages, check_receive
from headrace.queues.settings import LmdbQueue

_CONTENTS = "headrace queue 1"
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05
_NEVER = -1
_MOST_NUMBERS = 1000  # in one transaction that settles them: others shall get their turn

# So much of the disk is set aside behind what is in use, for acknowledging: LMDB writes pages anew before
# it frees any.
_DISK_RESERVE_BYTES = 2**22
_RECEIVER_BYTES = 16


class LmdbMessages:
    """A Queue that several processes share, and that survives them."""

    def __init__(self, settings: LmdbQueue, clocks: Clocks | None = None) -> None:
        """Open it, or make it.

        Args:
            settings: Where, and how large.
            clocks: What time it is; those of the machine if None.

        Raises:
            ConfigError: There is something else, or it cannot be opened or made.
            Unavailable: Another process is stopped while it writes.
        """
        self._settings = settings
        self._process = os.getpid()
        self._limits = Limits(settings.max_messages, settings.largest_bytes)
        self._disk_reserve = min(settings.largest_bytes // 8, _DISK_RESERVE_BYTES)
        self._set_aside = 0
        self._open(clocks or Clocks())
        self._changed = Condition()
        self._receivers: WeakSet[LmdbReceiver] = WeakSet()

    def _open(self, clocks: Clocks) -> None:
        settings, seconds = self._settings, self._settings.timeout_seconds
        options = LmdbOptions(settings.path, settings.largest_bytes, settings.sync, _CONTENTS, len(NAMES))
        self._file = open_lmdb(options, seconds)
        try:
            self._environment = self._file.environment
            with self._file.writing(time.monotonic() + seconds) as transaction:
                self._tables = Tables(self._environment, transaction, clocks, settings.visibility_seconds)
            self._page_bytes = self._environment.stat()["psize"]
            self._data = os.open(settings.path / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            self._file.close()
            raise ConfigError(f"queue.path: {settings.path}: {error.strerror}") from error
        except BaseException:
            self._file.close()
            raise
        self._writer = LmdbWriter(self._file, seconds)

    def publish(self, messages: Sequence[Message]) -> None:
        """See Queue."""
        check_messages(messages)
        self._check_process()
        if not messages:
            return

        def change(transaction: Transaction) -> int:
            self._set_disk_aside(transaction, 2 * sizes(messages))
            return self._tables.publish(transaction, messages, self._limits)

        if self._writer.run(change):
            self._tell_receivers()

    def receiver(self) -> LmdbReceiver:
        """See Queue."""
        self._check_process()
        receiver = LmdbReceiver(self, self._settings.visibility_seconds)
        self._receivers.add(receiver)
        return receiver

    def remove(self, keys: Collection[bytes]) -> bool:
        """See Queue."""
        self._check_process()
        self._writer.run(lambda transaction: self._tables.remove(transaction, keys))
        return True

    def depth(self) -> Depth:
        """See Queue."""
        self._check_process()
        with self._file.reading() as transaction:
            return self._tables.depth(transaction)

    def held(self) -> Held:
        """See TellsHeld."""
        self._check_process()
        with self._file.reading() as transaction:
            return self._tables.held(transaction)

    def close(self) -> None:
        """See Queue."""
        for receiver in list(self._receivers):
            receiver.close()
        os.close(self._data)
        self._file.close()

    # ---- what receivers ask for ---------------------------------------------------------------

    def take(self, receiver: bytes, limit: int) -> list[Delivery]:
        """Give a receiver what can be had now."""
        return self._writer.run(lambda transaction: self._tables.take(transaction, receiver, limit))

    def keep(self, receiver: bytes) -> None:
        """Put off the end of a receiver's visibility time."""
        self._writer.run(lambda transaction: self._tables.keep(transaction, receiver))

    def settle(self, receiver: bytes, numbers: Sequence[int], *, is_done: bool, is_all: bool) -> list[int]:
        """Acknowledge messages or give them back.

        Args:
            receiver: Who has them.
            numbers: Which.
            is_done: Whether they are acknowledged.
            is_all: Whether it has no others.

        Returns:
            Those that were the receiver's.
        """
        self._check_process()
        settled: list[int] = []
        for start in range(0, len(numbers), _MOST_NUMBERS):
            some = numbers[start : start + _MOST_NUMBERS]
            is_last = is_all and start + _MOST_NUMBERS >= len(numbers)
            settled += self._settle_some(receiver, some, is_done, is_last)
        self._tell_receivers()
        return settled

    def _settle_some(
        self, receiver: bytes, numbers: Sequence[int], is_done: bool, is_last: bool
    ) -> list[int]:
        """Settle in one transaction; where there is no room for it, in smaller ones, which need less."""

        def change(transaction: Transaction) -> list[int]:
            settled = self._tables.settle(transaction, receiver, numbers, is_done=is_done)
            (self._tables.leave if is_last else self._tables.keep)(transaction, receiver)
            return settled

        try:
            return self._writer.run(change)
        except NoRoom:
            if len(numbers) == 1:
                raise
            half = len(numbers) // 2
            first = self._settle_some(receiver, numbers[:half], is_done, False)
            return first + self._settle_some(receiver, numbers[half:], is_done, is_last)

    def look(self, seen: int) -> tuple[int, Prospect | None]:
        """What a receiver that waits can hope for.

        Args:
            seen: The file's transaction when it looked last; below 0 for never.

        Returns:
            The transaction, and what is to be hoped for, if it is another.
        """
        self._check_process()
        if self._environment.info()["last_txnid"] == seen:
            return seen, None
        with self._file.reading() as transaction:
            # The file tells of a commit that waits for the disk before readers see it: what they see counts.
            return transaction.id(), self._tables.prospect(transaction)

    def pause(self, seen: int, seconds: float) -> None:
        """Wait for a change by this process, or some time.

        Args:
            seen: The last transaction that is known.
            seconds: The longest to wait.
        """
        with self._changed:
            is_known = self._environment.info()["last_txnid"] == seen
            # What is not seen yet is looked at soon, but in no busy loop: its writer may be stopped there.
            self._changed.wait(seconds if is_known else min(seconds, _FIRST_PAUSE_SECONDS))

    def _tell_receivers(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _set_disk_aside(self, transaction: Transaction, more_bytes: int) -> None:
        """Have the disk keep room behind what is in use, so that what is there can be acknowledged.

        Raises:
            Unavailable: The disk is full.
        """
        used = (self._environment.info()["last_pgno"] + 1) * self._page_bytes
        wanted = used + more_bytes + self._disk_reserve
        if wanted <= self._set_aside:
            return
        wanted += self._disk_reserve
        try:
            os.posix_fallocate(self._data, 0, wanted)
        except OSError as error:
            free = used - self._tables.live_bytes(transaction)
            if free < more_bytes + self._disk_reserve:
                raise NoRoom(f"the disk under the queue's file: {error.strerror}") from error
        else:
            self._set_aside = wanted

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise FailedPrecondition(
                "an LMDB queue is of the process that opened it: open another after a fork"
            )


class LmdbReceiver:
    """A receiver of LmdbMessages."""

    def __init__(self, queue: LmdbMessages, visibility_seconds: float) -> None:
        """Have received nothing.

        Args:
            queue: Where from.
            visibility_seconds: How long it may be silent.
        """
        self._queue = queue
        self._name = token_bytes(_RECEIVER_BYTES)
        self._keep_seconds = visibility_seconds / 10
        self._lock = Lock()
        self._held: set[int] = set()
        self._kept = 0.0

    def receive(self, limit: int, wait_seconds: float) -> list[Delivery]:
        """See Receiver."""
        check_receive(limit, wait_seconds)
        end = time.monotonic() + wait_seconds
        seen, pause, visibility_end = _NEVER, _FIRST_PAUSE_SECONDS, 0.0
        while True:
            self.keep()
            seen, prospect = self._queue.look(seen)
            if prospect is not None:
                visibility_end = time.monotonic() + prospect.visibility_seconds
            if (prospect is not None and prospect.is_ready) or time.monotonic() >= visibility_end:
                found = self._take(limit)
                if found:
                    return found
                seen = _NEVER  # others were quicker: look again
            left = end - time.monotonic()
            if left <= 0:
                return []
            self._queue.pause(seen, min(left, pause))
            pause = min(1.5 * pause, _LONGEST_PAUSE_SECONDS)

    def keep(self) -> None:
        """See Receiver."""
        with self._lock:
            is_due = bool(self._held) and time.monotonic() >= self._kept + self._keep_seconds
        if is_due:  # each costs a commit: more often than this they say nothing new
            self._queue.keep(self._name)
            self._kept = time.monotonic()

    def acknowledge(self, deliveries: Collection[Delivery]) -> int:
        """See Receiver."""
        return self._settle(_numbers_of(deliveries), is_done=True)

    def release(self, deliveries: Collection[Delivery]) -> None:
        """See Receiver."""
        self._settle(_numbers_of(deliveries), is_done=False)

    def close(self) -> None:
        """See Receiver."""
        with self._lock:
            held = sorted(self._held)
        with suppress(HeadraceError):  # the visibility time ends by itself
            self._settle(held, is_done=False)

    def _take(self, limit: int) -> list[Delivery]:
        found = self._queue.take(self._name, limit)
        self._kept = time.monotonic()
        with self._lock:
            self._held.update(_numbers_of(found))
        return found

    def _settle(self, numbers: Sequence[int], *, is_done: bool) -> int:
        if not numbers:
            return 0
        with self._lock:
            is_all = self._held <= set(numbers)
        settled = self._queue.settle(self._name, numbers, is_done=is_done, is_all=is_all)
        self._kept = time.monotonic()
        with self._lock:
            self._held.difference_update(numbers)
        return len(settled)


def _numbers_of(deliveries: Iterable[Delivery]) -> list[int]:
    return sorted({delivery.receipt for delivery in deliveries if isinstance(delivery.receipt, int)})
