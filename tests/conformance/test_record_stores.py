"""What every store of control records promises: nothing is replaced but what was read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from headrace.base.errors import Conflict
from headrace.versions.control_record import (
    FileStore,
    RecordStore,
    Stamp,
    Stored,
    number_key,
    parse_record,
    with_hold,
)
from headrace.versions.pins_and_holds import change


class Bucket:
    """An object that is put only on condition of its ETag, as object stores do it; they know no locks."""

    def __init__(self) -> None:
        self.stored = Stored(None, "")
        self._lock = threading.Lock()

    def put(self, before: Stored, content: bytes) -> Stored:
        with self._lock:
            if before.tag != self.stored.tag:
                raise Conflict("412 Precondition Failed")
            self.stored = Stored(content, str(int(self.stored.tag or 0) + 1))
            return self.stored


class BucketStore:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self) -> Stored:
        return self._bucket.stored

    def swap(self, before: Stored, content: bytes) -> Stored:
        return self._bucket.put(before, content)

    def alone(self) -> AbstractContextManager[object]:
        return nullcontext()


Open = Callable[[], RecordStore]


@pytest.fixture(params=["file", "bucket"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same store, once for each who uses it."""
    bucket = Bucket()
    return lambda: FileStore(tmp_path) if request.param == "file" else BucketStore(bucket)


def test_an_empty_store_holds_nothing(opened: Open) -> None:
    assert opened().read().content is None


def test_what_is_swapped_in_is_read(opened: Open) -> None:
    stored = opened().swap(opened().read(), b"one")
    assert opened().read() == stored
    assert stored.content == b"one"
    assert opened().swap(stored, b"two") == opened().read()
    assert opened().read().content == b"two"


def test_what_has_changed_since_it_was_read_is_not_replaced(opened: Open) -> None:
    nothing = opened().read()
    one = opened().swap(nothing, b"one")
    with pytest.raises(Conflict):
        opened().swap(nothing, b"two")
    opened().swap(one, b"two")
    with pytest.raises(Conflict):
        opened().swap(one, b"three")
    assert opened().read().content == b"two"


def test_a_swap_may_be_made_alone(opened: Open) -> None:
    store = opened()
    with store.alone(), store.alone():
        store.swap(store.read(), b"one")
    assert opened().read().content == b"one"


def test_of_many_threads_that_change_it_none_loses_a_change(opened: Open) -> None:
    def add(name: str) -> None:
        for number in range(8):
            stamp = Stamp("", name)
            change(opened(), lambda record, n=number, s=stamp: with_hold(record, number_key(n), n, name, s))  # type: ignore[misc]

    threads = [threading.Thread(target=add, args=(f"thread {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = parse_record(opened().read().content)
    assert record.revision == 4 * 8
    assert all(len(record.versions[number_key(number)].holds) == 4 for number in range(8))
