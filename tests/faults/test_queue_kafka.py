"""Kafka is stopped, frozen, killed and started again under those who use it; members come and go."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, Unavailable
from headrace.storage.queues.kafka import KafkaMessages
from headrace.storage.queues.queue import Message, Queue
from headrace.storage.settings import KafkaQueue
from headrace.testing.opener import Opener
from headrace.testing.queue_process import (
    LONGEST_WAIT_SECONDS,
    QueueProcess,
    acknowledge,
    messages,
    received,
    running,
    told,
    working,
)
from tests.faults.patience import ended
from tests.services import Start
from tools.services.kafka_server import Kafka

pytestmark = pytest.mark.rest

TIMEOUT_SECONDS = 2.0
BATCH = 20
UNKNOWN = r"certificate verify failed.*queue\.ca_file"
REFUSED = r"(?i)authentication failed.*queue\.password_file"


def settings_of(server: Kafka, **more: object) -> KafkaQueue:
    name = f"queue-{secrets.token_hex(8)}"
    table = {
        "servers": (server.address,),
        "topic": name,
        "group": name,
        "partitions": 4,
        "visibility_seconds": 6.0,
        "timeout_seconds": TIMEOUT_SECONDS,
        **more,
    }
    return KafkaQueue(**table)  # type: ignore[arg-type]


@pytest.fixture
def server(own_kafka: Start[Kafka]) -> Kafka:
    return own_kafka()


def ends_in_time(call: Callable[[], object]) -> BaseException | None:
    """Return the ``Unavailable`` a call raises while no broker answers, or None; the call may not hang."""
    return ended(call, TIMEOUT_SECONDS)


def eventually(call: Callable[[], object]) -> None:
    """Try again until it is done, as callers do."""
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while True:
        try:
            call()
        except Unavailable:
            assert time.monotonic() < deadline, "it does not come back"
        else:
            return


def stop(server: Kafka) -> Callable[[], object]:
    server.stop()
    return server.start


def freeze(server: Kafka) -> Callable[[], object]:
    server.freeze()
    return server.thaw


def kill(server: Kafka) -> Callable[[], object]:
    server.kill()
    return server.start


@pytest.mark.parametrize("go_away", [stop, freeze])
def test_calls_end_in_time_while_kafka_is_away_and_work_when_it_is_back(
    server: Kafka, go_away: Callable[[Kafka], Callable[[], object]]
) -> None:
    # The receiver says nothing while Kafka goes, and what it holds is to stay its own.
    queue = KafkaMessages(settings_of(server, visibility_seconds=60.0))
    receiver = queue.receiver()
    eventually(lambda: queue.publish(messages(0, 10)))
    found = []
    eventually(lambda: found.extend(received([receiver], 10)))
    come_back = go_away(server)
    try:
        time.sleep(1.1)  # what is counted is up to a second old
        assert ends_in_time(lambda: queue.publish(messages(10, 10)))
        assert ends_in_time(lambda: acknowledge(found[:3]))
        assert ends_in_time(queue.depth)
        ends_in_time(lambda: receiver.receive(10, 0.5))
        ends_in_time(receiver.keep)
    finally:
        come_back()
    eventually(lambda: queue.publish(messages(20, 10)))
    got: set[Message] = set()

    def receive() -> None:
        found = receiver.receive(100, 0.5)
        got.update(delivery.message for delivery in found)
        receiver.acknowledge(found)

    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while not {*messages(20, 10)} <= got:
        assert time.monotonic() < deadline, got
        eventually(receive)
    assert got <= {*messages(0, 30)}
    assert ends_in_time(queue.close) is None


PUBLISHER = """
import json, os, sys
from headrace.base.errors import Unavailable
from headrace.storage.queues.kafka import KafkaMessages
from headrace.storage.settings import KafkaQueue
from headrace.testing.queue_process import messages

def publish(number):
    try:
        queue.publish(messages(number, 10))
    except Unavailable:
        return False
    return True

given = json.loads(sys.argv[1])
queue = KafkaMessages(KafkaQueue(**given | {"servers": tuple(given["servers"])}))
assert any(publish(0) for _ in range(20))
print("published", flush=True)
sys.stdin.readline()
for number in range(5):
    assert not publish(number)
    print(len(os.listdir("/proc/self/task")), flush=True)
