"""The test suite for every Store, as a pytest plug-in.

In a test file, for a store of your own::

    from headrace.testing.opener import Opener
    from headrace.testing.stores import StoreSuite

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def opener(self, tmp_path):
            return Opener("my_package.stores:open_mine", {"path": str(tmp_path)})

and, for detailed assertion messages, ``pytest_plugins = ["headrace.testing.stores"]`` in ``conftest.py``.
Each test uses partitions and records of its own, so that all may run against one server.
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import msgspec
import pytest

from headrace.base.errors import InvalidRequest, NotFound, TooLarge
from headrace.config.toml_reader import convert
from headrace.storage.opening import open_store
from headrace.storage.settings import AnyStore
from headrace.storage.stores.store import (
    LARGEST_VALUE_BYTES,
    LONGEST_KEY_BYTES,
    LONGEST_NAME,
    LONGEST_PARTITION,
    START,
    Item,
    Store,
)
from headrace.testing.opener import Opener
from headrace.testing.store_process import add, items, there

LONGEST_WAIT_SECONDS = 60.0


class _Settings(msgspec.Struct):
    store: AnyStore


def open_from_settings(table: dict[str, object]) -> Store:
    """Open one of headrace's own stores.

    Args:
        table: The ``[store]`` table of an ``archive.toml``.
    """
    return open_store(convert({"store": table}, _Settings, "settings").store)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: It did not hold in time.
    """
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.02)


def scanned(store: Store, partition: str, limit: int = 1000) -> list[bytes]:
    """Return all keys of a partition, read page by page."""
    keys: list[bytes] = []
    cursor = START
    for _ in range(100_000):
        page = store.scan(partition, cursor, limit)
        keys += page.keys
        cursor = page.cursor
        if cursor == START:
            return keys
    raise AssertionError("the scan does not end")


