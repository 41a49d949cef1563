"""Server outages under a store: every read ends while the server is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.base.errors import Unavailable
from headrace.storage.stores.store import Item, Store
from headrace.testing.store_process import items
from headrace.testing.stores import eventually
from tests.faults.archive_outages import works
from tests.faults.patience import ended
from tools.services.service import Service

TIMEOUT_SECONDS = 1.0
THREADS = 3
ITEMS = items(0, 250)
KEYS = [item.key for item in ITEMS]
VALUES = [item.value for item in ITEMS]


@dataclass
class Reads:
    """Results of one reader thread.

    Attributes:
        right: Calls that returned all values.
        unavailable: Calls that raised Unavailable.
        wrong: Any other result.
    """

    right: int = 0
    unavailable: int = 0
    wrong: list[object] = field(default_factory=list)

    def read(self, store: Store, partition: str) -> None:
        """Read once."""
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


@contextmanager
def reading(store: Store, partition: str) -> Iterator[list[Reads]]:
    """Run reader threads; yield their results."""
    readers, is_over = [Reads() for _ in range(THREADS)], threading.Event()

    def go(reads: Reads) -> None:
        while not is_over.is_set():
            reads.read(store, partition)

    threads = [threading.Thread(target=go, args=(reads,)) for reads in readers]
    for thread in threads:
        thread.start()
    try:
        yield readers
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def check_outages(store: Store, server: Service, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Stop, freeze and kill the server during reads, and bring it back; the store object stays the same."""
    eventually(lambda: works(lambda: store.create("outages")))
    eventually(lambda: works(lambda: store.put_many("outages", ITEMS)))
    with reading(store, "outages") as readers:
        _wait(readers, "right")
        server.stop()
        _wait(readers, "unavailable")
        _check_calls(store, timeout_seconds)
        server.start()
        _wait(readers, "right")
        server.freeze()
        _wait(readers, "unavailable")
        _check_calls(store, timeout_seconds)
        server.thaw()
        _wait(readers, "right")
        server.kill()
        _wait(readers, "unavailable")
        server.start()
        _wait(readers, "right")
    assert not [wrong for reads in readers for wrong in reads.wrong]
    eventually(lambda: works(lambda: store.put_many("outages", [Item(b"after", b"1")])))
    values: list[list[bytes]] = []
    eventually(lambda: works(lambda: values.append(store.get_many("outages", [*KEYS, b"after"]))))
    assert values == [[*VALUES, b"1"]]


def _wait(readers: list[Reads], what: str) -> None:
    """Wait until each thread has ended four more calls this way."""
    wanted = [(reads, getattr(reads, what) + 4) for reads in readers]
    eventually(lambda: all(getattr(reads, what) >= least or reads.wrong for reads, least in wanted))


def _check_calls(store: Store, timeout_seconds: float) -> None:
    """Check that every call ends by itself with Unavailable."""
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
        assert ended(call, timeout_seconds), f"call {number} worked without a server"
