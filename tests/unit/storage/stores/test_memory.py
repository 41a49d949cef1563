"""The store in memory, beside what every store promises: how much it holds."""

from __future__ import annotations

import time

import pytest

from headrace.base.errors import Unavailable
from headrace.storage.settings import MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from headrace.storage.stores.store import Item
from headrace.testing.stores import eventually


def test_a_store_that_is_full_takes_more_when_something_went() -> None:
    store = InMemoryStore(MemoryStore(largest_bytes=2**16))
    store.create("values")
    store.create("others")
    for number in range(30):
        store.put_many("others", [Item(b"%d" % number, bytes(1000))])
    with pytest.raises(Unavailable, match="largest_bytes"):
        store.put_many("values", [Item(b"%d" % number, bytes(1000)) for number in range(60)])
    store.put_many("others", [Item(b"0", bytes(1000))])
    store.drop("others")
    store.put_many("values", [Item(b"%d" % number, bytes(1000)) for number in range(20, 40)])
    store.delete_many("values", [b"%d" % number for number in range(60)])
    assert store._held_bytes == 0


def test_values_over_their_time_give_back_their_room() -> None:
    store = InMemoryStore(MemoryStore())
    store.create("values")
    store.put_many("values", [Item(b"%d" % number, bytes(100)) for number in range(1000)], 0.05)
    held = store._held_bytes

    def is_given_back() -> bool:
        for _ in range(100):  # each gives back a few
            store.put_many("values", [Item(b"stays", b"")])
        return store._held_bytes < held / 10

    eventually(is_given_back)


def test_a_write_looks_at_a_few_values_that_may_be_over_their_time_and_all_are_found() -> None:
    store = InMemoryStore(MemoryStore())
    store.create("values")
    store.put_many("values", [Item(b"lives", b"v"), Item(b"also", b"v")], 3600.0)
    store.put_many("values", [Item(b"%d" % number, b"v") for number in range(20_000)], 0.01)
    store.put_many("values", [Item(b"ever", b"v")])
    over = time.monotonic() + 0.01
    eventually(lambda: time.monotonic() > over)
    held = store._partitions["values"].values
    before = len(held)
    store.put_many("values", [Item(b"ever", b"w")])
    assert before - 2 <= len(held) <= before
    for _ in range(10_001):
        store.put_many("values", [Item(b"ever", b"w")])
    assert held.keys() == {b"lives", b"also", b"ever"}
