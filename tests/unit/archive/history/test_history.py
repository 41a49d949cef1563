"""What values were before they were replaced."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.archive.history.history import Past, past_partition
from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.as_of import PastLookup
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.keys import all_stored
from headrace.archive.operations.space_versions import drop_version
from headrace.base.errors import InvalidRequest, NotFound
from headrace.storage.opening import open_queue, open_store
from headrace.storage.settings import MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from headrace.storage.stores.store import START, Item
from tests.unit.archive.filling_parts import DIMENSION, LengthEmbedder, open_parts
from tests.waiting import seconds_left
from tools.services.cassandra_server import Cassandra
from tools.services.redis_server import Redis

KEPT = {"dimension": DIMENSION, "history_seconds": 3600.0, "oov": "zeros"}
TABLES = {
    "users": {
        "columns": {"clicks": "int64", "city": {"dtype": "text", "bytes": 8, "default": "?"}},
        "history_seconds": 60.0,
    }
}
LONG = "x" * 3000


@pytest.fixture(params=["memory", "lmdb", "redis", "cassandra"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Archive]]:
    """Opens an archive on one of the stores."""
    archives: list[Archive] = []

    def open_it(**space: Any) -> Archive:
        store: dict[str, object] = {"kind": request.param}
        own = f"past{time.time_ns()}"
        if request.param == "redis":
            redis: Redis = request.getfixturevalue("redis_server")
            store |= {"address": redis.address, "prefix": own, "timeout_seconds": 60.0}
        elif request.param == "cassandra":
            cassandra: Cassandra = request.getfixturevalue("cassandra_server")
            store |= {"contact_points": [cassandra.address], "keyspace": own, "timeout_seconds": 60.0}
        table = {"store": store, "queue": {"kind": "memory"}, "spaces": {"texts": {**KEPT, **space}}}
        config = archive_config({**table, "tables": TABLES}, "archive.toml", tmp_path)
        archives.append(Archive(config, open_store(config.store), open_queue(config.queue)))
        return archives[-1]

    yield open_it
    for archive in archives:
        archive.close()


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with open_parts(tmp_path, "lmdb", KEPT) as one:
        yield one


def put(archive: Archive, key: str, value: float) -> int:
    """Store a value; returns when it was written, as a lookup says it."""
    archive.put("texts", [key], np.full((1, DIMENSION), value))
    return int(archive.lookup("texts", [key], timeout_seconds=30.0).written[0])


def tell(archive: Archive, key: str, value: float, written: int) -> None:
    """Store a value that was written when somebody says."""
    reader = archive.reader("texts")
    records = reader.version.form.encode(np.full((1, DIMENSION), value, np.float32), written)
    archive.writes.store(reader, [key], records, is_told=True)


def was(archive: Archive, key: str, *times: int) -> list[float]:
    """What a key was at some times."""
    found = archive.as_of("texts", [key] * len(times), np.array(times, np.uint64))
    assert (found.vectors == found.vectors[:, :1]).all()
    numbers: list[float] = found.vectors[:, 0].tolist()
    return numbers


def exactly(archive: Archive, key: str, *written: int) -> PastLookup:
    """What a key was when that had been answered."""
    times = np.array(written, np.uint64)
    return archive.as_of("texts", [key] * len(times), times, written=times)


def entries(archive: Archive) -> int:
    """How many things are kept of the past."""
    found, cursor, deadline = 0, START, time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline
        page = archive.store.scan(past_partition("texts", 1), cursor)
        found, cursor = found + len(page.keys), page.cursor
        if cursor == START:
            return found


def test_lookups_are_replayed_byte_for_byte_while_values_change(opened: Callable[..., Archive]) -> None:
    archive = opened(dtype="int8", oov="zeros")
    rng = np.random.default_rng(0)
    keys = ["a", "b", "never", LONG]
    served = []
    for round_ in range(12):
        some = [keys[round_ % 2], LONG] if round_ % 3 else ["b"]
        archive.put("texts", some, rng.normal(size=(len(some), DIMENSION)))
        lookup = archive.lookup("texts", keys, timeout_seconds=30.0)
        served.append((time.time_ns() // 1_000_000, lookup.vectors.copy(), lookup.written.copy()))
        wait_for_the_next_millisecond()
    assert len({vectors.tobytes() for _, vectors, _ in served}) == 12
    for at, vectors, written in served:
        for exact in (None, written):
            again = archive.as_of("texts", keys, np.full(len(keys), at, np.uint64), written=exact)
            assert again.vectors.tobytes() == vectors.tobytes()
            assert again.written.tolist() == written.tolist()
            assert not again.lost.any()


def test_a_value_that_came_later_is_out_of_vocabulary(archive: Archive) -> None:
    before = time.time_ns() // 1_000_000 - 1
    written = put(archive, "a", 1.0)
    found = archive.as_of("texts", ["a", "a"], np.array([before, written], np.uint64))
    assert found.found.tolist() == [False, True]
    assert found.vectors[:, 0].tolist() == [0.0, 1.0]
    assert not found.lost.any()
    assert found.version == 1


def test_values_replaced_within_a_millisecond_have_distinct_times(archive: Archive) -> None:
    times = [put(archive, "a", float(number)) for number in range(50)]
    assert times == sorted(set(times))
    assert was(archive, "a", *times) == [float(number) for number in range(50)]
    assert exactly(archive, "a", *times).vectors[:, 0].tolist() == [float(number) for number in range(50)]


def test_a_clock_that_goes_back_changes_no_order(archive: Archive) -> None:
    ahead = time.time_ns() // 1_000_000 + 5000
    tell(archive, "a", 1.0, ahead)
    assert put(archive, "a", 2.0) == ahead + 1
    assert was(archive, "a", ahead - 1, ahead, ahead + 1) == [0.0, 1.0, 2.0]


def test_one_call_may_have_a_key_twice(archive: Archive) -> None:
    archive.put("texts", ["a", "b", "a"], np.arange(3.0)[:, None].repeat(DIMENSION, 1) + 1)
    assert archive.lookup("texts", ["a", "b"]).vectors[:, 0].tolist() == [3.0, 2.0]
    assert was(archive, "a", 2**62) == [3.0]


def test_values_that_somebody_tells_late_are_put_in_their_place(archive: Archive) -> None:
    rng, told = random.Random(1), {time: float(place) for place, time in enumerate(range(1000, 1400, 10))}
    now = time.time_ns() // 1_000_000
    order = list(told.items())
    rng.shuffle(order)
    for at, value in order + order[:7]:  # and some twice
        tell(archive, "a", value, now - 10_000 + at)
    start = now - 10_000
    assert archive.lookup("texts", ["a"]).vectors[0, 0] == 39.0  # the latest stays
    asked = list(range(995, 1405))
    expected = [told[min(1390, at - at % 10)] if at >= 1000 else 0.0 for at in asked]
    assert was(archive, "a", *(start + at for at in asked)) == expected


class Counting(InMemoryStore):
    """A store that counts what it is asked for of the past, and how often."""

    reads = items = 0

    def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        if partition.endswith("_past"):
            self.reads, self.items = self.reads + 1, self.items + len(keys)
        return super().get_many(partition, keys, missing)

    def put_many(self, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0) -> None:
        if partition.endswith("_past"):
            self.items += len(items)
        super().put_many(partition, items, ttl_seconds)


@pytest.mark.parametrize("at_once", [1, 50, 3000])
@pytest.mark.parametrize("order", ["descending", "random"])
def test_a_key_s_past_in_any_order_costs_a_few_reads_a_value(
    tmp_path: Path, order: str, at_once: int
) -> None:
    store, count = Counting(MemoryStore()), 3000
    table = {"queue": {"kind": "memory"}, "spaces": {"texts": {**KEPT, "dimension": 1}}}
    config = archive_config(table, "archive.toml", tmp_path)
    start = time.time_ns() // 1_000_000 - 10 * count
    times = (start + 7 * np.arange(count, dtype=np.uint64))[::-1]
    if order == "random":
        times = np.random.default_rng(1).permutation(times)
    with Archive(config, store, open_queue(config.queue)) as archive:
        reader = archive.reader("texts")
        for first in range(0, count, at_once):
            some = times[first : first + at_once]
            records = reader.version.form.encode((some - start)[:, None].astype(np.float32), some)
            archive.writes.store(reader, ["a"] * len(some), records, is_told=True)
        assert store.items < (2.1 if at_once == count else 30) * count  # in one call they are put in order
        store.reads = 0
        found = archive.as_of("texts", ["a"] * count, times)
        assert found.written.tolist() == times.tolist()
        assert store.reads < 100
        before = archive.as_of("texts", ["a"] * (count - 1), np.sort(times)[1:] - np.uint64(1))
        assert before.written.tolist() == np.sort(times)[:-1].tolist()


def test_an_invalidated_key_is_missing_from_then_on(opened: Callable[..., Archive]) -> None:
    archive = opened()
    first = put(archive, "a", 1.0)
    wait_for_the_next_millisecond()
    archive.invalidate("texts", ["a", "none"])
    ended = time.time_ns() // 1_000_000
    assert not archive.lookup("texts", ["a"]).found[0]
    wait_for_the_next_millisecond()
    second = put(archive, "a", 2.0)
    assert was(archive, "a", first - 1, first, ended, second - 1, second) == [0.0, 1.0, 0.0, 0.0, 2.0]
    assert exactly(archive, "a", first).vectors[0, 0] == 1.0


def test_forgetting_a_key_removes_its_history(opened: Callable[..., Archive]) -> None:
    archive = opened()
    times = [put(archive, "a", float(number + 1)) for number in range(40)]
    other = put(archive, "b", 7.0)
    archive.forget("texts", ["a", LONG])
    assert was(archive, "a", *times) == [0.0] * 40
    assert not exactly(archive, "a", *times).found.any()
    assert entries(archive) == 4  # of "b" its head and its entry; of the others that they are forgotten
    assert was(archive, "b", other) == [7.0]
    again = put(archive, "a", 9.0)
    assert was(archive, "a", times[-1], again) == [0.0, 9.0]


def test_forgetting_removes_earlier_history_after_history_is_disabled(tmp_path: Path) -> None:
    with open_parts(tmp_path, "lmdb", KEPT) as archive:
        times = [put(archive, "a", float(number + 1)) for number in range(3)]
    with open_parts(tmp_path, "lmdb", {**KEPT, "history_seconds": 0.0}) as archive:
        assert was(archive, "a", *times) == [1.0, 2.0, 3.0]  # it is there for its time
        put(archive, "a", 4.0)
        archive.forget("texts", ["a", "b"])
        assert entries(archive) == 0
        assert not exactly(archive, "a", *times).found.any()


def test_a_space_without_history_writes_and_reads_nothing_of_it(tmp_path: Path) -> None:
    with open_parts(tmp_path, "lmdb", {**KEPT, "history_seconds": 0.0}) as archive:
        times = [put(archive, "a", float(number)) for number in range(3)]
        archive.invalidate("texts", ["b"])
        archive.forget("texts", ["c"])
        with pytest.raises(NotFound):
            archive.store.put_many(past_partition("texts", 1), [])
        found = archive.as_of("texts", ["a", "a"], np.array([times[0] - 1, 2**60], np.uint64))
        assert found.vectors[:, 0].tolist() == [0.0, 2.0]
        assert found.lost.tolist() == [True, False]  # it may have been there, and replaced


def test_rows_of_a_table_are_what_they_were(opened: Callable[..., Archive]) -> None:
    archive, start = opened(), time.time_ns() // 1_000_000 - 1000
    for step in (3, 1, 2):
        written = np.array([start + 10 * step], np.uint64)
        archive.put_rows("users", ["u"], {"clicks": [step]}, written=written)  # type: ignore[dict-item]
    asked = np.array([start + step for step in (9, 10, 25, 30)], np.uint64)
    values = archive.as_of("users", ["u"] * 4, asked).values()
    assert values["clicks"].tolist() == [0, 1, 2, 3]
    assert values["city"].tolist() == [b"?"] * 4
    assert archive.lookup("users", ["u"], timeout_seconds=30.0).values()["clicks"].tolist() == [3]


def test_an_expired_past_value_counts_as_lost_not_as_oov(archive: Archive) -> None:
    times = [put(archive, "a", float(number + 1)) for number in range(9)]
    reader = archive.reader("texts")
    past, [key] = Past(archive.store, "texts", reader.version, reader.settings), all_stored(["a"])
    one = past._known([key])[key]
    archive.store.delete_many(past_partition("texts", 1), [one.entry(at) for at in times[:5]])
    found = archive.as_of("texts", ["a"] * 9, np.array(times, np.uint64))
    assert found.lost.tolist() == [True] * 5 + [False] * 4
    assert found.vectors[:, 0].tolist() == [0.0] * 5 + [6.0, 7.0, 8.0, 9.0]
    assert exactly(archive, "a", *times).lost.tolist() == [True] * 5 + [False] * 4


def test_a_past_value_ends_with_its_time_to_live(tmp_path: Path) -> None:
    with open_parts(tmp_path, "lmdb", {**KEPT, "ttl_seconds": 0.2}) as archive:
        deadline = time.monotonic() + seconds_left()
        while not (first := put(archive, "a", 1.0)):  # its time was over before it was looked at
            assert time.monotonic() < deadline
        while archive.lookup("texts", ["a"]).found[0]:
            assert time.monotonic() < deadline
            wait_for_the_next_millisecond()
        reader = archive.reader("texts")
        while archive.store.get_many("texts_v1", [b"a"], reader.version.form.missing)[0][0]:
            assert time.monotonic() < deadline
            wait_for_the_next_millisecond()
        while not (second := put(archive, "a", 2.0)):
            assert time.monotonic() < deadline
        assert was(archive, "a", first + 200, first + 201, second - 1, second) == [1.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize("until", ["entries", "value", "head"])
def test_a_writer_that_was_killed_leaves_nothing_wrong(archive: Archive, until: str) -> None:
    first = put(archive, "a", 1.0)
    wait_for_the_next_millisecond()
    reader = archive.reader("texts")
    past, keys = archive.writes.past(reader), all_stored(["a"])
    killed = time.time_ns() // 1_000_000
    records = reader.version.form.encode(np.full((1, DIMENSION), 2.0, np.float32), killed)
    _, heads = past.keep(keys, records, is_told=False)
    if until != "entries":
        archive.writes._put(reader, ["a"], records)
    if until == "head":
        past.point(heads)
    served = 1.0 if until == "entries" else 2.0
    reader.forget_all()
    assert archive.lookup("texts", ["a"]).vectors[0, 0] == served
    assert was(archive, "a", first, killed) == [1.0, served]
    wait_for_the_next_millisecond()
    last = put(archive, "a", 3.0)
    assert was(archive, "a", first - 1, first, killed, last) == [0.0, 1.0, served, 3.0]
    archive.forget("texts", ["a"])
    assert not exactly(archive, "a", first, killed, last).found.any()


def test_writers_in_many_threads_lose_nothing(archive: Archive) -> None:
    def write(number: int) -> None:
        for value in range(20):
            archive.put("texts", ["a"], np.full((1, DIMENSION), float(1 + number * 20 + value)))

    start = time.time_ns() // 1_000_000
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = int(archive.lookup("texts", ["a"]).written[0])
    values = was(archive, "a", *range(start, last + 1))
    assert set(values) - {0.0} == {float(value) for value in range(1, 81)}


def test_of_two_processes_that_replace_the_same_value_neither_is_lost(archive: Archive) -> None:
    first = put(archive, "a", 1.0)
    wait_for_the_next_millisecond()
    reader, keys = archive.reader("texts"), all_stored(["a"])
    written = []
    for value in (2.0, 3.0):  # each has looked before the other one has written
        past = archive.writes.past(reader)
        records = reader.version.form.encode(np.full((1, DIMENSION), value, np.float32), first + int(value))
        known = past._known(keys)
        past._known = lambda _, known=known: known  # type: ignore[method-assign, misc]
        written.append((past, records))
    heads = [past.keep(keys, records, is_told=False)[1] for past, records in written]
    for (past, records), head in zip(written, heads, strict=True):
        archive.writes._put(reader, ["a"], records)
        past.point(head)
    assert exactly(archive, "a", first, first + 2, first + 3).vectors[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert was(archive, "a", first, first + 3) == [1.0, 3.0]
    archive.forget("texts", ["a"])
    assert not exactly(archive, "a", first, first + 2, first + 3).found.any()


def test_nothing_is_kept_of_a_version_that_was_dropped(archive: Archive) -> None:
    archive.add_version("texts", LengthEmbedder())
    reader = archive.reader("texts", 2)
    drop_version(archive, "texts", 2)
    with pytest.raises(NotFound):
        archive.store_vectors(reader, ["a"], np.ones((1, DIMENSION), np.float32))
    with pytest.raises(NotFound):
        archive.store.put_many(past_partition("texts", 2), [])


def test_history_that_begins_later_keeps_what_was_there(tmp_path: Path) -> None:
    with open_parts(tmp_path, "lmdb", {**KEPT, "history_seconds": 0.0}) as archive:
        first = put(archive, "a", 1.0)
    with open_parts(tmp_path, "lmdb", KEPT) as archive:
        wait_for_the_next_millisecond()
        second = put(archive, "a", 2.0)
        assert was(archive, "a", first, second - 1, second) == [1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "times", [np.zeros(2, np.uint64), np.zeros(1, np.float64), np.zeros((1, 1), np.uint64)]
)
def test_times_are_as_many_whole_numbers_as_keys(archive: Archive, times: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InvalidRequest, match="times: expected 1 whole numbers"):
        archive.as_of("texts", ["a"], times)


def wait_for_the_next_millisecond() -> None:
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now:
        pass
