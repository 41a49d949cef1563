"""How long what values were is kept, and what is told of it where some of it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.archive.history.history import Past, past_partition
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.keys import all_stored
from headrace.base.errors import Unavailable
from headrace.storage.opening import open_queue
from headrace.storage.settings import MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from headrace.storage.stores.store import START, Item

PAST = past_partition("texts", 1)
KEY = all_stored(["a"])


class Watched(InMemoryStore):
    """A store that notes how long the past is kept, and that may stop answering when it is removed."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.kept_seconds: set[float] = set()
        self.removals = 10**9

    def put_many(self, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0) -> None:
        if partition == PAST:
            self.kept_seconds.add(ttl_seconds)
        super().put_many(partition, items, ttl_seconds)

    def delete_many(self, partition: str, keys: Sequence[bytes]) -> None:
        if partition == PAST:
            self.removals -= 1
            if self.removals < 0:
                raise Unavailable("the store is stopped")
        super().delete_many(partition, keys)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Archive]]:
    archives: list[Archive] = []

    def open_it(store: InMemoryStore | None = None, **space: Any) -> Archive:
        space = {"dimension": 1, "history_seconds": 3600.0, "oov": "zeros", **space}
        table = {"queue": {"kind": "memory"}, "spaces": {"texts": space}}
        config = archive_config(table, "archive.toml", tmp_path)
        archives.append(Archive(config, store or Watched(), open_queue(config.queue)))
        return archives[-1]

    yield open_it
    for archive in archives:
        archive.close()


def put(archive: Archive, value: float) -> int:
    archive.put("texts", ["a"], np.full((1, 1), value))
    return int(archive.lookup("texts", ["a"]).written[0])


def past_of(archive: Archive, **settings: Any) -> Past:
    """The past of the space, as one with other settings reads it."""
    reader = archive.reader("texts")
    return Past(archive.store, "texts", reader.version, msgspec.structs.replace(reader.settings, **settings))


def remove_entry(archive: Archive, written: int) -> None:
    """As if it were over: it was written so long ago."""
    one = past_of(archive)._known(KEY)[KEY[0]]
    archive.store.delete_many(PAST, [one.entry(written)])


def was(archive: Archive, at: int) -> tuple[float, bool]:
    """What the key was, and whether that is lost."""
    found = archive.as_of("texts", ["a"], np.array([at], np.uint64))
    return float(found.vectors[0, 0]), bool(found.lost[0])


def test_a_value_with_a_time_to_live_is_kept_for_that_and_for_the_history(
    opened: Callable[..., Archive],
) -> None:
    store = Watched()
    archive = opened(store, ttl_seconds=100.0)
    put(archive, 1.0)
    assert store.kept_seconds == {3700.0}  # a row may have been served with it until it was over


def test_a_served_value_is_found_after_its_entry_expired(
    opened: Callable[..., Archive],
) -> None:
    archive = opened()
    first = put(archive, 1.0)
    past = past_of(archive)
    past.point(past.end(KEY))  # and whoever invalidates it is killed before it is removed
    ended = past._known(KEY)[KEY[0]].newest.time
    remove_entry(archive, first)
    assert was(archive, first) == (1.0, False)
    assert was(archive, ended - 1) == (1.0, False)
    assert was(archive, ended) == (0.0, False)


def test_an_invalidated_value_is_kept_though_its_entry_is_missing(opened: Callable[..., Archive]) -> None:
    archive = opened()
    first = put(archive, 1.0)
    remove_entry(archive, first)
    archive.invalidate("texts", ["a"])
    assert was(archive, first) == (1.0, False)


def test_a_replaced_value_is_kept_though_its_entry_is_missing(opened: Callable[..., Archive]) -> None:
    archive = opened()
    first = put(archive, 1.0)
    remove_entry(archive, first)
    while time.time_ns() // 1_000_000 <= first:
        pass
    second = put(archive, 2.0)
    assert was(archive, first) == (1.0, False)
    assert was(archive, second) == (2.0, False)


@pytest.mark.parametrize(
    ("embedder", "ttl_seconds", "is_lost"),
    [("", 0.0, True), ("lengths", 0.0, False), ("", 10.0, True), ("lengths", 10.0, True)],
)
def test_only_embedded_vectors_without_expiry_are_certainly_missing_before_the_history(
    opened: Callable[..., Archive], embedder: str, ttl_seconds: float, is_lost: bool
) -> None:
    archive = opened()
    put(archive, 1.0)
    past = past_of(archive, embedder=embedder, ttl_seconds=ttl_seconds)
    assert past.at(KEY, np.array([1000], np.uint64)).lost.tolist() == [is_lost]


def test_a_key_that_was_never_there_is_not_lost(opened: Callable[..., Archive]) -> None:
    archive = opened()
    found = archive.as_of("texts", ["never"], np.array([1000], np.uint64))
    assert found.lost.tolist() == [False]


def test_a_forget_that_was_interrupted_is_completed_by_the_next_one(
    opened: Callable[..., Archive],
) -> None:
    store, count = Watched(), 2500
    archive = opened(store)
    reader, start = archive.reader("texts"), time.time_ns() // 1_000_000 - 10 * count
    times = (start + np.arange(count)).astype(np.uint64)
    records = reader.version.form.encode(np.ones((count, 1), np.float32), times)
    archive.writes.store(reader, ["a"] * count, records, is_told=True)
    store.removals = 1
    with pytest.raises(Unavailable):
        archive.forget("texts", ["a"])
    assert was(archive, int(times[-2])) == (0.0, False)  # none of it is told from the beginning on
    store.removals = 10**9
    archive.forget("texts", ["a"])
    assert len(store.scan(PAST, START, 10**6).keys) == 1  # that it was forgotten
