"""Queues missing keys from a thread of its own, so that no lookup waits for the queue; quotas of new keys."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from headrace.archive.model.keys import stored
from headrace.base.errors import HeadraceError, Overloaded
from headrace.storage.queues.queue import Message, Queue

_log = logging.getLogger(__name__)

_MOST_WAITING = 100_000
_MOST_WAITING_BYTES = 128 * 2**20
_WAITING_BYTES, _CHARACTER_BYTES = 300, 6  # memory in Python of a key, and of each of its characters
_MOST_A_CALL = 1000
_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_LAST_SECONDS = 5.0


class Wanted(NamedTuple):
    """A key to embed.

    Attributes:
        space: Name of the space.
        version: Space version that has no vector of the key.
        key: The key.
        turn: 0 at first; alternates between 1 and 2 each time it is put back to the queue's end, because a
            queue drops messages that it knows already.
    """

    space: str
    version: int
    key: str
    turn: int = 0

    def message(self) -> Message:
        """Return the message for the queue."""
        key = str(self.key)  # it may be a subclass from NumPy
        wanted = Wanted(self.space, self.version, key, self.turn)
        return Message(message_key(self.space, key), _encoder.encode(wanted))

    def again(self) -> Wanted:
        """Return the key to put back to the queue's end."""
        return self._replace(turn=2 if self.turn == 1 else 1)


def message_key(space: str, key: str) -> bytes:
    """Return the message key of a space's key, within which a queue keeps messages in order."""
    return stored(f"{space}\0{key}".encode())


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Wanted)


def wanted_of(message: Message) -> Wanted:
    """Return the key that a message asks for.

    Raises:
        HeadraceError: The message was not sent by an archive.
    """
    try:
        wanted = _decoder.decode(message.body)
        if wanted.key and wanted.space:
            return wanted
        raise HeadraceError("the message names no key")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HeadraceError(f"the message is not from an archive: {error}") from error


def _size_of(wanted: Wanted) -> int:
    return _WAITING_BYTES + _CHARACTER_BYTES * len(wanted.key)


Accepted = Callable[[Sequence[Wanted]], object]


class Publisher:
    """Queues missing keys in the background; a key that is pending is not submitted again.

    Keys that cannot be queued are dropped: the next lookup that misses one submits it again.

    Attributes:
        dropped: Number of keys dropped, because the queue did not accept them or too many were pending.
        published: Number of keys queued.
    """

    def __init__(self, queue: Queue, accepted: Accepted, troubles: dict[object, str]) -> None:
        """Start the thread.

        Args:
            queue: The queue.
            accepted: Called in that thread with the keys that the queue has accepted.
            troubles: Receives the reason why this publisher waits, with itself as the key.
        """
        self._queue = queue
        self._accepted = accepted
        self._troubles = troubles
        self._waiting: dict[Wanted, None] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._bytes = 0
        self._refused_since = 0.0  # time of the first refusal of the present outage
        self.dropped = 0
        self.published = 0
        self._thread = threading.Thread(target=self._work, name="archive-publish", daemon=True)
        self._thread.start()

    def want(self, wanted: Sequence[Wanted]) -> None:
        """Submit keys to be queued soon; return at once."""
        with self._changed:
            for one in wanted:
                if one in self._waiting:
                    continue
                size = _size_of(one)
                if len(self._waiting) >= _MOST_WAITING or self._bytes + size > _MOST_WAITING_BYTES:
                    self.dropped += 1
                    continue
                self._waiting[one] = None
                self._bytes += size
            if self._waiting:
                self._changed.notify()

    def waiting(self) -> int:
        """Return the number of pending keys."""
        return len(self._waiting)

    def close(self) -> None:
        """Queue the pending keys that the queue accepts within a few seconds, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST_SECONDS)

    def _work(self) -> None:
        pause = 0.0
        while True:
            with self._changed:
                if pause and not self._closed:
                    self._changed.wait_for(lambda: self._closed, pause)
                if not self._waiting:
                    self._troubles.pop(self, None)
                while not self._waiting and not self._closed:
                    self._changed.wait()
                batch = list(self._waiting)[:_MOST_A_CALL]
                if not batch:
                    return
            pause = self._publish(batch, pause)
            with self._changed:
                for one in batch:
                    del self._waiting[one]
                    self._bytes -= _size_of(one)
                if pause and self._closed:
                    return

    def _publish(self, batch: Sequence[Wanted], pause: float) -> float:
        """Queue some keys, and return how long to pause before the next ones, in seconds."""
        started = time.monotonic()
        try:
            self._queue.publish([one.message() for one in batch])
        except Exception as error:  # noqa: BLE001 - a queue may be third-party code; lookups must go on
            if isinstance(error, Overloaded) and len(batch) > 1:  # there may be room for a part of them
                half = len(batch) // 2
                return max(self._publish(batch[:half], pause), self._publish(batch[half:], pause))
            self.dropped += len(batch)
            reason = error.message if isinstance(error, HeadraceError) else repr(error)
            self._troubles[self] = f"the queue does not accept missing keys: {reason}"
            if not pause:
                self._refused_since = started
                _log.warning("%s; later lookups will retry", self._troubles[self])
            return min(max(2 * pause, _PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        self._troubles.pop(self, None)
        if pause:
            seconds = time.monotonic() - self._refused_since
            _log.warning("the queue accepts missing keys again", extra={"seconds": seconds})
        self.published += len(batch)
        self._accepted(batch)
        return 0.0


_MOST_CALLERS = 10_000


class Quota:
    """Quota of new keys in one space, by caller: a token bucket for each.

    When there are too many callers to track, those that asked longest ago start again with a full bucket.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        """Limit each caller.

        Args:
            per_second: New keys per second, on average; 0 for no limit.
            burst: Maximum number of new keys at once.
        """
        self._per_second = per_second
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, keys: int, now: float) -> int:
        """Return how many of a caller's new keys may be queued, and charge the caller for them.

        Args:
            caller: Name of the caller; "" counts as one.
            keys: Number of its new keys.
            now: Monotonic time in seconds.
        """
        if not self._per_second:
            return keys
        left, since = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        taken = min(keys, int(left))
        self._buckets[caller] = left - taken, now
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets.popitem(last=False)
        return taken
