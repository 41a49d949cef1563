"""End a worker whose supervisor is gone and whose serving thread hangs: nobody else would end it."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable

GRACE_SECONDS = 15.0
"""Time in seconds for a worker to end after its drain: to accept what waits, unload, and end its threads."""


class Watch:
    """Watches in a thread of its own whether the supervisor is still there.

    Attributes:
        seconds: Time for this process to end by itself once the supervisor is gone.
    """

    def __init__(self, end: socket.socket, leave: Callable[[int], object] = os._exit) -> None:
        """Begin to watch.

        Args:
            end: This process's end of the channel, of which the watch keeps a duplicate.
            leave: Ends the process with an exit code, without waiting for any thread.
        """
        self.seconds = GRACE_SECONDS
        self._end = end.dup()
        self._leave = leave
        self._stopped = threading.Event()
        self._waking, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        for one in (self._end, self._woken):
            poll.register(one, 0)  # only for the end of the other side, which is always reported
        poll.poll()
        if not self._stopped.wait(self.seconds):
            self._leave(1)

    def stop(self) -> None:
        """Stop watching: the process ends by itself."""
        self._stopped.set()
        self._waking.close()
        self._thread.join()
        self._woken.close()
        self._end.close()
