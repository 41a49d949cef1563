"""A load that sends prepared bytes over raw sockets when they are due, whatever the answers do.

h2load and wrk know no deadlines, keep a bounded number of requests in flight, and cannot tell a refusal of
gRPC from an answer; a client library would take more of a processor than the server that is measured. So this
one writes HTTP/1.1 and HTTP/2 itself, in a process of its own: requests are bytes that lie ready, and of an
answer nothing is read but how it ended. It does what clients with deadlines do: it gives up at the deadline,
by a reset of the stream over HTTP/2, by closing the connection over HTTP/1.1.
"""

from __future__ import annotations

import gc
import select
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.models import ROOT
from benchmarks.processes import cores, on_core

_SPARE_SECONDS = 60.0
_LAST_ANSWERS_SECONDS = 10.0
_AT_ONCE = 32
"""So many requests are sent before answers are looked at again."""


class Ended(IntEnum):
    """How a request ended."""

    OPEN = 0
    """It has not."""
    ANSWERED = 1
    REFUSED = 2
    """The server said at once, or later, that it takes no more: 503, 429, UNAVAILABLE, RESOURCE_EXHAUSTED."""
    TOLD_LATE = 3
    """The server said that the deadline has passed: 504, DEADLINE_EXCEEDED."""
    GIVEN_UP = 4
    """The deadline passed, and the client left."""
    FAILED = 5
    """Anything else: another status, a connection that ended."""


@dataclass(frozen=True)
class Load:
    """What is to be sent.

    Attributes:
        wire: gRPC, or REST with JSON.
        port: Of the server.
        path: What is asked.
        bodies: Sent in turns; with gRPC's prefix over gRPC.
        moments: When requests are due, in seconds from the beginning; none in a closed loop.
        deadline_seconds: How long an answer is waited for, which the server is told; 0 for ever.
        in_flight: In a closed loop: requests at a time.
        seconds: In a closed loop: how long.
    """

    wire: Literal["grpc", "json"]
    port: int
    path: str
    bodies: list[bytes]
    moments: list[float] | None = None
    deadline_seconds: float = 0.0
    in_flight: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Seen:
    """What became of each request.

    Attributes:
        due: When it was to be sent, in seconds from the beginning.
        sent: When it was sent.
        ended: When it ended.
        how: An ``Ended``.
        busy: The share of its core that the load used.
    """

    due: npt.NDArray[np.float64]
    sent: npt.NDArray[np.float64]
    ended: npt.NDArray[np.float64]
    how: npt.NDArray[np.uint8]
    busy: float

    @property
    def spent(self) -> npt.NDArray[np.float64]:
        """How long each took, in seconds, from when it was due."""
        spent: npt.NDArray[np.float64] = self.ended - self.due
        return spent


def send(load: Load) -> Seen:
    """Have a process on the load's core send it, and wait for the end.

    Raises:
        RuntimeError: The process failed.
    """
    lasts = load.seconds if load.moments is None else load.moments[-1]
    with tempfile.TemporaryDirectory() as folder:
        asked, seen = Path(folder, "load.json"), Path(folder, "seen.npz")
        asked.write_bytes(msgspec.json.encode(load))
        command = on_core(cores()[1], [sys.executable, "-m", "benchmarks.open_loop", str(asked), str(seen)])
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=lasts + _SPARE_SECONDS, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the load failed:\n{done.stderr[-2000:]}")
        with np.load(seen) as found:
            columns = found["due"], found["sent"], found["ended"], found["how"]
            return Seen(*columns, busy=float(found["busy"]))


class Sender:
    """Sends what is due, and keeps what became of it."""

    def __init__(self, load: Load) -> None:
        """Open the connections, where there are any beforehand."""
        from benchmarks.open_loop_wires import Http1, Http2  # noqa: PLC0415 - it needs this module's words

        self._deadline = load.deadline_seconds
        self._epoll = select.epoll()
        self.due: list[float] = []
        self.sent: list[float] = []
        self.ended: list[float] = []
        self.how: list[int] = []
        self._open = 0
        self._expiring: deque[int] = deque()
        self._on_end: Callable[[], None] | None = None
        kind = Http2 if load.wire == "grpc" else Http1
        self._wire = kind(load, self._epoll, self.end)

    def open_loop(self, moments: list[float]) -> None:
        """Send each request at its moment, then wait for what is open."""
        begins = time.perf_counter()
        moments_left = deque(moment + begins for moment in moments)
        last = begins + moments[-1] + (self._deadline or _LAST_ANSWERS_SECONDS)
        while moments_left or (self._open and time.perf_counter() < last):
            now = time.perf_counter()
            for _ in range(_AT_ONCE):
                if not moments_left or moments_left[0] > now:
                    break
                self._send(moments_left.popleft())
            self._give_up(now)
            until = moments_left[0] if moments_left else last
            if self._expiring:
                until = min(until, self.due[self._expiring[0]] + self._deadline)
            self._answers(max(0.0, until - time.perf_counter()))
        self._from(begins)

    def closed_loop(self, in_flight: int, seconds: float) -> None:
        """Send a request for each that ended."""
        begins = time.perf_counter()
        until = begins + seconds
        to_send = in_flight

        def again() -> None:
            nonlocal to_send
            to_send += 1

        self._on_end = again
        while time.perf_counter() < until:
            for _ in range(to_send):
                to_send -= 1
                self._send(time.perf_counter())
            self._answers(0.1)
        self._from(begins)

    def _send(self, due: float) -> None:
        number = len(self.due)
        self.due.append(due)
        self.sent.append(time.perf_counter())
        self.ended.append(0.0)
        self.how.append(Ended.OPEN)
        self._open += 1
        if self._deadline:
            self._expiring.append(number)
        self._wire.send(number)

    def end(self, number: int, how: Ended) -> None:
        """A request has ended."""
        if self.how[number] == Ended.OPEN:
            self.ended[number] = time.perf_counter()
            self.how[number] = how
            self._open -= 1
            if self._on_end is not None:
                self._on_end()

    def _give_up(self, now: float) -> None:
        while self._expiring:
            number = self._expiring[0]
            if self.how[number] == Ended.OPEN:
                if self.due[number] + self._deadline > now:
                    return
                self._wire.give_up(number)
                self.end(number, Ended.GIVEN_UP)
            self._expiring.popleft()

    def _answers(self, seconds: float) -> None:
        """Read what has come; epoll itself knows whole milliseconds only, so its descriptor is waited for."""
        ready = select.select([self._epoll], [], [], seconds)[0]
        if ready:
            for descriptor, events in self._epoll.poll(0):
                self._wire.handle(descriptor, events)

    def _from(self, begins: float) -> None:
        self.due = [moment - begins for moment in self.due]
        self.sent = [moment - begins for moment in self.sent]
        self.ended = [moment - begins for moment in self.ended]


def main(asked: str, seen: str) -> None:
    """Send a load, and write what was seen.

    Args:
        asked: The file with the Load.
        seen: Where to write.
    """
    load = msgspec.json.decode(Path(asked).read_bytes(), type=Load)
    gc.disable()
    sender = Sender(load)
    wall, used = time.perf_counter(), time.process_time()
    if load.moments is None:
        sender.closed_loop(load.in_flight, load.seconds)
    else:
        sender.open_loop(load.moments)
    busy = (time.process_time() - used) / (time.perf_counter() - wall)
    times = {"due": sender.due, "sent": sender.sent, "ended": sender.ended}
    np.savez(seen, **times, how=np.array(sender.how, np.uint8), busy=busy)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
