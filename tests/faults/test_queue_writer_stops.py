"""Who writes to an LMDB queue is stopped or killed, or the disk is full: others are told in time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.base.errors import Unavailable
from headrace.storage.queues.lmdb import LmdbMessages
from headrace.storage.queues.queue import Message
from headrace.storage.settings import LmdbQueue
from headrace.testing.queue_process import messages
from tests.waiting import seconds_left

TIMEOUT_SECONDS = 1.0

# It publishes one message, and gets a signal in the midst of the next write.
WRITER = """
import os, signal, sys
from pathlib import Path
from headrace.storage.queues.lmdb import LmdbMessages
from headrace.storage.queues.queue import Message
from headrace.storage.settings import LmdbQueue

queue = LmdbMessages(LmdbQueue(path=Path(sys.argv[1]), timeout_seconds=1.0))
queue.publish([Message(b"before", b"1")])

def change(transaction):
    queue._tables.publish(transaction, [Message(b"cut", b"2")], queue._limits)
    os.kill(os.getpid(), int(sys.argv[2]))
    return 0

queue._writer.run(change)
print("written", flush=True)
"""

# It opens the queue, and waits until a writer is stopped. Then it prints how many threads and descriptors it
# has, is refused six times, and prints that again.
REFUSED = """
import os, sys, threading
from pathlib import Path
from headrace.base.errors import Unavailable
from headrace.storage.queues.lmdb import LmdbMessages
from headrace.storage.queues.queue import Message
from headrace.storage.settings import LmdbQueue

queue = LmdbMessages(LmdbQueue(path=Path(sys.argv[1]), timeout_seconds=0.2))
receiver = queue.receiver()
print("open", flush=True)
sys.stdin.readline()
print(threading.active_count(), len(os.listdir("/proc/self/fd")))
for call in (lambda: queue.publish([Message(b"refused", b"3")]), lambda: receiver.receive(1, 0.0)) * 3:
    try:
        call()
    except Unavailable:
        continue
    sys.exit("it was not refused")
print(threading.active_count(), len(os.listdir("/proc/self/fd")))
"""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[LmdbMessages]:
    queue = LmdbMessages(LmdbQueue(path=tmp_path / "queue", timeout_seconds=TIMEOUT_SECONDS))
    yield queue
    queue.close()


def started(path: Path, number: signal.Signals) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(path), str(int(number))]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + seconds_left()
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "it was not stopped"
        time.sleep(0.01)


@pytest.mark.rest
def test_others_are_told_in_time_while_a_writer_is_stopped(queue: LmdbMessages, tmp_path: Path) -> None:
    with started(tmp_path / "queue", signal.SIGSTOP) as writer:
        try:
            wait_until_stopped(writer)
            receiver = queue.receiver()
            for _ in range(3):
                with pytest.raises(Unavailable, match="suspended"):
                    queue.publish(messages(0, 1))
                with pytest.raises(Unavailable, match="suspended"):
                    receiver.receive(1, 0.0)
            assert queue.depth().messages == 1, "who reads waits for nobody"
            writer.send_signal(signal.SIGCONT)
            assert writer.wait() == 0
            queue.publish(messages(0, 1))
            found = receiver.receive(10, 20.0)
            assert [delivery.message.key for delivery in found] == [b"before", b"cut", b"key-0"]
        finally:
            writer.kill()


def test_writers_refused_during_a_suspension_leak_no_thread_and_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REFUSED, str(tmp_path / "queue")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as refused:
        try:
            assert refused.stdout is not None
            assert refused.stdout.readline() == "open\n"
            with started(tmp_path / "queue", signal.SIGSTOP) as writer:
                try:
                    wait_until_stopped(writer)
                    counts, _ = refused.communicate("go on\n")
                finally:
                    writer.kill()
        finally:
            refused.kill()
    assert refused.returncode == 0
    before, after = counts.splitlines()
    assert after == before


def test_a_writer_that_is_killed_leaves_nothing_half_done(queue: LmdbMessages, tmp_path: Path) -> None:
    for _ in range(3):
        with started(tmp_path / "queue", signal.SIGKILL) as writer:
            assert writer.wait() == -signal.SIGKILL
        queue.publish(messages(0, 1))
        receiver = queue.receiver()
        found = receiver.receive(10, 20.0)
        assert [delivery.message.key for delivery in found] == [b"before", b"key-0"]
        assert receiver.acknowledge(found) == 2


def test_a_writer_that_stays_stopped_may_be_killed(queue: LmdbMessages, tmp_path: Path) -> None:
    with started(tmp_path / "queue", signal.SIGSTOP) as writer:
        wait_until_stopped(writer)
        writer.kill()
    queue.publish(messages(0, 1))
    assert queue.depth().messages == 2


def published_until_full(queue: LmdbMessages) -> tuple[int, str]:
    """How many messages of a kilobyte are taken before they are refused, and how."""
    published = 0
    while published < 100_000:
        some = [Message(b"%d" % number, b"b" * 900) for number in range(published, published + 50)]
        try:
            queue.publish(some)
        except Unavailable as error:
            return published, error.message
        published += 50
    raise AssertionError("it was not refused")


def test_a_full_disk_refuses_messages_and_takes_acknowledgements(
    small_disk: Path, request: pytest.FixtureRequest
) -> None:
    queue = LmdbMessages(LmdbQueue(path=small_disk / "queue"))
    request.addfinalizer(queue.close)
    receiver = queue.receiver()
    published, refusal = published_until_full(queue)
    assert "No space left on device" in refusal
    assert published > 5000
    rest = small_disk / "rest"
    with suppress(OSError), rest.open("wb", buffering=0) as file:
        for _ in range(1 << 20):
            file.write(bytes(4096))
    found = receiver.receive(1000, 0.0)
    assert len(found) == 1000
    assert receiver.acknowledge(found[:500]) == 500
    receiver.release(found[500:])
    with pytest.raises(Unavailable):
        queue.publish([Message(b"more", b"b" * 200_000)])
    for _ in range(queue.depth().messages):
        if found := receiver.receive(1000, 0.0):
            assert receiver.acknowledge(found) == len(found)
    assert queue.depth().messages == 0
    queue.publish(messages(0, 1000))  # there is room in the file, though not on the disk
    assert len(receiver.receive(1000, 0.0)) == 1000
