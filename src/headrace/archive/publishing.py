"""Missing keys on their way to the queue: by a thread of its own, so that no lookup waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from headrace.archive.keys import stored
from headrace.errors import HeadraceError, Overloaded
from headrace.queues.queue import Message, Queue

_log = logging.getLogger(__name__)

_MOST_WAITING = 100_000
_MOST_WAITING_BYTES = 128 * 2**20
_WAITING_BYTES, _LETTER_BYTES = 300, 6  # of a key, and of each of its letters, as Python keeps them
_MOST_A_CALL = 1000
_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_LAST_SECONDS = 5.0


class Wanted(NamedTuple):
    """A key that is to be embedded.

    Attributes:
        space: Its space.
        version: The space version that has no vector of it.
        key: The key.
        turn: 0 as it is asked for; else it has been put back to the queue's end, and 1 and 2 take turns: a
            queue drops what it knows already.
    """

    space: str
    version: int
    key: str
    turn: int = 0

    def message(self) -> Message:
        """What the queue carries."""
        key = str(self.key)  # it may be of a kind of text that is NumPy's
        wanted = Wanted(self.space, self.version, key, self.turn)
        return Message(message_key(self.space, key), _encoder.encode(wanted))

    def again(self) -> Wanted:
        """The same, to be put back to the queue's end."""
        return self._replace(turn=2 if self.turn == 1 else 1)


def message_key(space: str, key: str) -> bytes:
    """What a queue keeps messages of one key of a space in order by."""
    return stored(f"{space}\0{key}".encode())


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Wanted)


def wanted_of(message: Message) -> Wanted:
    """What a message is about.

    Raises:
        HeadraceError: It is none of an archive's.
    """
    try:
        wanted = _decoder.decode(message.body)
        if wanted.key and wanted.space:
            return wanted
        raise HeadraceError("the message names no key")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HeadraceError(f"the message is none of an archive's: {error}") from error


def _size_of(wanted: Wanted) -> int:
    return _WAITING_BYTES + _LETTER_BYTES * len(wanted.key)


Accepted = Callable[[Sequence[Wanted]], object]


class Publisher:
    """Takes missing keys, and queues them in the background; each once, however often it is asked for.

    What cannot be queued is dropped: the next lookup that misses it asks again.

    Attributes:
        dropped: How many were dropped, as the queue did not take them or too many waited.
        published: How many were queued.
    """

    def __init__(self, queue: Queue, accepted: Accepted, troubles: dict[object, str]) -> None:
        """Start the thread.

        Args:
            queue: Where they go.
            accepted: Called in that thread with what the queue has accepted.
            troubles: Where it is said what it waits for, under itself.
        """
        self._queue = queue
        self._accepted = accepted
        self._troubles = troubles
        self._waiting: dict[Wanted, None] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._bytes = 0
        self.dropped = 0
        self.published = 0
        self._thread = threading.Thread(target=self._work, name="archive-publish", daemon=True)
        self._thread.start()

    def want(self, wanted: Sequence[Wanted]) -> None:
        """Have keys queued soon; returns at once."""
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
        """How many are on their way."""
        return len(self._waiting)

    def close(self) -> None:
        """Queue what waits, within a few seconds, and end the thread."""
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
        """Queue some keys; returns how long to wait before the next ones."""
        started = time.monotonic()
        try:
            self._queue.publish([one.message() for one in batch])
        except Exception as error:  # noqa: BLE001 - the boundary to a queue, which may be anybody's: lookups go on
            if isinstance(error, Overloaded) and len(batch) > 1:  # a part of them may have room
                half = len(batch) // 2
                return max(self._publish(batch[:half], pause), self._publish(batch[half:], pause))
            self.dropped += len(batch)
            reason = error.message if isinstance(error, HeadraceError) else repr(error)
            self._troubles[self] = f"the queue takes no missing keys: {reason}"
            if not pause:
                _log.warning("%s; later lookups ask again", self._troubles[self])
            return min(max(2 * pause, _PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        self._troubles.pop(self, None)
        if pause:
            _log.warning("the queue takes missing keys again", extra={"seconds": time.monotonic() - started})
        self.published += len(batch)
        self._accepted(batch)
        return 0.0
