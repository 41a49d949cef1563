"""What is built on every store's own calls."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from headrace.storage.opening import open_store
from headrace.storage.settings import LmdbStore, MemoryStore, RedisStore
from headrace.storage.stores.lmdb import InLmdbStore
from headrace.storage.stores.memory import InMemoryStore
from headrace.storage.stores.redis import InRedisStore
from headrace.storage.stores.store import Item, pages


def test_all_pages_come_and_each_says_where_to_go_on() -> None:
    store = InMemoryStore(MemoryStore())
    assert [page.keys for page in pages(store, "none")] == [[]]
    store.create("some")
    keys = {f"{number}".encode() for number in range(5000)}
    store.put_many("some", [Item(key, b"v") for key in keys])
    found = [page.keys for page in pages(store, "some", limit=100)]
    assert len(found) > 10
    assert set().union(*found) == keys
    first = list(islice(pages(store, "some", limit=100), 3))
    rest = [page.keys for page in pages(store, "some", first[-1].cursor, 100)]
    assert [page.keys for page in first] + rest == found


def test_a_store_is_opened_by_its_settings(tmp_path: Path) -> None:
    for settings, kind in (
        (MemoryStore(), InMemoryStore),
        (LmdbStore(path=tmp_path / "store"), InLmdbStore),
        (RedisStore(address="127.0.0.1:1"), InRedisStore),
    ):
        store = open_store(settings)
        store.close()
        assert type(store) is kind
