"""The store in a file: writers that are stopped or killed, full files and disks, files that are none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from headrace.base.errors import ConfigError, Unavailable
from headrace.storage.lmdb_environment import LmdbOptions, open_lmdb
from headrace.storage.settings import LmdbStore
from headrace.storage.stores.lmdb import InLmdbStore
from headrace.storage.stores.store import Item
from headrace.testing.store_process import items, there
from headrace.testing.stores import eventually
from tests.stopped_processes import stop

WRITES_WITHOUT_END = """
import sys, time
from pathlib import Path
from headrace.storage.lmdb_environment import LmdbOptions, open_lmdb
file = open_lmdb(LmdbOptions(Path(sys.argv[1]), 2**30, True, "headrace store 1"), 10.0)
with file.writing(time.monotonic() + 10) as transaction:
    transaction.put(b"r" + b"half", b"written")
    print("writing", flush=True)
    time.sleep(600)
"""

WRITES_ON = """
import sys, itertools
from pathlib import Path
from headrace.storage.stores.lmdb import InLmdbStore
from headrace.storage.settings import LmdbStore
from headrace.testing.store_process import items
store = InLmdbStore(LmdbStore(path=Path(sys.argv[1]), largest_bytes=2**30, timeout_seconds=20.0))
for number in itertools.count():
    store.put_many("values", items(number % 100 * 100, 100))
    print(number, flush=True)
"""


def opened(path: Path, timeout_seconds: float = 10.0, largest_bytes: int = 2**30) -> InLmdbStore:
    return InLmdbStore(LmdbStore(path=path, timeout_seconds=timeout_seconds, largest_bytes=largest_bytes))


@contextmanager
def running(program: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that has said its first line."""
    process = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[InLmdbStore]:
    store = opened(tmp_path / "archive", timeout_seconds=0.5)
    store.create("values")
    store.put_many("values", items(0, 1000))
    yield store
    store.close()


