"""What tests of a Queue share: messages with numbers, receiving until all has come, threads beside a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from headrace.config.reading import convert
from headrace.queues.opening import open_queue
from headrace.queues.queue import Delivery, Message, Queue, Receiver
from headrace.queues.settings import AnyQueue
from headrace.testing.queue_process import QueueProcess

LONGEST_WAIT_SECONDS = 60.0
"""How long anything that shall come may take."""


class _Settings(msgspec.Struct):
    queue: AnyQueue


def open_from_settings(table: dict[str, object]) -> Queue:
    """Open one of headrace's own queues.

    Args:
        table: The ``[queue]`` table of an ``archive.toml``.
    """
    return open_queue(convert({"queue": table}, _Settings, "settings").queue)


def messages(first: int, count: int) -> list[Message]:
    """Messages that are told by their numbers, each with a key of its own."""
    return [Message(b"key-%d" % number, b"body-%d" % number) for number in range(first, first + count)]


def received(receivers: Sequence[Receiver], count: int, limit: int = 1000) -> list[tuple[Receiver, Delivery]]:
    """What receivers get, one after the other, until it is as many as expected.

    Raises:
        AssertionError: Fewer came in time.
    """
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    found: list[tuple[Receiver, Delivery]] = []
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        for receiver in receivers:
            found += [(receiver, delivery) for delivery in receiver.receive(limit, 0.1)]
    return found


def told(found: Sequence[tuple[Receiver, Delivery]]) -> list[Message]:
    """The messages of what was received."""
    return [delivery.message for _, delivery in found]


def has_received(process: QueueProcess, count: int) -> float:
    """Have another process receive so many messages; give when it began to receive the last of them.

    Raises:
        AssertionError: Fewer came in time.
    """
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while True:
        begun = time.monotonic()
        assert begun < deadline, f"{count} more messages should have come"
        count -= len(process.receive(count, 1.0))
        if count <= 0:
            return begun


@contextmanager
def working(process: QueueProcess, limit: int) -> Iterator[list[Message]]:
    """Have another process receive and acknowledge on and on; gives what it has received so far."""
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
    """Have each receiver acknowledge its own, and give how many were."""
    by_receiver: dict[int, tuple[Receiver, list[Delivery]]] = {}
    for receiver, delivery in found:
        by_receiver.setdefault(id(receiver), (receiver, []))[1].append(delivery)
    return sum(receiver.acknowledge(own) for receiver, own in by_receiver.values())


@contextmanager
def running(*work: Callable[[], object]) -> Iterator[None]:
    """Threads beside a test.

    Raises:
        AssertionError: One of them raised something.
    """
    raised: list[BaseException] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - whatever comes is told by the test
            raised.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()
    assert not raised, raised
