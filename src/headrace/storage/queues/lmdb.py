"""The Queue in an LMDB file, shared by the processes of one machine.

Writers take a lock with a timeout. If a process is suspended while it writes, others therefore raise
``Unavailable`` instead of hanging. Waiting receivers poll the number of the file's last transaction, in
memory, at intervals that grow to 50 ms. Receivers in the publisher's process are woken directly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from secrets import token_bytes
from threading import Condition, Lock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from headrace.base.errors import ConfigError, FailedPrecondition, HeadraceError, Unavailable
from headrace.storage.lmdb_environment import LmdbFile, LmdbOptions, NoRoom, Transaction, open_lmdb
from headrace.storage.queues.lmdb_tables import NAMES, Clocks, Prospect, QueueLimits, Tables, sizes
from headrace.storage.queues.queue import (
    Delivery,
    Depth,
    Held,
    Message,
    check_messages,
    check_receive,
    numbers_of,
)
from headrace.storage.settings import LmdbQueue

# Group commit: changes that several threads of a process request at the same time share one transaction.
#
# The first thread to take the lock commits; requests that arrive while it waits for the file join its
# transaction. A commit waits for the disk twice: sharing it, four threads wait about as long as one.


_ResultT = TypeVar("_ResultT")

Change = Callable[[Transaction], _ResultT]
"""A function to run in a transaction. It raises HeadraceErrors only before it has changed anything."""


class _Ticket(Generic[_ResultT]):
    """A change that a thread waits for."""

    __slots__ = ("change", "error", "is_settled", "result")

    def __init__(self, change: Change[_ResultT]) -> None:
        self.change = change
        self.is_settled = False
        self.error: Exception | None = None
        self.result: _ResultT | None = None

    def settle(self, result: _ResultT | None, error: Exception | None) -> None:
        self.result, self.error, self.is_settled = result, error, True


class LmdbWriter:
    """Commits the changes requested by the threads of this process."""

    def __init__(self, file: LmdbFile, timeout_seconds: float) -> None:
        """Create a writer.

        Args:
            file: File to write to.
            timeout_seconds: Longest wait of a change for other writers, in seconds; commits may take longer.
        """
        self._file = file
        self._timeout_seconds = timeout_seconds
        self._lock = Lock()
        self._commit_lock = Lock()
        self._tickets: list[_Ticket[Any]] = []

    def run(self, change: Change[_ResultT]) -> _ResultT:
        """Make a change; once this returns, it is committed.

        Raises:
            Unavailable: Other writers held the lock until the timeout, or the file or the disk is full.
            HeadraceError: The change raised it.
        """
        deadline = time.monotonic() + self._timeout_seconds
        ticket = _Ticket(change)
        with self._lock:
            self._tickets.append(ticket)
        if self._commit_lock.acquire(timeout=self._timeout_seconds):
            try:
                if not ticket.is_settled:
                    self._commit_all(deadline)
            finally:
                self._commit_lock.release()
                self._withdraw(ticket)
        else:
            self._withdraw(ticket)
        if not ticket.is_settled:
            raise Unavailable("timed out writing to the queue's file; the change may still be made")
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[return-value]  # it is what the change returned

    def _withdraw(self, ticket: _Ticket[Any]) -> None:
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def _commit_all(self, deadline: float) -> None:
        tickets: list[_Ticket[Any]] = []
        outcomes: list[tuple[Any, Exception | None]] = []
        try:
            with self._file.writing(deadline) as transaction:
                with self._lock:
                    tickets, self._tickets = self._tickets, []
                for ticket in tickets:
                    try:
                        outcomes.append((ticket.change(transaction), None))
                    except HeadraceError as error:
                        outcomes.append((None, error))
            for ticket, outcome in zip(tickets, outcomes, strict=True):
                ticket.settle(*outcome)
        except Unavailable as error:
            if not tickets:  # the write lock was not acquired in time
                raise
            if len(tickets) == 1:
                tickets[0].settle(None, error)
            for ticket in tickets if len(tickets) > 1 else ():
                self._commit_alone(ticket)  # one change may not fit in the file; the others still succeed
        finally:  # settle all tickets even after an interrupt, so that no thread waits for ever
            for ticket in tickets:
                if not ticket.is_settled:
                    ticket.settle(None, Unavailable("writing to the queue's file was interrupted"))

    def _commit_alone(self, ticket: _Ticket[Any]) -> None:
        try:
            with self._file.writing(time.monotonic() + self._timeout_seconds) as transaction:
                result = ticket.change(transaction)
            ticket.settle(result, None)
        except HeadraceError as error:
            ticket.settle(None, error)


_CONTENTS = "headrace queue 1"
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05
_NEVER = -1
_MOST_NUMBERS = 1000  # limit of one transaction, so that other writers get their turn

# Disk space reserved beyond the pages in use, so that messages can be acknowledged on a full disk: LMDB
# writes new pages before it frees old ones.
_DISK_RESERVE_BYTES = 2**22
_RECEIVER_BYTES = 16


class LmdbMessages:
    """A Queue that several processes share and that survives them."""

    def __init__(self, settings: LmdbQueue, clocks: Clocks | None = None) -> None:
        """Open the queue, creating it if needed.

        Args:
            settings: Location and limits.
            clocks: Clocks to use; the machine's if None.

        Raises:
            ConfigError: The directory holds something else, or the file cannot be opened or created.
            Unavailable: Another process kept the write lock and may be suspended, or the disk is full.
        """
        self._settings = settings
        self._process = os.getpid()
        self._limits = QueueLimits(settings.max_messages, settings.largest_bytes)
        self._disk_reserve = min(settings.largest_bytes // 8, _DISK_RESERVE_BYTES)
        self._reserved_bytes = 0
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
            self._reserve_disk(transaction, 2 * sizes(messages))
            return self._tables.publish(transaction, messages, self._limits)

        if self._writer.run(change):
            self._wake_receivers()

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

    # ---- called by receivers ---------------------------------------------------------------

    def take(self, receiver: bytes, limit: int) -> list[Delivery]:
        """Take the messages available now for a receiver."""
        return self._writer.run(lambda transaction: self._tables.take(transaction, receiver, limit))

    def keep(self, receiver: bytes) -> None:
        """Renew a receiver's visibility timeout, unless it has expired."""
        self._writer.run(lambda transaction: self._tables.keep(transaction, receiver))

    def settle(self, receiver: bytes, numbers: Sequence[int], *, is_done: bool, is_all: bool) -> list[int]:
        """Acknowledge or release messages.

        Args:
            receiver: Name of the receiver that holds them.
            numbers: Numbers of the messages.
            is_done: Whether to acknowledge them; otherwise they are released.
            is_all: Whether the receiver holds no other messages.

        Returns:
            Numbers of the messages that the receiver held until now.
        """
        self._check_process()
        settled: list[int] = []
        for start in range(0, len(numbers), _MOST_NUMBERS):
            some = numbers[start : start + _MOST_NUMBERS]
            is_last = is_all and start + _MOST_NUMBERS >= len(numbers)
            settled += self._settle_some(receiver, some, is_done, is_last)
        self._wake_receivers()
        return settled

    def _settle_some(
        self, receiver: bytes, numbers: Sequence[int], is_done: bool, is_last: bool
    ) -> list[int]:
        """Settle in one transaction, or in smaller ones if there is no room for it."""

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
        """Return whether a waiting receiver may get a message, and when, if the file has changed.

        Args:
            seen: Number of the transaction that the receiver saw last; negative for none.

        Returns:
            Number of the current transaction, and the Prospect; None for it if that number is still ``seen``.
        """
        self._check_process()
        if self._environment.info()["last_txnid"] == seen:
            return seen, None
        with self._file.reading() as transaction:
            # LMDB counts a commit that still waits for the disk; return the transaction that readers see.
            return transaction.id(), self._tables.prospect(transaction)

    def pause(self, seen: int, seconds: float) -> None:
        """Wait for a change by this process, or until a timeout.

        Args:
            seen: Number of the last transaction seen.
            seconds: Longest wait in seconds.
        """
        with self._changed:
            is_known = self._environment.info()["last_txnid"] == seen
            # A newer transaction is not visible yet: check soon, but pause, as its writer may be suspended.
            self._changed.wait(seconds if is_known else min(seconds, _FIRST_PAUSE_SECONDS))

    def _wake_receivers(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _reserve_disk(self, transaction: Transaction, more_bytes: int) -> None:
        """Reserve disk space beyond the pages in use, so that messages can always be acknowledged.

        Raises:
            NoRoom: The disk is full.
        """
        used = (self._environment.info()["last_pgno"] + 1) * self._page_bytes
        wanted = used + more_bytes + self._disk_reserve
        if wanted <= self._reserved_bytes:
            return
        wanted += self._disk_reserve
        try:
            os.posix_fallocate(self._data, 0, wanted)
        except OSError as error:
            free = used - self._tables.live_bytes(transaction)
            if free < more_bytes + self._disk_reserve:
                raise NoRoom(f"cannot reserve disk for the queue's file: {error.strerror}") from error
        else:
            self._reserved_bytes = wanted

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise FailedPrecondition(
                "an LMDB queue belongs to the process that opened it: open another after a fork"
            )


class LmdbReceiver:
    """A receiver of LmdbMessages."""

    def __init__(self, queue: LmdbMessages, visibility_seconds: float) -> None:
        """Create a receiver that holds nothing.

        Args:
            queue: Queue to receive from.
            visibility_seconds: Visibility timeout in seconds.
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
                seen = _NEVER  # another receiver was faster: check again
            left = end - time.monotonic()
            if left <= 0:
                return []
            self._queue.pause(seen, min(left, pause))
            pause = min(1.5 * pause, _LONGEST_PAUSE_SECONDS)

    def keep(self) -> None:
        """See Receiver."""
        with self._lock:
            is_due = bool(self._held) and time.monotonic() >= self._kept + self._keep_seconds
        if is_due:  # each renewal costs a commit; more frequent ones would add nothing
            self._queue.keep(self._name)
            self._kept = time.monotonic()

    def acknowledge(self, deliveries: Collection[Delivery]) -> int:
        """See Receiver."""
        return self._settle(numbers_of(deliveries), is_done=True)

    def release(self, deliveries: Collection[Delivery]) -> None:
        """See Receiver."""
        self._settle(numbers_of(deliveries), is_done=False)

    def close(self) -> None:
        """See Receiver."""
        with self._lock:
            held = sorted(self._held)
        with suppress(HeadraceError):  # the visibility timeout releases them anyway
            self._settle(held, is_done=False)

    def _take(self, limit: int) -> list[Delivery]:
        found = self._queue.take(self._name, limit)
        self._kept = time.monotonic()
        with self._lock:
            self._held.update(numbers_of(found))
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