@contextmanager
def other_process(opener: Opener) -> Iterator[Callable[[str], str]]:
    """Start a process that uses the store; yield a function that sends a line and returns the answer."""
    command = [sys.executable, "-m", "headrace.testing.store_process", opener.to_json()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if process.stdin is None or process.stdout is None:
        raise OSError("the other process has no pipes")
    said, heard = process.stdin, process.stdout

    def ask(line: str) -> str:
        if line:
            said.write(line + "\n")
            said.flush()
        return heard.readline().rstrip("\n")

    try:
        assert ask("") == "ready"
        ask.pid = process.pid  # type: ignore[attr-defined]
        yield ask
    finally:
        process.kill()
        process.communicate()


class StoreSuite:
    """Tests of the contract of Store; a subclass names the store by a fixture ``opener``.

    Attributes:
        is_shared: Whether two stores opened alike share their content, also between processes.
    """

    is_shared: ClassVar[bool] = True

    @pytest.fixture
    def opener(self) -> Opener:
        """Return the opener of the store."""
        raise NotImplementedError("a subclass must define the fixture opener")

    @pytest.fixture
    def store(self, opener: Opener) -> Iterator[Store]:
        """Yield the open store."""
        store: Store = opener.open()
        yield store
        store.close()

    @pytest.fixture
    def partition(self, store: Store) -> Iterator[str]:
        """Yield a partition of the test's own."""
        name = f"suite_{secrets.token_hex(8)}"
        store.create(name)
        yield name
        store.drop(name)

    @pytest.fixture
    def record(self) -> str:
        """Return the name of a record of the test's own."""
        return f"suite {secrets.token_hex(8)}"

    # Values

    def test_what_was_never_written_is_missing(self, store: Store, partition: str) -> None:
        assert store.get_many(partition, [b"a", b"b"]) == [b"", b""]
        assert store.get_many(partition, [b"a"], b"nothing") == [b"nothing"]
        assert store.get_many(partition, []) == []

    def test_values_come_in_the_order_of_the_keys(self, store: Store, partition: str) -> None:
        store.put_many(partition, [Item(b"b", b"2"), Item(b"a", b"1"), Item(b"c", b"")])
        assert store.get_many(partition, [b"c", b"x", b"a", b"b", b"a"], b"-") == [
            b"",
            b"-",
            b"1",
            b"2",
            b"1",
        ]

    def test_nothing_is_written_by_nothing(self, store: Store, partition: str) -> None:
        store.put_many(partition, [])
        store.delete_many(partition, [])
        assert scanned(store, partition) == []

    def test_what_is_there_is_replaced(self, store: Store, partition: str) -> None:
        store.put_many(partition, [Item(b"a", b"one"), Item(b"b", b"two")])
        store.put_many(partition, [Item(b"a", b"three")])
        store.put_many(partition, [Item(b"a", b"three")])
        assert store.get_many(partition, [b"a", b"b"]) == [b"three", b"two"]
        assert sorted(scanned(store, partition)) == [b"a", b"b"]

    def test_of_several_values_of_one_key_the_last_one_counts(self, store: Store, partition: str) -> None:
        store.put_many(partition, [Item(b"a", b"%d" % number) for number in range(300)])
        assert store.get_many(partition, [b"a"]) == [b"299"]

    def test_keys_and_values_are_any_bytes(self, store: Store, partition: str) -> None:
        keys = [bytes([first, *rest]) for first in range(256) for rest in ((), (0,), (255,))]
        keys += [b"../../etc/passwd", b"a'b\"; DROP TABLE x", b"\r\n", "ключ".encode(), b"**", b"[a-z]?"]
        store.put_many(partition, [Item(key, key + bytes(range(256))) for key in keys])
        assert store.get_many(partition, keys) == [key + bytes(range(256)) for key in keys]
        assert sorted(scanned(store, partition)) == sorted(keys)

    def test_the_longest_key_and_the_largest_value(self, store: Store, partition: str) -> None:
        keys = [b"\xff" * LONGEST_KEY_BYTES, b"\xff" * (LONGEST_KEY_BYTES - 1), b"\0" * LONGEST_KEY_BYTES]
        values = [bytes([number]) * LARGEST_VALUE_BYTES for number in range(3)]
        store.put_many(partition, [Item(*pair) for pair in zip(keys, values, strict=True)])
        assert store.get_many(partition, keys) == values
        assert sorted(scanned(store, partition)) == sorted(keys)

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            (Item(b"", b"1"), InvalidRequest),
            (Item(b"k" * (LONGEST_KEY_BYTES + 1), b"1"), TooLarge),
            (Item(b"k" * 100_000, b"1"), TooLarge),
            (Item(b"k", b"1" * (LARGEST_VALUE_BYTES + 1)), TooLarge),
        ],
        ids=["empty key", "long key", "very long key", "large value"],
    )
    def test_an_item_that_cannot_be_is_refused_with_all(
        self, store: Store, partition: str, wrong: Item, error: type[InvalidRequest]
    ) -> None:
        with pytest.raises(error):
            store.put_many(partition, [Item(b"before", b"1"), wrong])
        assert scanned(store, partition) == []

    @pytest.mark.parametrize("ttl_seconds", [-1.0, float("nan"), float("inf")])
    def test_a_time_that_cannot_be_is_refused(self, store: Store, partition: str, ttl_seconds: float) -> None:
        with pytest.raises(InvalidRequest):
            store.put_many(partition, [Item(b"a", b"1")], ttl_seconds)
        assert scanned(store, partition) == []

    def test_keys_that_cannot_be_are_not_there(self, store: Store, partition: str) -> None:
        store.put_many(partition, [Item(b"a", b"1")])
        keys = [b"", b"a", b"k" * (LONGEST_KEY_BYTES + 1), b"k" * 100_000, b"a"]
        assert store.get_many(partition, keys, b"-") == [b"-", b"1", b"-", b"-", b"1"]
        store.delete_many(partition, [b"", b"k" * 100_000])
        assert store.get_many(partition, [b"a"]) == [b"1"]

    def test_thousands_of_keys_at_once(self, store: Store, partition: str) -> None:
        many = items(0, 5000)
        store.put_many(partition, many)
        assert there(store, partition, 0, 5000) == 5000
        assert there(store, partition, 4000, 2000) == 1000
        store.delete_many(partition, [item.key for item in many[:2500]])
        assert there(store, partition, 0, 5000) == 2500

    def test_what_is_deleted_is_missing(self, store: Store, partition: str) -> None:
        store.put_many(partition, [Item(b"a", b"1"), Item(b"b", b"2")])
        store.delete_many(partition, [b"a", b"x", b"a"])
        assert store.get_many(partition, [b"a", b"b"]) == [b"", b"2"]
        store.put_many(partition, [Item(b"a", b"3")])
        assert store.get_many(partition, [b"a"]) == [b"3"]

    # Time to live

    def test_a_value_is_missing_when_its_time_is_over(self, store: Store, partition: str) -> None:
        store.put_many(partition, [Item(b"stays", b"1")])
        store.put_many(partition, [Item(b"day", b"2")], 86_400.0)
        store.put_many(partition, [Item(b"ends", b"3")], 1.0)
        store.put_many(partition, [Item(b"both", b"4")], 1.0)
        store.put_many(partition, [Item(b"both", b"5")])
        eventually(lambda: store.get_many(partition, [b"ends"], b"-") == [b"-"])
        keys = [b"stays", b"day", b"ends", b"both"]
        assert store.get_many(partition, keys, b"-") == [b"1", b"2", b"-", b"5"]
        assert sorted(scanned(store, partition)) == [b"both", b"day", b"stays"]

    def test_a_value_that_stayed_may_end(self, store: Store, partition: str) -> None:
        store.put_many(partition, [Item(b"a", b"1")])
        begun = time.monotonic()
        store.put_many(partition, [Item(b"a", b"2")], 2.0)
        found = store.get_many(partition, [b"a"])
        assert found == [b"2"] or (found == [b""] and time.monotonic() - begun > 1.0), "it expired too early"
        eventually(lambda: store.get_many(partition, [b"a"]) == [b""])
        assert scanned(store, partition) == []
        store.put_many(partition, [Item(b"a", b"3")], 100.0)
        assert store.get_many(partition, [b"a"]) == [b"3"]

    def test_a_value_may_live_for_any_time(self, store: Store, partition: str) -> None:
        for number, ttl_seconds in enumerate((0.001, 59.5, 100 * 366 * 86_400.0, 1e15)):
            store.put_many(partition, [Item(b"%d" % number, b"1")], ttl_seconds)
        assert store.get_many(partition, [b"1", b"2", b"3"]) == [b"1"] * 3

    def test_values_whose_time_is_over_may_be_many(self, store: Store, partition: str) -> None:
        store.put_many(partition, items(0, 2000), 1.0)
        store.put_many(partition, items(2000, 1000), 1000.0)
        eventually(lambda: there(store, partition, 0, 2000) == 0)
        for first in range(3000, 4000, 100):
            store.put_many(partition, items(first, 100), 1000.0)
        assert there(store, partition, 2000, 2000) == 2000
        assert len(set(scanned(store, partition))) == 2000

    # Partitions

    def test_partitions_hold_their_own(self, store: Store, partition: str) -> None:
        other = f"{partition}_"
        store.create(other)
        store.create(other)
        store.put_many(partition, [Item(b"a", b"1")])
        store.put_many(other, [Item(b"a", b"2"), Item(b"b", b"3")])
        assert store.get_many(partition, [b"a", b"b"]) == [b"1", b""]
        store.create(other)
        assert store.get_many(other, [b"a", b"b"]) == [b"2", b"3"]
        store.drop(other)
        assert store.get_many(partition, [b"a"]) == [b"1"]
        assert scanned(store, partition) == [b"a"]

    def test_a_partition_that_was_dropped_is_not_there(self, store: Store, partition: str) -> None:
        store.put_many(partition, items(0, 3000))
        store.put_many(partition, items(3000, 100), 1000.0)
        store.drop(partition)
        store.drop(partition)
        assert there(store, partition, 0, 3100) == 0
        assert store.scan(partition).keys == []
        with pytest.raises(NotFound):
            store.put_many(partition, items(0, 1))
        store.create(partition)
        assert there(store, partition, 0, 3100) == 0
        store.put_many(partition, items(0, 1))
        assert there(store, partition, 0, 3100) == 1
        assert scanned(store, partition) == [items(0, 1)[0].key]

    def test_a_partition_that_was_never_made_holds_nothing(self, store: Store) -> None:
        assert store.get_many("suite_never_made", [b"a"], b"-") == [b"-"]
        assert store.scan("suite_never_made").cursor == START
        store.delete_many("suite_never_made", [b"a"])
        store.drop("suite_never_made")
        with pytest.raises(NotFound):
            store.put_many("suite_never_made", [Item(b"a", b"1")])

    def test_partitions_names_have_an_end(self, store: Store) -> None:
        longest = ("suite_" + secrets.token_hex(32))[:LONGEST_PARTITION]
        store.create(longest)
        store.put_many(longest, items(0, 1))
        assert there(store, longest, 0, 1) == 1
        store.drop(longest)
        for wrong in ("", "A", "a-b", "a.b", 'a"b', "a b", "é", "a\0", "a\n", "a" * (LONGEST_PARTITION + 1)):
            with pytest.raises(InvalidRequest):
                store.create(wrong)

    # Scans

    @pytest.mark.parametrize("limit", [1, 7, 1000])
    def test_a_scan_gives_every_key(self, store: Store, partition: str, limit: int) -> None:
        store.put_many(partition, items(0, 60))
        store.put_many(partition, items(60, 40), 1000.0)
        assert sorted(set(scanned(store, partition, limit))) == sorted(item.key for item in items(0, 100))

    def test_a_scan_gives_what_is_there_all_the_while(self, store: Store, partition: str) -> None:
        store.put_many(partition, items(0, 500))
        keys: set[bytes] = set()
        cursor = START
        for number in itertools.count(500, 10):
            page = store.scan(partition, cursor, 20)
            keys.update(page.keys)
            cursor = page.cursor
            store.put_many(partition, items(number, 10) if number < 1000 else [])
            store.delete_many(partition, [b"key-%d" % ((number // 10) % 100)])
            if cursor == START:
                break
        assert {item.key for item in items(100, 400)} <= keys
        assert keys <= {item.key for item in items(0, 1000)}

    def test_a_cursor_works_for_whoever_has_it(self, opener: Opener, store: Store, partition: str) -> None:
        if not self.is_shared:
            pytest.skip("store objects do not share their content")
        store.put_many(partition, items(0, 100))
        page = store.scan(partition, START, 30)
        other: Store = opener.open()
        keys = page.keys
        while page.cursor != START:
            page = other.scan(partition, page.cursor, 30)
            keys += page.keys
        other.close()
        assert set(keys) == {item.key for item in items(0, 100)}

    @pytest.mark.parametrize("cursor", [b"nonsense", b"\xff" * 600, b"\0"])
    def test_a_cursor_of_nobody_is_refused(self, store: Store, partition: str, cursor: bytes) -> None:
        store.put_many(partition, items(0, 1))
        with pytest.raises(InvalidRequest):
            store.scan(partition, cursor)

    # Records

    def test_a_record_changes_if_it_is_what_is_expected(self, store: Store, record: str) -> None:
        assert store.read(record) is None
        assert not store.swap(record, b"x", b"1")
        assert store.read(record) is None
        assert store.swap(record, None, b"1")
        assert not store.swap(record, None, b"2")
        assert store.read(record) == b"1"
        assert not store.swap(record, b"2", b"3")
        assert store.swap(record, b"1", b"")
        assert store.read(record) == b""
        assert not store.swap(record, None, b"2")
        assert store.swap(record, b"", bytes(range(256)))
        assert store.read(record) == bytes(range(256))

    def test_records_names_have_an_end(self, store: Store) -> None:
        longest = ("suite " + secrets.token_hex(LONGEST_NAME))[:LONGEST_NAME]
        assert store.swap(longest, None, b"1")
        assert store.read(longest) == b"1"
        for wrong in ("", "é", "a\0", "a\n", "a" * (LONGEST_NAME + 1)):
            with pytest.raises(InvalidRequest):
                store.read(wrong)
            with pytest.raises(InvalidRequest):
                store.swap(wrong, None, b"1")

    def test_a_record_may_be_large(self, store: Store, record: str) -> None:
        assert store.swap(record, None, b"1" * LARGEST_VALUE_BYTES)
        assert store.swap(record, b"1" * LARGEST_VALUE_BYTES, b"2")
        with pytest.raises(TooLarge):
            store.swap(record, b"2", b"1" * (LARGEST_VALUE_BYTES + 1))

    # Threads and processes

    def test_of_many_threads_that_change_a_record_none_loses_a_change(
        self, store: Store, record: str
    ) -> None:
        threads = [threading.Thread(target=add, args=(store, record, 10)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.read(record) == b"40"

    def test_threads_read_while_others_write(self, store: Store, partition: str) -> None:
        wrong: list[object] = []

        def use(first: int) -> None:
            try:
                for number in range(first, first + 200, 10):
                    store.put_many(partition, items(number, 10))
                    if there(store, partition, first, 200) != number - first + 10:
                        wrong.append(number)
            except Exception as error:  # noqa: BLE001 - the test reports it
                wrong.append(error)

        threads = [threading.Thread(target=use, args=(first,)) for first in range(0, 1000, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert there(store, partition, 0, 1000) == 1000

    def test_what_was_written_is_there_when_it_is_opened_again(self, opener: Opener, partition: str) -> None:
        if not self.is_shared:
            pytest.skip("store objects do not share their content")
        first: Store = opener.open()
        first.put_many(partition, items(0, 10))
        first.close()
        second: Store = opener.open()
        assert there(second, partition, 0, 10) == 10
        second.close()

    def test_two_processes_see_one_anothers_writes(
        self, opener: Opener, store: Store, partition: str, record: str
    ) -> None:
        if not self.is_shared:
            pytest.skip("store objects do not share their content")
        with other_process(opener) as ask:
            store.put_many(partition, items(0, 100))
            assert ask(f"get {partition} 0 200") == "100"
            assert ask(f"put {partition} 100 100") == "done"
            assert there(store, partition, 0, 200) == 200
            name = record.replace(" ", "_")
            adding = threading.Thread(target=add, args=(store, name, 20))
            adding.start()
            assert ask(f"add {name} 20") == "done"
            adding.join()
            assert store.read(name) == b"40"

    def test_what_was_written_survives_a_writer_that_is_killed(
        self, opener: Opener, store: Store, partition: str
    ) -> None:
        if not self.is_shared:
            pytest.skip("store objects do not share their content")
        with other_process(opener) as ask:
            last = int(ask(f"put-on {partition}"))
            deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            while last < 50:
                assert time.monotonic() < deadline, f"only {last + 1} items were written"
                last = int(ask(""))
            os.kill(ask.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        assert there(store, partition, 0, last + 1) == last + 1
        store.put_many(partition, items(10_000, 1))
        assert there(store, partition, 10_000, 1) == 1
