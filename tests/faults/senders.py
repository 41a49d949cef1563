"""Sends requests back to back from a process of its own, so that a neighbour's waits hold nothing of it.

``python -m tests.faults.senders PORT CONNECTIONS`` reads a line with the requests, sends them until its input
ends, and prints the statuses that were answered; an empty line says that the first answer has come.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Sequence

from tests.faults.neighbours import Connection


def send(port: int, requests: Sequence[bytes], connections: int, ended: threading.Event) -> list[int]:
    """Send requests over and over on some connections, back to back, until it is ended.

    Args:
        port: The server's.
        requests: What each connection sends, one after another.
        connections: How many there are.
        ended: Ends it.

    Returns:
        The statuses that were answered.
    """
    statuses: list[int] = []
    answers = itertools.count()  # two may come at once

    def send_on_one() -> None:
        connection = Connection(port)
        while not ended.is_set():
            for request in requests:
                statuses.append(connection.send(request))
                if next(answers) == 0:
                    print(flush=True)
        connection.close()

    threads = [threading.Thread(target=send_on_one) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def main() -> None:
    """Run until standard input ends."""
    ended = threading.Event()
    requests = [request.encode("latin-1") for request in json.loads(sys.stdin.readline())]

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    print(json.dumps(send(int(sys.argv[1]), requests, int(sys.argv[2]), ended)))


if __name__ == "__main__":
    main()