def test_a_writer_that_is_stopped_in_a_write_holds_up_no_read(store: InLmdbStore, tmp_path: Path) -> None:
    with running(WRITES_WITHOUT_END, tmp_path / "archive") as writer:
        stop(writer.pid)
        assert there(store, "values", 0, 1000) == 1000
        assert store.read("half") is None
        assert len(store.scan("values").keys) == 1000
        reader = "import sys; from tests.faults.test_lmdb_store import *; s = opened(Path(sys.argv[1])); "
        reader += "print(there(s, 'values', 0, 2000))"
        another = subprocess.run(
            [sys.executable, "-c", reader, tmp_path / "archive"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert another.stdout == "1000\n", another.stderr


def test_a_write_behind_one_that_is_stopped_ends_in_time(store: InLmdbStore, tmp_path: Path) -> None:
    with running(WRITES_WITHOUT_END, tmp_path / "archive") as writer:
        stop(writer.pid)
        ended: list[BaseException] = []

        def write() -> None:
            try:
                store.put_many("values", items(0, 1))
            except Unavailable as error:
                ended.append(error)

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert len(ended) == 8
        with pytest.raises(Unavailable, match="suspended"):
            store.swap("a", None, b"1")
        with pytest.raises(Unavailable, match="suspended"):
            store.drop("values")
        assert there(store, "values", 0, 1000) == 1000
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        store.put_many("values", items(1000, 1))
        assert there(store, "values", 0, 2000) == 1001
        assert store.read("half") is None


def test_a_process_that_writes_on_and_on_leaves_room_for_others(tmp_path: Path) -> None:
    store = opened(tmp_path / "archive", timeout_seconds=20.0)
    store.create("values")
    with running(WRITES_ON, tmp_path / "archive"):
        for number in range(20):
            store.put_many("values", items(20_000 + number, 1))
    assert there(store, "values", 20_000, 20) == 20
    store.close()


def test_readers_that_were_killed_lose_their_places(store: InLmdbStore, tmp_path: Path) -> None:
    reads = WRITES_WITHOUT_END.replace("writing(time.monotonic() + 10)", "reading()").replace(
        "put(b", "get(b"
    )
    for _ in range(3):
        with running(reads, tmp_path / "archive") as reader:
            os.kill(reader.pid, signal.SIGKILL)
    store.close()
    again = opened(tmp_path / "archive")
    again.put_many("values", items(0, 1))
    environment = again._file._environment
    places = {line.split()[0] for line in environment.readers().splitlines()[1:]}
    assert places <= {str(os.getpid())}, environment.readers()
    again.close()


def fill(store: InLmdbStore, size: int, at_once: int) -> None:
    refusal = "none"
    for number in range(100_000):
        some = [Item(b"%d-%d-%d" % (size, number, one), bytes(size)) for one in range(at_once)]
        try:
            store.put_many("values", some)
        except Unavailable as error:
            refusal = error.message
            break
    assert "largest_bytes" in refusal


def test_a_file_that_is_full_refuses_and_goes_on(tmp_path: Path) -> None:
    store = opened(tmp_path / "archive", largest_bytes=4 * 2**20)
    store.create("values")
    store.create("others")
    fill(store, 100_000, 1)
    assert store.get_many("values", [b"100000-0-0"]) == [bytes(100_000)]
    fill(store, 10, 1000)
    store.delete_many("values", [b"100000-0-0"])
    store.drop("values")
    store.put_many("others", [Item(b"%d" % number, bytes(100_000)) for number in range(10)])
    assert store.get_many("others", [b"9"]) == [bytes(100_000)]
    store.close()


def test_a_disk_that_is_full_refuses_and_goes_on(tmp_path: Path) -> None:
    """A limit of the process's own on files' sizes stands for the disk: a write comes short."""
    import resource

    store = opened(tmp_path / "archive")
    store.create("values")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(Unavailable):
            store.put_many("values", [Item(b"%d" % number, bytes(100_000)) for number in range(50)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    store.put_many("values", [Item(b"a", bytes(100_000))])
    assert store.get_many("values", [b"a", b"1"], b"-") == [bytes(100_000), b"-"]
    store.close()


@pytest.mark.parametrize("content", [b"not LMDB at all" * 1000, bytes(8192), b"\xff" * 100])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(ConfigError, match=r"data\.mdb"):
        opened(tmp_path)


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.create("values")
    store.put_many("values", items(0, 1000))
    store.close()
    os.truncate(tmp_path / "data.mdb", 8192 + 4096)
    with pytest.raises(ConfigError, match="damaged"):
        opened(tmp_path)


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    open_lmdb(LmdbOptions(tmp_path / "a", 2**20, True, "headrace store 2"), 1.0).close()
    with pytest.raises(ConfigError, match="headrace store 2"):
        opened(tmp_path / "a")
    with lmdb.open(str(tmp_path / "b")) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"somebody", b"else's")
    with pytest.raises(ConfigError, match="something else"):
        opened(tmp_path / "b")


def test_a_path_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere"), Path("a\0b")):
        with pytest.raises(ConfigError):
            opened(path)


def test_a_directory_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
import lmdb
from headrace.base.errors import ConfigError
from headrace.storage.stores.lmdb import InLmdbStore
from headrace.storage.settings import LmdbStore
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    InLmdbStore(LmdbStore(path=Path(sys.argv[1])))
except ConfigError as error:
    print("refused", error)
"""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        command = [sys.executable, "-c", program, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not os.listdir(name)
    assert done.stdout.startswith("refused"), done.stderr


def test_one_file_is_opened_twice_in_a_process(tmp_path: Path) -> None:
    (tmp_path / "b").symlink_to("a")
    first, second = opened(tmp_path / "a"), opened(tmp_path / "b")
    first.create("values")
    second.put_many("values", items(0, 1))
    first.close()
    assert there(second, "values", 0, 1) == 1
    with pytest.raises(ConfigError, match="other settings"):
        opened(tmp_path / "a", largest_bytes=2**29)
    second.close()
    opened(tmp_path / "a", largest_bytes=2**29).close()


def test_writers_remove_dropped_and_expired_records(tmp_path: Path) -> None:
    store = opened(tmp_path, timeout_seconds=0.05)
    store.create("dropped")
    for first in range(0, 20_000, 100):
        store.put_many("dropped", items(first, 100))
    store.drop("dropped")
    store.create("values")
    store.put_many("values", items(0, 3000), 1.0)
    eventually(lambda: there(store, "values", 0, 3000) == 0)

    def entries() -> int:
        return int(store._file._environment.stat()["entries"])

    def write() -> bool:
        store.put_many("values", items(0, 100), 1000.0)
        return entries() < 200

    eventually(write)
    store.close()
