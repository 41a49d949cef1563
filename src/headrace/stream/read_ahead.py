"""Compute an iterator's items in a thread, ahead of their consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Generic, Self, TypeVar

from headrace.stream.byte_sources import Source, Woken

Item = TypeVar("Item")

_CLOSE_SECONDS = 1.0
"""Longest wait for the thread when closing, if its source cannot be woken."""


class Ahead(Generic[Item]):
    """An iterator whose items are computed in the background, a few ahead.

    Closing it early never hangs: the thread is woken by its source if it waits for bytes, and by a semaphore
    if it waits for room.
    """

    def __init__(self, items: Iterator[Item], source: Source, places: int) -> None:
        """Start the thread.

        Args:
            items: The iterator, used by the thread only.
            source: The source that it reads.
            places: Number of items to queue; one more may be computed.
        """
        self._items = items
        self._source = source
        self._made: SimpleQueue[Item | BaseException | None] = SimpleQueue()
        self._next: list[Item | BaseException | None] = []  # the item that ``wait`` has found, if any
        self._places = threading.Semaphore(places)
        self._closed = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="headrace-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        """Return self."""
        return self

    def __next__(self) -> Item:
        """Return the next item; raise the iterator's exception, once."""
        if self._ended:
            raise StopIteration
        made = self._next.pop() if self._next else self._made.get()
        self._places.release()
        if made is None or isinstance(made, BaseException):
            self._ended = True
            raise made or StopIteration
        return made

    def wait(self, seconds: float) -> bool:
        """Wait for the next item, or the end; return False after the timeout."""
        if not (self._next or self._ended):
            try:
                self._next.append(self._made.get(timeout=seconds))
            except Empty:
                return False
        return True

    def close(self) -> None:
        """Stop the thread; items computed ahead are lost."""
        self._closed = self._ended = True
        self._source.wake()
        self._places.release()
        self._thread.join(None if self._source.wakes else _CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            for item in self._items:
                self._places.acquire()
                if self._closed:
                    return
                self._made.put(item)
        except Woken:
            pass
        except BaseException as error:  # noqa: BLE001  # The end of the thread: `__next__` raises it again.
            self._made.put(error)
        finally:
            self._made.put(None)
