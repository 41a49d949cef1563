"""The server's side of a slot, by which one call at a time reaches a model's process.

A slot consists of a pipe for requests, a pipe for answers, and an area of shared memory.
"""

from __future__ import annotations

import math
import os
import select
import socket
from contextlib import suppress
from typing import NamedTuple

from headrace.isolation.layout_cache import Layouts
from headrace.isolation.messages import NEW_SLOT, RETAINED, SIZE, SLOT, Kind, Note
from headrace.isolation.shared_area import Area, new_file


class Limit(NamedTuple):
    """Time limit of a call.

    Attributes:
        seconds: The limit in seconds.
        said: Text that names the operation and the setting it exceeded, for messages.
    """

    seconds: float
    said: str


_NO_LIMIT = Limit(math.inf, "")


class Slot:
    """Server side of a slot, which carries one call at a time.

    Attributes:
        area: Memory shared by both sides.
        layouts: Known layouts of batches in the area.
        due: Deadline of the running call on the monotonic clock; meaningless while the slot is idle.
        limit: Time limit of the running call.
        is_asking: Whether a request has not been answered yet.
        is_spoiled: Whether the slot must not be used again.
    """

    __slots__ = (
        "_answers",
        "_requests",
        "_tell",
        "area",
        "due",
        "is_asking",
        "is_spoiled",
        "layouts",
        "limit",
    )

    def __init__(self, control: socket.socket, name: str, most_bytes: int) -> None:
        """Create a slot and send its other side to the process.

        Args:
            control: Control socket of the process.
            name: Name of the memory file.
            most_bytes: Size limit of the area.
        """
        self.due, self.limit = math.inf, _NO_LIMIT
        self.is_asking = self.is_spoiled = False
        self.layouts = Layouts()
        opened: list[int] = []
        try:
            opened += os.pipe()
            opened += os.pipe()
            requests, self._requests, self._answers, self._tell = opened
            self.area = Area(new_file(name), most_bytes)
            opened.append(self.area.fd)
            socket.send_fds(control, [NEW_SLOT.pack(SLOT, most_bytes)], [requests, self._tell, self.area.fd])
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        os.close(requests)

    def exchange(self, note: Note) -> Note:
        """Send a message, and wait for the answer.

        Raises:
            ValueError: The answer is malformed.
        """
        self.is_asking = True
        with suppress(BrokenPipeError):  # the process has ended: its watcher writes DIED to the answers
            os.write(self._requests, note.packed())
        answer = Note.of(os.read(self._answers, SIZE))
        self.is_asking = False
        if answer.kind & RETAINED:
            self.is_spoiled = True
            return answer._replace(kind=answer.kind & ~RETAINED)
        return answer

    def tell_end(self) -> None:
        """Wake the thread that waits for an answer, because the process has ended.

        If the pipe is full of unsolicited messages, it is closed instead, so that the reader reaches its end.
        """
        with suppress(OSError):
            if can_write(self._tell):
                os.write(self._tell, Note(Kind.DIED, 0, 0, 0).packed())
                return
        os.close(self._tell)
        self._tell = -1

    def close(self) -> None:
        """Close the area and the pipes; the slot's thread in the process ends."""
        self.area.close()
        for fd in (self._requests, self._answers, self._tell):
            if fd >= 0:
                os.close(fd)


def can_write(fd: int) -> bool:
    """Return whether a pipe accepts a message without blocking."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(0))
