"""What an iterator gives, made by a thread that is some items ahead of who takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Generic, Self, TypeVar

from headrace.stream.sources import Source, Woken

Item = TypeVar("Item")

_CLOSE_SECONDS = 1.0
"""How long closing waits for a file that cannot be woken up."""


class Ahead(Generic[Item]):
    """An iterator whose items are made in the background, a few before they are asked for.

    Closing it early never hangs, wherever the thread is: waiting for bytes it is woken up by its source,
    waiting for someone to take an item through a semaphore.
    """

    def __init__(self, items: Iterator[Item], source: Source, places: int) -> None:
        """Begin.

        Args:
            items: What is made; only the thread asks it.
            source: What it reads from.
            places: How many items are made ahead.
        """
        self._items = items
        self._source = source
        self._made: SimpleQueue[Item | BaseException | None] = SimpleQueue()
        self._places = threading.Semaphore(places)
        self._closed = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="headrace-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        """It is one."""
        return self

    def __next__(self) -> Item:
        """The next item; what the iterator raised is raised here, once."""
        if self._ended:
            raise StopIteration
        made = self._made.get()
        self._places.release()
        if made is None or isinstance(made, BaseException):
            self._ended = True
            raise made or StopIteration
        return made

    def close(self) -> None:
        """Stop the thread; what was made ahead is lost."""
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
        except BaseException as error:  # noqa: BLE001  # The thread's end: raised again where items are taken.
            self._made.put(error)
        finally:
            self._made.put(None)
