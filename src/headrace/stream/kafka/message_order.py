"""The order of messages from several partitions: a reproducible merge, and the record of what is not.

The next message is the oldest of the partitions' first ones, by Kafka's timestamp, then by partition. It is
known only when each partition has a message. A silent partition would delay all others, so it is skipped
after a while. Such a pick depends on timing, so it is marked, recorded on disk before the message is learnt
from, and repeated.

``DIR/order-TOPIC-NUMBER.log`` has a line for each pick that skipped a silent partition, and for each
partition that was added to the topic later. A checkpoint begins a new file. Files that no kept checkpoint
needs are deleted.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.base.files import saying

_log = logging.getLogger(__name__)


class Message(NamedTuple):
    """A message of a topic.

    Attributes:
        partition: Its partition.
        offset: Its offset in the partition.
        timestamp: Kafka's timestamp, in milliseconds since 1970.
        value: Its bytes.
    """

    partition: int
    offset: int
    timestamp: int
    value: bytes


class Picked(NamedTuple):
    """The next message.

    Attributes:
        message: The message.
        number: Its number in the order, from 0.
        by_chance: Whether a silent partition was skipped, so that the pick depends on timing.
    """

    message: Message
    number: int
    by_chance: bool


class Merge:
    """Takes messages by partition, and returns them in one order."""

    def __init__(self, number: int = 0, known: Mapping[int, int] | None = None) -> None:
        """Begin without partitions.

        Args:
            number: The number of the next message in the order.
            known: Recorded picks to repeat: the partition of each message whose pick depended on timing, by
                number.
        """
        self.number = number
        self._known = dict(known or {})
        self._last_known = max(self._known, default=-1)
        self._queues: dict[int, deque[Message]] = {}
        self._bytes: dict[int, int] = {}
        self._since: dict[int, int] = {}

    @property
    def repeats(self) -> bool:
        """Whether recorded picks remain."""
        return self.number <= self._last_known

    def join(self, partitions: Iterable[int], since: int) -> None:
        """Add partitions.

        Args:
            partitions: The partitions.
            since: The number in the order from which they take part.
        """
        for partition in partitions:
            self._queues.setdefault(partition, deque())
            self._bytes.setdefault(partition, 0)
            self._since.setdefault(partition, since)

    def add(self, message: Message) -> None:
        """Queue a message of a partition that was added."""
        self._queues[message.partition].append(message)
        self._bytes[message.partition] += len(message.value)

    def waiting(self, partition: int) -> tuple[int, int]:
        """Return the number of queued messages of a partition, and their size in bytes."""
        return len(self._queues[partition]), self._bytes[partition]

    def pick(self, silent: Callable[[int], bool]) -> Picked | None:
        """Return the next message; None if it is not known yet.

        Args:
            silent: Returns whether a partition without messages has been silent for so long that it is
                skipped.
        """
        if (partition := self._known.get(self.number)) in self._queues and partition is not None:
            return self._take(partition, by_chance=False) if self._queues[partition] else None
        taking_part = [one for one, since in self._since.items() if since <= self.number]
        ready = [one for one in taking_part if self._queues[one]]
        empty = [one for one in taking_part if not self._queues[one]]
        if not ready or (empty and (self.repeats or not all(map(silent, empty)))):
            return None
        oldest = min(ready, key=lambda one: (self._queues[one][0].timestamp, one))
        return self._take(oldest, by_chance=bool(empty))

    def _take(self, partition: int, *, by_chance: bool) -> Picked:
        message = self._queues[partition].popleft()
        self._bytes[partition] -= len(message.value)
        self._known.pop(self.number, None)
        self.number += 1
        return Picked(message, self.number - 1, by_chance)


_PICKED, _JOINED = "picked", "joined"
_LONGEST_LINE_BYTES = 64


class Known(NamedTuple):
    """The recorded decisions.

    Attributes:
        picked: The partition of each recorded message, by the message's number in the order.
        joined: The number in the order from which each added partition takes part, by partition.
    """

    picked: dict[int, int]
    joined: dict[int, int]


class OrderLog:
    """The log files; nothing is written without a directory.

    Attributes:
        known: The recorded decisions: the picks from the number ``since`` on, and all added partitions.
    """

    def __init__(self, directory: Path | None, topic: str, since: int, kept: int = 2) -> None:
        """Read the existing files.

        Args:
            directory: The directory of checkpoints; None to record nothing.
            topic: The topic; files of other topics are ignored.
            since: The first number in the order that matters.
            kept: Number of checkpoints kept.

        Raises:
            FailedPrecondition: A file cannot be read.
        """
        self._directory = directory
        self._kept = kept
        self._name = f"order-{topic}-"
        self._saved = [since]
        self._lock = threading.Lock()
        self._descriptor = -1
        self._told = False
        self._last: dict[Path, int] = {}
        self.known = Known({}, {})
        if directory is not None:
            with saying(f"the order of messages in {directory} cannot be read"):
                for path in sorted(directory.glob(f"{self._name}[0-9]*.log"), key=_age):
                    if path.stem.removeprefix(self._name).isdigit():  # else of a topic with a longer name
                        self._read(path, since)

    def picked(self, number: int, partition: int) -> None:
        """Record the partition that a message was picked from."""
        self._write(_PICKED, number, partition)

    def joined(self, number: int, partition: int) -> None:
        """Record the number from which a partition takes part."""
        self._write(_JOINED, number, partition)

    def saved(self, number: int) -> None:
        """Begin a new file: a checkpoint was saved before the message with this number."""
        with self._lock:
            self._close()
            self._saved = [*self._saved, number][-self._kept :]
            for path in [one for one, last in self._last.items() if last < self._saved[0]]:
                path.unlink(missing_ok=True)
                del self._last[path]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, what: str, number: int, partition: int) -> None:
        if self._directory is None:
            return
        with self._lock:
            path = self._directory / f"{self._name}{self._saved[-1]}.log"
            try:
                if self._descriptor < 0:
                    self._directory.mkdir(parents=True, exist_ok=True)
                    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                    self._descriptor = os.open(path, flags, 0o644)
                    _cut_torn_line(self._descriptor)
                line = f"{what} {number} {partition}\n".encode()
                if os.write(self._descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._close()  # opening it again cuts off what was written of the line
                if not self._told:
                    self._told = True
                    _log.warning(
                        "the order of messages cannot be written to %s (%s): each row is learnt once, but "
                        "a run that is killed may resume in another order",
                        path,
                        error.strerror or error,
                    )
                return
            self._last[path] = max(self._last.get(path, -1), number)

    def _read(self, path: Path, since: int) -> None:
        whole = path.read_text("ascii", "replace").rpartition("\n")[0]  # the last line may be torn
        for line in whole.splitlines():
            what, _, rest = line.partition(" ")
            number, _, partition = rest.partition(" ")
            if what not in (_PICKED, _JOINED) or not (number.isdigit() and partition.isdigit()):
                continue
            self._last[path] = max(self._last.get(path, -1), int(number))
            if what == _JOINED:
                self.known.joined[int(partition)] = int(number)
            elif int(number) >= since:
                self.known.picked[int(number)] = int(partition)


def _cut_torn_line(descriptor: int) -> None:
    """Cut off a last line without an end, as left by a full disk."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _LONGEST_LINE_BYTES, max(0, size - _LONGEST_LINE_BYTES))
    if torn := len(tail) - tail.rfind(b"\n") - 1:
        os.ftruncate(descriptor, size - torn)


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns
