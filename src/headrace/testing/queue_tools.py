"""Tools for tests of a Queue: numbered messages, receiving a number of messages, background threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from headrace.config.toml_reader import convert
from headrace.storage.opening import open_queue
from headrace.storage.queues.queue import Delivery, Message, Queue, Receiver
from headrace.storage.queues.queue_settings import AnyQueue
from headrace.testing.queue_process import QueueProcess

LONGEST_WAIT_SECONDS = 60.0
"""Longest wait for anything expected."""


class _Settings(msgspec.Struct):
    queue: AnyQueue


def open_from_settings(table: dict[str, object]) -> Queue:
    """Open one of headrace's own queues.

    Args:
        table: The ``[queue]`` table of an ``archive.toml``.
    """
    return open_queue(convert({"queue": table}, _Settings, "settings").queue)


def messages(first: int, count: int) -> list[Message]:
    """Return numbered messages, each with a key of its own."""
    return [Message(b"key-%d" % number, b"body-%d" % number) for number in range(first, first + count)]


def received(receivers: Sequence[Receiver], count: int, limit: int = 1000) -> list[tuple[Receiver, Delivery]]:
    """Return what receivers get, in turns, until there are at least ``count`` messages.

    Raises:
        AssertionError: Fewer came in time.
    """
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    found: list[tuple[Receiver, Delivery]] = []
    while len(found) < count:
        assert time.monotonic() < deadline, f"received only {len(found)} of {count} messages"
        for receiver in receivers:
            found += [(receiver, delivery) for delivery in receiver.receive(limit, 0.1)]
    return found


def told(found: Sequence[tuple[Receiver, Delivery]]) -> list[Message]:
    """Return the messages of received deliveries."""
    return [delivery.message for _, delivery in found]


def has_received(process: QueueProcess, count: int) -> float:
    """Have another process receive ``count`` messages; return the start time of the last receive.

    Raises:
        AssertionError: Fewer came in time.
    """
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while True:
        begun = time.monotonic()
        assert begun < deadline, f"expected {count} more messages"
        count -= len(process.receive(count, 1.0))
        if count <= 0:
            return begun


@contextmanager
def working(process: QueueProcess, limit: int) -> Iterator[list[Message]]:
    """Have another process receive and acknowledge in a loop; yield the list of messages it has received."""
    done: list[Message] = []
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            done.extend(process.receive(limit, 0.1))
            process.acknowledge()

    with running(work):
        try:
            yield done
        finally:
            is_over.set()


def acknowledge(found: Sequence[tuple[Receiver, Delivery]]) -> int:
    """Have each receiver acknowledge its own messages; return how many were acknowledged."""
    by_receiver: dict[int, tuple[Receiver, list[Delivery]]] = {}
    for receiver, delivery in found:
        by_receiver.setdefault(id(receiver), (receiver, []))[1].append(delivery)
    return sum(receiver.acknowledge(own) for receiver, own in by_receiver.values())


@contextmanager
def running(*work: Callable[[], object]) -> Iterator[None]:
    """Run functions in threads during a test.

    Raises:
        AssertionError: One of them raised an exception.
    """
    raised: list[BaseException] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - the test reports it
            raised.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()
    assert not raised, raised
