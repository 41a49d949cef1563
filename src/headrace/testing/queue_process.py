"""``python -m headrace.testing.queue_process OPENER``: uses a queue as the lines on its standard input say.

Each line is JSON, and answered by one: what is to be done under ``do``, with its arguments beside it. It has
one receiver, made at the first use, and remembers what that has received until it is settled.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from headrace.errors import HeadraceError
from headrace.queues.queue import Delivery, Message, Queue, Receiver
from headrace.testing.opener import Opener

_LONGEST_ANSWER_SECONDS = 120.0


class QueueProcess:
    """Another process that uses the queue; killed at the end of the with statement."""

    def __init__(self, opener: Opener) -> None:
        """Start it, and wait until it has opened the queue.

        Args:
            opener: How.
        """
        command = [sys.executable, "-m", "headrace.testing.queue_process", opener.to_json()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        self._answer()

    def __enter__(self) -> QueueProcess:
        """Give itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.kill()

    def publish(self, messages: Sequence[Message]) -> None:
        """Publish."""
        self.ask("publish", messages=_told(messages))

    def receive(self, limit: int, wait_seconds: float) -> list[Message]:
        """Receive."""
        return _heard(self.ask("receive", limit=limit, wait_seconds=wait_seconds))

    def acknowledge(self) -> int:
        """Acknowledge all that was received, and give how many were still the receiver's."""
        return int(self.ask("acknowledge"))

    def release(self) -> None:
        """Release all that was received."""
        self.ask("release")

    def keep(self) -> None:
        """Say that it is alive."""
        self.ask("keep")

    def stop(self) -> None:
        """Have the system stop it, wherever it is."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have the system let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def ask(self, what: str, **arguments: Any) -> Any:
        """Have it do something.

        Raises:
            RuntimeError: It ended with an error; the message begins with its class.
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
    """What does as the lines say."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._receiver: Receiver | None = None
        self._received: list[Delivery] = []

    def answer(self, told: dict[str, Any]) -> Any:
        """Do it, and give what is to be answered."""
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
                raise ValueError(f"not known: {unknown}")
        return None


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Do as the lines say, until there are no more."""
    queue: Queue = Opener.from_json(sys.argv[1]).open()
    worker = _Worker(queue)
    _write({"result": None})
    for line in sys.stdin:
        try:
            _write({"result": worker.answer(json.loads(line))})
        except HeadraceError as error:
            _write({"error": f"{type(error).__name__}: {error}"})
    queue.close()


if __name__ == "__main__":
    main()
