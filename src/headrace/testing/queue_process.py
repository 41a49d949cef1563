"""Tools for tests of a Queue: a process that uses it, numbered messages, receiving, background threads.

``python -m headrace.testing.queue_process OPENER`` uses a queue as the lines on standard input say. Each line
is a JSON object with a command under ``do`` and its arguments, and is answered with one line. The process has
one receiver, made at the first command, and remembers its deliveries until they are settled.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import msgspec

from headrace.base.errors import HeadraceError
from headrace.config.toml_reader import convert
from headrace.storage.opening import open_queue
from headrace.storage.queues.queue import Delivery, Message, Queue, Receiver
from headrace.storage.settings import AnyQueue
from headrace.testing.opener import Opener

_LONGEST_ANSWER_SECONDS = 120.0


class QueueProcess:
    """Another process that uses the queue; killed at the end of the with statement."""

    def __init__(self, opener: Opener) -> None:
        """Start the process, and wait until it has opened the queue.

        Args:
            opener: Opener of the queue.
        """
        command = [sys.executable, "-m", "headrace.testing.queue_process", opener.to_json()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        self._answer()

    def __enter__(self) -> QueueProcess:
        """Return the process."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process."""
        self.kill()

    def publish(self, messages: Sequence[Message]) -> None:
        """Publish messages."""
        self.ask("publish", messages=_told(messages))

    def receive(self, limit: int, wait_seconds: float) -> list[Message]:
        """Receive messages."""
        return _heard(self.ask("receive", limit=limit, wait_seconds=wait_seconds))

    def acknowledge(self) -> int:
        """Acknowledge all received messages; return how many the receiver still held."""
        return int(self.ask("acknowledge"))

    def release(self) -> None:
        """Release all received messages."""
        self.ask("release")

    def keep(self) -> None:
        """Signal that the receiver is alive."""
        self.ask("keep")

    def stop(self) -> None:
        """Suspend the process by SIGSTOP, wherever it is."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the process by SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process by SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def ask(self, what: str, **arguments: Any) -> Any:
        """Run a command in the process, and return its result.

        Raises:
            RuntimeError: The command failed, and the message begins with the error's class; or the process
                has ended.
            TimeoutError: The process does not answer.
        """
        self._say(what, arguments)
        return self._answer()

    def _say(self, what: str, arguments: dict[str, Any]) -> None:
        if self._process.stdin is None:
            raise OSError("the process has no standard input")
        self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        if self._process.stdout is None:
            raise OSError("the process has no standard output")
        if not select.select([self._process.stdout], [], [], _LONGEST_ANSWER_SECONDS)[0]:
            raise TimeoutError("the other process does not answer")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the other process has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]


def _told(messages: Sequence[Message]) -> list[list[str]]:
    return [[key.hex(), body.hex()] for key, body in messages]


def _heard(told: list[list[str]]) -> list[Message]:
    return [Message(bytes.fromhex(key), bytes.fromhex(body)) for key, body in told]


class _Worker:
    """Executes the commands in the other process."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._receiver: Receiver | None = None
        self._received: list[Delivery] = []

    def answer(self, told: dict[str, Any]) -> Any:
        """Execute a command, and return its result."""
        receiver = self._receiver = self._receiver or self._queue.receiver()
        match told["do"]:
            case "publish":
                self._queue.publish(_heard(told["messages"]))
            case "receive":
                found = receiver.receive(told["limit"], told["wait_seconds"])
                self._received += found
                return _told([delivery.message for delivery in found])
            case "acknowledge":
                received, self._received = self._received, []
                return receiver.acknowledge(received)
            case "release":
                received, self._received = self._received, []
                receiver.release(received)
            case "keep":
                receiver.keep()
            case "depth":
                return list(self._queue.depth())
            case unknown:
                raise ValueError(f"unknown command: {unknown}")
        return None


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Execute the commands on standard input until it ends."""
    queue: Queue = Opener.from_json(sys.argv[1]).open()
    worker = _Worker(queue)
    _write({"result": None})
    for line in sys.stdin:
        try:
            _write({"result": worker.answer(json.loads(line))})
        except HeadraceError as error:
            _write({"error": f"{type(error).__name__}: {error}"})
    queue.close()


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


if __name__ == "__main__":
    main()
