"""How long a neighbour waits for its small answers while others send what they like."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.faults.still_serves import MODEL, connect, predict_request


class Connection:
    """One connection that stays open, and opens anew when the server has closed it.

    Attributes:
        answered_bytes: The size of the last answer's body.
    """

    def __init__(self, port: int, most_seconds: float = 120.0) -> None:
        """Connect when it is needed.

        Args:
            port: The server's.
            most_seconds: How long it waits for bytes, at the most.
        """
        self._port = port
        self._most_seconds = most_seconds
        self._socket: socket.socket | None = None
        self.answered_bytes = 0

    def send(self, request: bytes) -> int:
        """Send one request, and give the status of its answer; 0 if there was none."""
        try:
            self._socket = self._socket or connect(self._port)
            self._socket.settimeout(self._most_seconds)
            self._socket.sendall(request)
            return self._answer(self._socket)
        except OSError:
            self.close()
            return 0

    def _answer(self, connection: socket.socket) -> int:
        received = b""
        while b"\r\n\r\n" not in received:
            chunk = connection.recv(1 << 18)
            if not chunk:
                raise ConnectionResetError
            received += chunk
        head, _, body = received.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line
        )
        self.answered_bytes = length
        missing = length - len(body)
        while missing > 0:
            missing -= len(connection.recv(min(missing, 1 << 18))) or missing
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        """Close it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@contextmanager
def sending(port: int, requests: Sequence[bytes], connections: int = 4) -> Iterator[list[int]]:
    """Send requests over and over on some connections, back to back, until the block ends.

    Args:
        port: The server's.
        requests: What each connection sends, one after another.
        connections: How many there are.

    Yields:
        The statuses that were answered; there once the block has ended.
    """
    statuses: list[int] = []
    command = [sys.executable, "-m", "tests.faults.senders", str(port), str(connections)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said = json.dumps([request.decode("latin-1") for request in requests])
            process.stdin.write(said.encode() + b"\n")
            process.stdin.flush()
            process.stdout.readline()  # the first answer has come
            yield statuses
        finally:
            process.stdin.close()
            statuses += json.loads(process.stdout.read())


def waits(port: int, seconds: float, ended: threading.Event | None = None) -> list[float]:
    """How long each of a neighbour's small requests took, in seconds.

    Args:
        port: The server's.
        seconds: For how long it asks, at the most.
        ended: Ends it earlier.
    """
    connection, request = Connection(port), predict_request(MODEL, [1.0])
    found = []
    until = time.monotonic() + seconds
    while not found or (time.monotonic() < until and not (ended is not None and ended.is_set())):
        started = time.monotonic()
        assert connection.send(request) == 200
        found.append(time.monotonic() - started)
        time.sleep(0.001)  # a neighbour, not a load
    connection.close()
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
