"""Outages of a server under a store, the same for every kind: who reads all the while is told in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.errors import Unavailable
from headrace.stores.store import Item, Store
from headrace.testing.store_process import items
from headrace.testing.stores import eventually
from tools.services.service import Service

TIMEOUT_SECONDS = 1.0
# A call ends in its time; the machine may keep a thread from being told for longer.
SLACK_SECONDS = 2.0
ITEMS = items(0, 250)
KEYS = [item.key for item in ITEMS]
VALUES = [item.value for item in ITEMS]


@dataclass
class Reads:
    """What some threads that read on and on have seen.

    Attributes:
        right: How many calls gave all values.
        unavailable: How many ended with Unavailable.
        wrong: What else came of calls.
        longest_seconds: How long the longest call took.
    """

    right: int = 0
    unavailable: int = 0
    wrong: list[object] = field(default_factory=list)
    longest_seconds: float = 0.0

    def read(self, store: Store, partition: str) -> None:
        """Read once."""
        began = time.monotonic()
        try:
            values = store.get_many(partition, KEYS, b"missing")
        except Unavailable:
            self.unavailable += 1
            time.sleep(0.01)
        except Exception as error:  # noqa: BLE001 - whatever comes is told by the test
            self.wrong.append(error)
        else:
            self.right += values == VALUES
            self.wrong += [values] if values != VALUES else []
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)


@contextmanager
def reading(store: Store, partition: str) -> Iterator[Reads]:
    """Threads that read on and on."""
    reads, is_over = Reads(), threading.Event()

    def go() -> None:
        while not is_over.is_set():
            reads.read(store, partition)

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield reads
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def check_outages(store: Store, server: Service, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Stop, kill and freeze a server under reads, and have it go on; the store is the same all the while."""
    eventually(lambda: works(lambda: store.create("outages")))
    eventually(lambda: works(lambda: store.put_many("outages", ITEMS)))
    with reading(store, "outages") as reads:
        _wait(reads, "right")
        server.stop()
        _wait(reads, "unavailable")
        _check_calls(store, timeout_seconds)
        server.start()
        _wait(reads, "right")
        server.freeze()
        _wait(reads, "unavailable")
        _check_calls(store, timeout_seconds)
        server.thaw()
        _wait(reads, "right")
        server.kill()
        _wait(reads, "unavailable")
        server.start()
        _wait(reads, "right")
    assert not reads.wrong
    assert reads.longest_seconds < timeout_seconds + SLACK_SECONDS
    eventually(lambda: works(lambda: store.put_many("outages", [Item(b"after", b"1")])))
    values: list[list[bytes]] = []
    eventually(lambda: works(lambda: values.append(store.get_many("outages", [*KEYS, b"after"]))))
    assert values == [[*VALUES, b"1"]]


def _wait(reads: Reads, what: str) -> None:
    """Wait for some more calls that end so."""
    wanted = getattr(reads, what) + 10
    eventually(lambda: bool(getattr(reads, what) >= wanted or reads.wrong))


def works(call: Callable[[], object]) -> bool:
    """Whether a call ends otherwise than with Unavailable."""
    try:
        call()
    except Unavailable:
        return False
    return True


def _check_calls(store: Store, timeout_seconds: float) -> None:
    """Every call ends in time, and says that there is nobody."""
    calls = (
        lambda: store.put_many("outages", ITEMS),
        lambda: store.delete_many("outages", [b"nothing"]),
        lambda: store.scan("outages"),
        lambda: store.read("outages"),
        lambda: store.swap("outages", b"never", b"1"),
        lambda: store.create("outages_too"),
        lambda: store.drop("outages_too"),
    )
    for number, call in enumerate(calls):
        began = time.monotonic()
        try:
            call()
        except Unavailable:
            assert time.monotonic() - began < timeout_seconds + SLACK_SECONDS, number
        else:
            raise AssertionError(f"call {number} worked without a server")