os._exit(0)  # nothing waits for the broker
"""


def test_calls_in_vain_leave_no_threads(server: Kafka) -> None:
    """The first call makes a client, with threads of its own; the others use it.

    librdkafka may start one of its threads later than in the first call.
    """
    settings = settings_of(server)
    names = ("servers", "topic", "group", "timeout_seconds")
    given = {name: getattr(settings, name) for name in names}
    command = [sys.executable, "-c", PUBLISHER, json.dumps(given)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "published\n"
        server.stop()
        said, _ = process.communicate("go on\n")
    assert process.returncode == 0
    first, *others = map(int, said.split())
    assert max(others) < first + len(others)  # a client for each call would add a thread or more each time


@pytest.mark.exact
@pytest.mark.parametrize("go_away", [stop, freeze, kill])
def test_nothing_accepted_is_lost_when_kafka_goes_under_load(
    server: Kafka, go_away: Callable[[Kafka], Callable[[], object]]
) -> None:
    queue = KafkaMessages(settings_of(server))
    accepted: list[Message] = []
    done: Counter[Message] = Counter()
    is_over, has_ended = threading.Event(), threading.Event()

    def publish() -> None:
        first = 0
        while not is_over.is_set():
            try:
                queue.publish(messages(first, 50))
                accepted.extend(messages(first, 50))
            except Unavailable:
                pass  # some of them may be delivered
            first += 50
            time.sleep(0.01)
        has_ended.set()

    def receive() -> None:
        receiver = queue.receiver()
        deadline = time.monotonic() + 3 * LONGEST_WAIT_SECONDS
        while not (has_ended.is_set() and set(accepted) <= set(done)) and time.monotonic() < deadline:
            try:
                found = receiver.receive(BATCH, 0.2)
                done.update(delivery.message for delivery in found)
                receiver.acknowledge(found)
            except Unavailable:
                continue
        receiver.close()

    with running(publish, receive, receive):
        try:
            wait_for(lambda: len(done) > 500)
            come_back = go_away(server)
            time.sleep(TIMEOUT_SECONDS + 1)  # it is away for longer than a call may last
            come_back()
            before = len(accepted)
            wait_for(lambda: len(accepted) > before + 200)
        finally:
            is_over.set()
    assert set(accepted) <= set(done)
    queue.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.05)


def test_a_queue_may_be_opened_while_kafka_is_away(server: Kafka) -> None:
    server.stop()
    queue = KafkaMessages(settings_of(server))
    assert ends_in_time(lambda: queue.publish(messages(0, 1)))
    assert ends_in_time(lambda: queue.receiver().receive(1, 0.1))
    server.start()
    eventually(lambda: queue.publish(messages(0, 1)))
    receiver = queue.receiver()
    assert set(told(received([receiver], 1))) == {*messages(0, 1)}, "what was refused may be there, too"
    queue.close()


def test_members_that_come_and_go_repeat_at_most_a_batch_each(kafka_server: Kafka) -> None:
    table = {
        "kind": "kafka",
        "servers": [kafka_server.address],
        "topic": (name := f"queue-{secrets.token_hex(8)}"),
        "group": name,
        "partitions": 4,
        "visibility_seconds": 6.0,
        "timeout_seconds": 30.0,  # a broker that has just begun takes its time
    }
    opener = Opener("headrace.testing.queue_process:open_from_settings", {"table": table})
    queue: Queue = opener.open()
    count = 3000
    queue.publish(messages(0, count))
    with QueueProcess(opener) as one, QueueProcess(opener) as two, QueueProcess(opener) as killed:
        with working(one, BATCH) as first:
            deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            while not killed.receive(BATCH, 1.0):  # it takes partitions from the first, and ends with a batch
                assert time.monotonic() < deadline, "it is given no partition"
                queue.publish(messages(count, 200))  # the first may have had all before
                count += 200
            with working(two, BATCH) as second:
                killed.kill()
                queue.publish(messages(count, 200))
                count += 200
                wait_for(lambda: {*first, *second} >= {*messages(0, count)})
                wait_for(lambda: queue.depth().messages == 0)
        done = Counter([*first, *second])
    assert set(done) == set(messages(0, count))
    repeated = sum(times - 1 for times in done.values())
    assert repeated <= 2 * BATCH, f"{repeated} were repeated"
    queue.close()


@pytest.mark.parametrize(
    ("tls", "mechanisms"),
    [(True, ["", "PLAIN"]), (True, []), (False, ["", "SCRAM-SHA-256"])],  # "": as the settings have it
)
def test_tls_and_passwords(own_kafka: Start[Kafka], tmp_path: Path, tls: bool, mechanisms: list[str]) -> None:
    server = own_kafka(tls=tls, password=bool(mechanisms))
    encrypted: dict[str, object] = {"tls": True, "ca_file": Path(server.ca_file or "")} if tls else {}
    if not mechanisms:
        comes_in(server, encrypted)
        is_refused(server, {"tls": True}, UNKNOWN)  # the system's certificates do not know it
        return
    (tmp_path / "password").write_text(f"{server.password}\n")
    (tmp_path / "wrong").write_text("another")
    for mechanism in mechanisms:
        login = {"user": server.user, **({"mechanism": mechanism} if mechanism else {})}
        comes_in(server, {**encrypted, **login, "password_file": tmp_path / "password"})
        wrong = {**encrypted, **login, "password_file": tmp_path / "wrong"}
        is_refused(server, wrong, REFUSED)


def comes_in(server: Kafka, how: dict[str, object]) -> None:
    patience = {"timeout_seconds": 30.0, "visibility_seconds": 60.0}
    queue = KafkaMessages(settings_of(server, **how, **patience))
    queue.publish(messages(0, 5))
    assert acknowledge(received([queue.receiver()], 5)) == 5
    assert queue.depth().messages in {0, 5}
    queue.close()


def is_refused(server: Kafka, how: dict[str, object], why: str) -> None:
    """It is told why: by who makes the topic, by who counts what is there, and by who receives from it."""
    how = {**how, "timeout_seconds": 1.0}
    made, found = (KafkaMessages(settings_of(server, **how, create=creates)) for creates in (True, False))
    receiver = found.receiver()
    says_why(lambda: made.publish(messages(0, 1)), why)
    says_why(lambda: found.publish(messages(0, 1)), why)
    says_why(lambda: receiver.receive(1, 0.5), why)
    made.close()
    found.close()


def says_why(call: Callable[[], object], why: str) -> None:
    """Try until the broker has answered: it may take longer than a call."""
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while not re.search(why, str(error := ends_in_time(call))):
        assert time.monotonic() < deadline, error


def test_a_password_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"queue\.password_file.*No such file"):
        KafkaMessages(KafkaQueue(user="a", password_file=tmp_path / "missing"))
