"""LMDB's pages: what is read of them in place is what LMDB itself reads."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.catalog import partition
from headrace.archive.operations.open_archive import open_archive
from headrace.base.errors import Unavailable
from headrace.storage.lmdb_environment import CONTENTS_KEY
from headrace.storage.settings import LmdbStore
from headrace.storage.stores.lmdb import InLmdbStore
from headrace.storage.stores.lmdb_pages import DAMAGED, READ, DataFile, Pages, Tree, find
from headrace.storage.stores.store import Item
from tests.waiting import seconds_left

SIZES = [0, 1, 100, 530, 1500, 3000, 9000]

REPLACES_ALL = """
import sys, itertools
from pathlib import Path
from headrace.storage.stores.lmdb import InLmdbStore
from headrace.storage.settings import LmdbStore
from headrace.storage.stores.store import Item
store = InLmdbStore(LmdbStore(path=Path(sys.argv[1]), sync=False, timeout_seconds=20.0))
for turn in itertools.count(1):
    numbers = [1000 * key + turn % 1000 for key in range(500)]
    store.put_many("values", [Item(b"%d" % (one // 1000), b"%8d" % one * 60) for one in numbers])
    print(turn, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[InLmdbStore]:
    store = InLmdbStore(LmdbStore(path=tmp_path / "store", sync=False))
    store.create("values")
    yield store
    store.close()


def in_place(store: InLmdbStore, keys: list[str], partition: str = "values") -> list[bytes]:
    found = perhaps_in_place(store, keys, partition)
    assert found is not None
    return found


def perhaps_in_place(store: InLmdbStore, keys: list[str], partition: str) -> list[bytes] | None:
    with store.in_place(partition, keys) as places:
        if places is None:
            return None
        return [ctypes.string_at(at, size) if at else b"" for at, size in places.tolist()]


def test_values_of_all_sizes_and_times_to_live_are_those_that_were_written(store: InLmdbStore) -> None:
    random, wanted = np.random.default_rng(1), dict[str, bytes]()
    for turn in range(12):
        items = {
            f"key {random.integers(3000)}" + "y" * int(random.choice([0, 40, 400])): random.bytes(
                int(random.choice(SIZES))
            )
            for _ in range(400)
        }
        written = [Item(key.encode(), value) for key, value in items.items()]
        store.put_many("values", written, ttl_seconds=1e6 if turn % 3 == 2 else 0.0)
        wanted |= items
        store.delete_many("values", [key.encode() for key in list(wanted)[::50]])
        for key in list(wanted)[::50]:
            del wanted[key]
        asked = [str(key) for key in random.permutation([*wanted, *(f"none {one}" for one in range(50))])]
        found = in_place(store, asked)
        assert found == [wanted.get(key, b"") for key in asked]
        assert found == store.get_many("values", [key.encode() for key in asked])


def test_an_expired_value_is_missing(store: InLmdbStore) -> None:
    store.put_many("values", [Item(b"film", b"value")], ttl_seconds=1000.0)
    keys, places = ["film"], np.zeros((1, 2), np.int64)
    with store._reading() as transaction:
        tree, known = store._pages.tree(transaction), store._known(transaction, "values")
        assert find(tree, int.from_bytes(known.ending), 2**39, id(keys), places) == READ
        assert not places.any()
        assert find(tree, int.from_bytes(known.ending), 0, id(keys), places) == READ
        assert places[0, 1] == len(b"value")


def test_without_read_in_place_lmdb_reads_the_pages(tmp_path: Path) -> None:
    store = InLmdbStore(LmdbStore(path=tmp_path / "store", sync=False, read_in_place=False))
    store.create("values")
    store.put_many("values", [Item(b"film", b"value")])
    assert perhaps_in_place(store, ["film"], "values") is None
    assert store.get_many("values", [b"film"]) == [b"value"]
    store.close()


def test_a_partition_that_is_not_there_is_left_to_lmdb(store: InLmdbStore) -> None:
    with store.in_place("nowhere", ["film"]) as places:
        assert places is None


@pytest.mark.parametrize(("place", "byte"), [(16, 0), (20, 2)])
def test_another_format_is_left_to_lmdb(store: InLmdbStore, tmp_path: Path, place: int, byte: int) -> None:
    environment, data = store._file.environment, bytearray(store._file.data.read_bytes())
    other = tmp_path / "other.mdb"
    for is_changed in (False, True):
        data[place] = byte if is_changed else data[place]
        other.write_bytes(data)
        with closing(DataFile(other)) as file:
            assert (Pages.of(environment, file, CONTENTS_KEY) is None) == is_changed


def test_a_page_that_says_another_number_does_not_tell_where_the_first_one_is(store: InLmdbStore) -> None:
    with store._reading() as transaction:
        root = store._pages.tree(transaction).root
    for number in (root + 1, root - 1, 2**40, 2**63, 2**64 - 1):
        with store._file.data.open("r+b", buffering=0) as file:
            file.seek(root * store._pages._page_bytes)
            file.write(number.to_bytes(8, "little"))
        assert Pages.of(store._file.environment, store._data, CONTENTS_KEY) is None


@pytest.mark.parametrize("changes", [{"root": 0}, {"depth": 7}, {"depth": 1}, {"last": 1}, {"last": 0}])
def test_pages_that_are_not_as_they_should_be_are_not_read(store: InLmdbStore, changes: dict) -> None:
    store.put_many("values", [Item(b"%d" % key, bytes(500)) for key in range(2000)])
    keys = ["7"]
    with store._reading() as transaction:
        tree, known = store._pages.tree(transaction), store._known(transaction, "values")
        assert find(tree, int.from_bytes(known.staying), -1, id(keys), np.zeros((1, 2), np.int64)) == READ
        wrong: Tree = tree._replace(**changes)
        assert find(wrong, int.from_bytes(known.staying), -1, id(keys), np.zeros((1, 2), np.int64)) == DAMAGED


@pytest.mark.rest
def test_a_damaged_file_ends_no_process_and_nothing_beside_it_is_read(tmp_path: Path) -> None:
    program = [
        sys.executable,
        "-m",
        "tests.unit.storage.stores.damaged_pages",
        str(tmp_path / "store"),
        "10000",
    ]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr or f"ended by signal {-ended.returncode}"
    read, damaged = map(int, ended.stdout.split())
    assert read > 1000
    assert damaged > 1000


def test_a_damaged_page_is_an_error_with_advice(store: InLmdbStore, caplog: pytest.LogCaptureFixture) -> None:
    keys = [str(key) for key in range(2000)]
    store.put_many("values", [Item(key.encode(), bytes(500)) for key in keys])
    assert in_place(store, keys[:1]) == [bytes(500)]
    with store._reading() as transaction:
        tree = store._pages.tree(transaction)
    with store._file.data.open("r+b", buffering=0) as file:
        for page in range(2, tree.last + 1):
            file.seek(page * tree.page_bytes + 16)
            file.write(b"\xff" * 32)
    for _ in range(2):
        with pytest.raises(Unavailable, match="is damaged: a page is invalid; stop all processes"):
            in_place(store, keys)
    assert caplog.text.count("is damaged") == 1


def test_a_store_that_is_closed_is_unavailable_and_may_be_closed_again(tmp_path: Path) -> None:
    store = InLmdbStore(LmdbStore(path=tmp_path / "store", sync=False))
    store.create("values")
    for _ in range(2):
        store.close()
        with open(os.devnull) as other:  # it may get the number that the store's file had
            with pytest.raises(Unavailable):
                in_place(store, ["key"])
            with pytest.raises(Unavailable):
                store.get_many("values", [b"key"])
            store.close()
            assert os.fstat(other.fileno())


CUTS = """
import os, sys
from pathlib import Path
from headrace.base.errors import Unavailable
from headrace.storage.stores.lmdb import InLmdbStore
from headrace.storage.settings import LmdbStore
from headrace.storage.stores.store import Item
store = InLmdbStore(LmdbStore(path=Path(sys.argv[1]), sync=False))
store.create("values")
store.put_many("values", [Item(b"%d" % key, bytes(500)) for key in range(2000)])
keys = [str(key) for key in range(2000)]
with store.in_place("values", keys) as places:
    assert places.all()
os.truncate(store._file.data, int(sys.argv[2]))
def read_in_place():
    with store.in_place("values", keys):
        pass
for call in (
    read_in_place,
    lambda: store.get_many("values", [key.encode() for key in keys]),
    lambda: store.put_many("values", [Item(b"new", bytes(500))]),
    lambda: store.delete_many("values", [b"7"]),
    lambda: store.scan("values"),
    lambda: store.read("name"),
    lambda: store.swap("name", None, b"value"),
):
    try:
        call()
    except Unavailable as error:
        print(error)
store.close()
"""


@pytest.mark.parametrize("left", [0, 4096, 300_000])
def test_a_file_that_was_cut_under_a_process_is_an_error_and_not_its_end(tmp_path: Path, left: int) -> None:
    program = [sys.executable, "-c", CUTS, str(tmp_path / "store"), str(left)]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr or f"ended by signal {-ended.returncode}"
    assert ended.stdout.count(f"the LMDB file was truncated to {left} bytes, from ") == 7


def test_each_read_sees_one_snapshot_while_another_process_writes(store: InLmdbStore) -> None:
    program = [sys.executable, "-c", REPLACES_ALL, str(store._file.options.path)]
    keys, seen = [str(key) for key in range(500)], set()
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writer:
        try:
            deadline = time.monotonic() + seconds_left()
            while len(seen) < 30:
                assert time.monotonic() < deadline, f"{len(seen)} of 30 states were seen"
                assert writer.stdout.readline(), "the writer has ended"
                values = perhaps_in_place(store, keys, "values")
                if values is None:  # two transactions ended before this one had found its root: LMDB is asked
                    continue
                numbers = np.array([int(value[:8]) for value in values])
                assert all(value == value[:8] * 60 for value in values)
                assert len(set((numbers - 1000 * np.arange(500)).tolist())) == 1
                seen.add(numbers[0])
        finally:
            writer.kill()


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    table = {
        "store": {"kind": "lmdb", "path": "store"},
        "queue": {"kind": "memory"},
        "spaces": {"films": {"dimension": 4, "dtype": "int8"}},
    }
    with open_archive(archive_config(table, "archive.toml", tmp_path), tmp_path) as opened:
        yield opened


def test_a_lookup_takes_vectors_from_the_file_also_by_long_keys_and_counts_what_is_damaged(
    archive: Archive,
) -> None:
    keys = ["Heat", "a long one" * 100, "The Matrix"]
    archive.put("films", keys, np.eye(3, 4, dtype=np.float32))
    where = partition("films", 1)
    archive.store.put_many(where, [Item(b"cut", b"\1"), Item(b"other", bytes([1, 1]) + bytes(18))])
    reader = archive.reader("films")
    for asked in (["Heat", "none", "cut", "The Matrix", "other"], keys):
        reader.forget_all()
        vectors, found = archive.lookup("films", asked)
        assert found.tolist() == [key in keys for key in asked]
        wanted = [np.eye(3, 4)[keys.index(key)] if key in keys else np.zeros(4) for key in asked]
        np.testing.assert_allclose(vectors, wanted, atol=0.01)
    assert reader.counts.damaged == 2
    assert reader.counts.stored == 5
