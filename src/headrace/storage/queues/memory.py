"""The Queue in the memory of one process."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush
from threading import Condition

from headrace.storage.queues.queue import (
    Delivery,
    Depth,
    Message,
    check_messages,
    check_receive,
    check_room,
    numbers_of,
)
from headrace.storage.settings import MemoryQueue

_MOST_STALE = 1000  # ``_ready`` is rebuilt when it exceeds twice the number of messages by this


@dataclass(slots=True)
class _Waiting:
    """An unacknowledged message.

    Attributes:
        message: The message as published.
        queued: Time of publication in seconds of Unix time.
        holder: Receiver that holds the message; None if it can be received.
        is_removed: Whether the message was removed, so that an equal one published later counts as new.
    """

    message: Message
    queued: float
    holder: MemoryReceiver | None = None
    is_removed: bool = False


class MemoryMessages:
    """A Queue for the threads of one process; its messages are lost with the process.

    Only the oldest message of a key can be received. The next one follows once it is acknowledged.
    """

    def __init__(self, settings: MemoryQueue) -> None:
        """Create an empty queue.

        Args:
            settings: Settings with the visibility timeout and the capacity.
        """
        self._settings = settings
        self._changed = Condition()
        self._last = 0
        # By number, in the order of publication. An OrderedDict finds its first entry in constant time.
        self._messages: OrderedDict[int, _Waiting] = OrderedDict()
        self._known: set[Message] = set()
        self._of_key: dict[bytes, deque[int]] = {}
        self._ready: list[int] = []  # heap: the oldest message of each key, unless held; and stale numbers
        self._receivers: set[MemoryReceiver] = set()

    def publish(self, messages: Sequence[Message]) -> None:
        """See Queue."""
        check_messages(messages)
        with self._changed:
            new = [message for message in dict.fromkeys(messages) if message not in self._known]
            check_room(len(self._messages), len(new), self._settings.max_messages)
            now = datetime.now(UTC).timestamp()
            for message in new:
                self._append(Message(*message), now)
            self._changed.notify(len(new))

    def receiver(self) -> MemoryReceiver:
        """See Queue."""
        return MemoryReceiver(self)

    def remove(self, keys: Collection[bytes]) -> bool:
        """See Queue."""
        with self._changed:
            for key in keys:
                for number in list(self._of_key.get(key, ())):
                    waiting = self._messages[number]
                    self._known.discard(waiting.message)
                    waiting.is_removed = True
                    if waiting.holder is None:
                        self._forget(number)
            if len(self._ready) > 2 * len(self._messages) + _MOST_STALE:
                ready = (numbers[0] for numbers in self._of_key.values())
                self._ready = sorted(first for first in ready if self._messages[first].holder is None)
        return True

    def depth(self) -> Depth:
        """See Queue."""
        with self._changed:
            if not self._messages:
                return Depth(0, 0.0)
            oldest = next(iter(self._messages.values())).queued
            return Depth(len(self._messages), max(0.0, datetime.now(UTC).timestamp() - oldest))

    def close(self) -> None:
        """See Queue."""

    # ---- called by receivers ---------------------------------------------------------------

    def take(self, receiver: MemoryReceiver, limit: int, wait_seconds: float) -> list[Delivery]:
        """Take the oldest available messages for a receiver, waiting until there are some."""
        end = time.monotonic() + wait_seconds
        with self._changed:
            while True:
                now = time.monotonic()
                self._expire_visibilities(now)
                self._renew(receiver, now)
                found = self._take_ready(receiver, limit)
                if found or now >= end:
                    return found
                # A waiting receiver renews its own visibility timeout, and wakes when another's expires.
                pause = min(one.until for one in self._receivers) - now
                self._changed.wait(max(0.0, min(end - now, pause, self._settings.visibility_seconds / 3)))

    def keep(self, receiver: MemoryReceiver) -> None:
        """Renew a receiver's visibility timeout, unless it has expired."""
        with self._changed:
            self._renew_if_alive(receiver)

    def settle(self, receiver: MemoryReceiver, numbers: Collection[int], *, is_done: bool) -> int:
        """Acknowledge or release those messages that this receiver holds and return their number."""
        settled = 0
        with self._changed:
            self._renew_if_alive(receiver)
            for number in numbers:
                waiting = self._messages.get(number)
                if waiting is None or waiting.holder is not receiver:
                    continue
                settled += 1
                receiver.held.discard(number)
                if is_done:
                    self._forget(number)
                else:
                    self._give_back(number)
        return settled

    def leave(self, receiver: MemoryReceiver) -> None:
        """Release all messages that a receiver holds."""
        with self._changed:
            self._drop_receiver(receiver)

    # ---- the lock is held ----------------------------------------------------------------------------

    def _append(self, message: Message, now: float) -> None:
        self._last += 1
        self._messages[self._last] = _Waiting(message, now)
        self._known.add(message)
        others = self._of_key.get(message.key)
        if others is None:
            self._of_key[message.key] = deque((self._last,))
            heappush(self._ready, self._last)
        else:
            others.append(self._last)

    def _take_ready(self, receiver: MemoryReceiver, limit: int) -> list[Delivery]:
        found: list[Delivery] = []
        while self._ready and len(found) < limit:
            number = heappop(self._ready)
            waiting = self._messages.get(number)
            if waiting is None or waiting.holder is not None:
                continue  # removed meanwhile
            waiting.holder = receiver
            receiver.held.add(number)
            found.append(Delivery(waiting.message, waiting.queued, number))
        return found

    def _give_back(self, number: int) -> None:
        self._messages[number].holder = None
        heappush(self._ready, number)
        self._changed.notify()

    def _forget(self, number: int) -> None:
        waiting = self._messages.pop(number)
        if not waiting.is_removed:  # else an equal message may have been published again
            self._known.discard(waiting.message)
        numbers = self._of_key[waiting.message.key]
        was_first = numbers[0] == number
        numbers.remove(number)
        if not numbers:
            del self._of_key[waiting.message.key]
        elif was_first:
            heappush(self._ready, numbers[0])
            self._changed.notify()

    def _renew(self, receiver: MemoryReceiver, now: float) -> None:
        receiver.until = now + self._settings.visibility_seconds
        self._receivers.add(receiver)

    def _renew_if_alive(self, receiver: MemoryReceiver) -> None:
        now = time.monotonic()
        if receiver in self._receivers and now < receiver.until:
            self._renew(receiver, now)

    def _expire_visibilities(self, now: float) -> None:
        for receiver in [one for one in self._receivers if one.until <= now]:
            self._drop_receiver(receiver)

    def _drop_receiver(self, receiver: MemoryReceiver) -> None:
        self._receivers.discard(receiver)
        for number in receiver.held:
            self._give_back(number)
        receiver.held.clear()


class MemoryReceiver:
    """A receiver of MemoryMessages.

    Attributes:
        until: End of its visibility timeout, on the monotonic clock.
        held: Numbers of the messages it holds.
    """

    def __init__(self, queue: MemoryMessages) -> None:
        """Create a receiver that holds nothing.

        Args:
            queue: Queue to receive from.
        """
        self._queue = queue
        self.until = 0.0
        self.held: set[int] = set()

    def receive(self, limit: int, wait_seconds: float) -> list[Delivery]:
        """See Receiver."""
        check_receive(limit, wait_seconds)
        return self._queue.take(self, limit, wait_seconds)

    def keep(self) -> None:
        """See Receiver."""
        self._queue.keep(self)

    def acknowledge(self, deliveries: Collection[Delivery]) -> int:
        """See Receiver."""
        return self._queue.settle(self, numbers_of(deliveries), is_done=True)

    def release(self, deliveries: Collection[Delivery]) -> None:
        """See Receiver."""
        self._queue.settle(self, numbers_of(deliveries), is_done=False)

    def close(self) -> None:
        """See Receiver."""
        self._queue.leave(self)
