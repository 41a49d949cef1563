"""Where one call at a time goes to a model's process: a pipe there, a pipe back, and shared memory."""

from __future__ import annotations

import math
import os
import select
import socket
from contextlib import suppress
from typing import NamedTuple

from headrace.isolation.area import Area, new_file
from headrace.isolation.layouts import Layouts
from headrace.isolation.messages import NEW_SLOT, RETAINED, SIZE, SLOT, Kind, Note


class Limit(NamedTuple):
    """How long a call may take.

    Attributes:
        seconds: The time.
        said: What takes longer than which setting, for people.
    """

    seconds: float
    said: str


_NO_LIMIT = Limit(math.inf, "")


class Slot:
    """Where one call at a time goes.

    Attributes:
        area: What both sides share.
        layouts: How batches lie in it.
        due: When the call has taken too long, on the monotonic clock; only meant while it is taken.
        limit: What it has taken longer than then.
        is_asking: Whether something was asked that has not been answered.
        is_spoiled: Whether it must not be used again.
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
        """Make one, and hand its other side over.

        Args:
            control: The socket to the process.
            name: What the memory is called.
            most_bytes: How large it may become.
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
        """Say something, and wait for what is answered.

        Raises:
            ValueError: It was no answer.
        """
        self.is_asking = True
        with suppress(BrokenPipeError):  # it has ended: whoever watches it says so
            os.write(self._requests, note.packed())
        answer = Note.of(os.read(self._answers, SIZE))
        self.is_asking = False
        if answer.kind & RETAINED:
            self.is_spoiled = True
            return answer._replace(kind=answer.kind & ~RETAINED)
        return answer

    def tell_end(self) -> None:
        """Let whoever waits for an answer know that none will come; the process has ended.

        Where the pipe is full, because it has said what nobody asked for, there is an end to that at least.
        """
        with suppress(OSError):
            if can_write(self._tell):
                os.write(self._tell, Note(Kind.DIED, 0, 0, 0).packed())
                return
        os.close(self._tell)
        self._tell = -1

    def close(self) -> None:
        """Let go of it; its thread over there ends."""
        self.area.close()
        for fd in (self._requests, self._answers, self._tell):
            if fd >= 0:
                os.close(fd)


def can_write(fd: int) -> bool:
    """Whether a pipe takes a message right now."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(0))
