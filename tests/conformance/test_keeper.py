"""The keeper's contract: one checked copy for all who ask, freed with its last holder; nobody waits long."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.ctr.files.arrays import Replaced, load_array, write_array
from headrace.sealed_memory import copies, file_copying, keeper_client
from headrace.sealed_memory.copies import SealedCopy
from headrace.sealed_memory.file_copying import (
    Content,
    NotCopied,
    Numbers,
    Patch,
    Refusal,
    sealed_copy,
    use_keeper,
)
from headrace.sealed_memory.keeper import KeeperProcess
from headrace.sealed_memory.keeper_client import Copied, KeeperClient, Question
from tests.stopped_processes import stopped
from tests.waiting import until

NUMBERS = np.arange(2**18, dtype=np.float32)
SIZE = NUMBERS.nbytes
SUM = hashlib.sha256(NUMBERS.tobytes()).hexdigest()


@contextlib.contextmanager
def running() -> Iterator[KeeperProcess]:
    with contextlib.closing(KeeperProcess(log_level="error")) as process:
        with open(__file__, "rb") as any_file:
            size = os.path.getsize(__file__)  # asked again where it takes longer to start than a door waits
            until(lambda: KeeperClient(process.descriptor).checksum(any_file.fileno(), size) is not None)
        yield process


@pytest.fixture(scope="module")
def keeper() -> Iterator[KeeperProcess]:
    with running() as process:
        yield process


@pytest.fixture
def own() -> Iterator[KeeperProcess]:
    with running() as process:
        yield process


@pytest.fixture
def client(keeper: KeeperProcess) -> KeeperClient:
    return KeeperClient(keeper.descriptor)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a file of numbers."""
    (tmp_path / "numbers").write_bytes(NUMBERS.tobytes())
    descriptor = os.open(tmp_path / "numbers", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def descriptors(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def memfds(process: int | str, name: str = "headrace") -> int:
    """How many descriptors of memory of this name a process has."""
    found = 0
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            found += f"memfd:{name}" in os.readlink(descriptor)
    return found


def asked(client: KeeperClient, file: int, content: Content) -> tuple[threading.Thread, list[object]]:
    """Ask in a thread; what came of it is put into the list."""
    results: list[object] = []

    def ask() -> None:
        try:
            results.append(client.copy(file, content))
        except (NotCopied, OSError) as error:
            results.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, results


def numbers_of(copy: SealedCopy | None) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    assert copy is not None
    return copy.array(NUMBERS.dtype, NUMBERS.shape, 0)


@pytest.mark.parametrize("checksum", [SUM, None])
def test_those_who_ask_at_once_and_later_get_one_copy(
    keeper: KeeperProcess, client: KeeperClient, file: int, checksum: str | None
) -> None:
    content, before = Content(SIZE, checksum), descriptors(keeper.pid)
    with stopped(keeper.pid):
        threads = [asked(client, file, content) for _ in range(4)]
    copies = []
    for thread, results in threads:
        thread.join(120)
        copies += results
    copies.append(KeeperClient(keeper.descriptor).copy(file, content))
    assert all(isinstance(copy, SealedCopy) for copy in copies)
    assert len({os.fstat(copy.descriptor).st_ino for copy in copies if isinstance(copy, SealedCopy)}) == 1
    np.testing.assert_array_equal(numbers_of(copies[0]), NUMBERS)
    del copies, threads, results
    until(lambda: descriptors(keeper.pid) <= before)


def test_a_file_that_was_changed_is_another_content(client: KeeperClient, file: int) -> None:
    content = Content(SIZE)
    first = client.copy(file, content)
    until(lambda: time.time_ns() - os.fstat(file).st_ctime_ns > 10**8)
    os.pwrite(file, np.float32(-1).tobytes(), 0)
    assert numbers_of(first)[0] == 0.0
    assert numbers_of(client.copy(file, content))[0] == -1.0


@pytest.mark.parametrize(
    ("damage", "content", "reason"),
    [
        (b"\0\0\0\x3f", Content(SIZE, SUM), "checksum"),
        (b"\0\0\xc0\x7f", Content(SIZE, None, Numbers("<f4", 0)), "number"),
        (b"", Content(SIZE - 4), "changed"),
    ],
)
def test_what_is_damaged_is_told_and_not_kept(
    keeper: KeeperProcess, client: KeeperClient, file: int, damage: bytes, content: Content, reason: str
) -> None:
    before = descriptors(keeper.pid)
    os.pwrite(file, damage, 400)
    for _ in range(2):
        with pytest.raises(NotCopied) as told:
            client.copy(file, content)
        assert told.value.refusal.reason == reason
        assert told.value.refusal.place == (100 if reason == "number" else 0)
    until(lambda: descriptors(keeper.pid) <= before)


def test_a_file_that_is_cut_before_it_is_copied_is_told(
    keeper: KeeperProcess, client: KeeperClient, file: int
) -> None:
    with stopped(keeper.pid):
        thread, results = asked(client, file, Content(SIZE))
        os.ftruncate(file, SIZE // 2 + 1)
    thread.join(120)
    assert isinstance(results[0], NotCopied)
    assert results[0].refusal.reason == "changed"


def test_a_file_that_is_replaced_before_it_is_copied_is_the_one_that_was_opened(
    keeper: KeeperProcess, client: KeeperClient, file: int, tmp_path: Path
) -> None:
    with stopped(keeper.pid):
        thread, results = asked(client, file, Content(SIZE, SUM))
        (tmp_path / "new").write_bytes(bytes(SIZE))
        (tmp_path / "new").rename(tmp_path / "numbers")
    thread.join(120)
    assert isinstance(results[0], SealedCopy)
    np.testing.assert_array_equal(numbers_of(results[0]), NUMBERS)


@pytest.mark.parametrize("leaves", [False, True], ids=["all wait", "the first leaves"])
def test_a_damaged_file_refuses_nobody_who_gave_a_whole_one_of_the_same_checksum(
    keeper: KeeperProcess, file: int, tmp_path: Path, leaves: bool
) -> None:
    before, question = descriptors(keeper.pid), Question(keeper_client.FORMAT, "copy", Content(SIZE, SUM))
    (tmp_path / "damaged").write_bytes(bytes(SIZE))
    with contextlib.ExitStack() as held:
        damaged = held.enter_context((tmp_path / "damaged").open("rb")).fileno()
        gate = held.enter_context(socket.socket(fileno=os.dup(keeper.descriptor)))
        lifelines = []
        with stopped(keeper.pid):  # so that all of them are there when the first file is worked on
            for one in [damaged, file, damaged, file]:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                lifelines.append(held.enter_context(ours))
                with theirs:
                    keeper_client.send(gate, question, theirs.fileno(), one)
            if leaves:
                lifelines.pop(0).close()
        answers = [keeper_client._answer(one, lambda: None) for one in lifelines]
        whole = answers[1 - leaves :: 2]  # the other ones are refused, or get the copy of a whole one
        assert [reply for reply, _ in whole] == [Copied(), Copied()]
        assert leaves or answers[0][0] == Refusal("checksum")
        given = [one for _, passed in answers for one in passed]
        assert len({os.fstat(one).st_ino for one in given}) == 1
        assert os.pread(given[0], SIZE, 0) == NUMBERS.tobytes()
        keeper_client.close(given)
    until(lambda: descriptors(keeper.pid) <= before)


def test_what_does_not_fit_into_memory_is_told_with_the_numbers(client: KeeperClient, tmp_path: Path) -> None:
    with (tmp_path / "huge").open("w+b") as huge:
        huge.truncate(2**42)
        with pytest.raises(OSError, match="it takes 4398046511104 bytes of memory, and only") as told:
            client.copy(huge.fileno(), Content(2**42))
    assert told.value.errno == errno.ENOMEM


def test_a_checksum_is_computed_once_as_long_as_the_file_stays_as_it_is(
    client: KeeperClient, file: int
) -> None:
    assert client.checksum(file, SIZE) == SUM
    until(lambda: time.time_ns() - os.fstat(file).st_ctime_ns > 10**9)
    for _ in range(3):
        assert client.checksum(file, SIZE) == SUM
    os.pwrite(file, b"!", 0)
    changed = hashlib.sha256(b"!" + NUMBERS.tobytes()[1:]).hexdigest()
    assert client.checksum(file, SIZE) == changed


def test_a_holder_that_is_killed_holds_nothing(own: KeeperProcess, file: int) -> None:
    before = descriptors(own.pid)
    program = f"""if True:
        import sys
        from headrace.sealed_memory.keeper_client import KeeperClient
        from headrace.sealed_memory.file_copying import Content
        copy = KeeperClient({own.descriptor}).copy({file}, Content({SIZE}, "{SUM}"))
        print(copy.size_bytes, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", program],
        pass_fds=[own.descriptor, file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) == SIZE
        assert memfds(own.pid) == 1
        holder.kill()
    until(lambda: memfds(own.pid) == 0 and descriptors(own.pid) <= before)


def test_after_two_hundred_loads_nothing_is_left(keeper: KeeperProcess, tmp_path: Path) -> None:
    """Who asks is a process of its own: descriptors of others come and go in that of the tests."""
    before = descriptors(keeper.pid)
    program = f"""if True:
        import hashlib, os
        import numpy as np
        from headrace.sealed_memory.keeper_client import KeeperClient
        from headrace.sealed_memory.file_copying import Content

        def held():
            with open("/proc/self/maps") as maps:
                return len(os.listdir("/proc/self/fd")), maps.read().count("memfd:headrace")

        door, path, before = KeeperClient({keeper.descriptor}), {str(tmp_path / "next")!r}, held()
        for number in range(200):  # a table each, of 1 MB
            content = np.arange(2**18, dtype=np.float32) + np.float32(number)
            content.tofile(path)
            checksum = hashlib.sha256(content).hexdigest()
            with open(path, "rb") as opened:
                copy = door.copy(opened.fileno(), Content(content.nbytes, checksum))
            assert copy.array(content.dtype, content.shape, 0)[0] == number
            del copy
        print([now - then for now, then in zip(held(), before)])
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        pass_fds=[keeper.descriptor],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[0, 0]\n"
    until(lambda: descriptors(keeper.pid) <= before)


def test_what_is_no_question_is_ignored(keeper: KeeperProcess, client: KeeperClient, file: int) -> None:
    before = descriptors(keeper.pid)
    with socket.socket(fileno=os.dup(keeper.descriptor)) as rough:
        for junk in (b"x", b"\xc1" * 4096, b"\x93\x02\xa4copy\x80", b"\x93\x01\xa4copy\x80"):
            rough.send(junk)
            socket.send_fds(rough, [junk], [file])
            socket.send_fds(rough, [junk], [file, file, file])
    assert client.copy(file, Content(SIZE, SUM)) is not None
    until(lambda: descriptors(keeper.pid) <= before)


# ---- Rows of a patch ----


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_array(tmp_path / "table.npy", NUMBERS.reshape(-1, 16))
    return tmp_path / "table.npy"


@pytest.mark.parametrize(
    ("every", "is_shared"), [(1, True), (50, True), (64 * 50, False)], ids=["all", "scattered", "few"]
)
@pytest.mark.parametrize("holds_base", [False, True])
def test_rows_that_are_replaced_on_many_pages_are_replaced_once_for_all(
    keeper: KeeperProcess, table: Path, every: int, is_shared: bool, holds_base: bool
) -> None:
    use_keeper(keeper.descriptor)
    before, expected = descriptors(keeper.pid), np.load(table)
    meant = hashlib.sha256(table.read_bytes()).hexdigest()
    shape = ("float32", expected.shape)
    rows = np.arange(0, len(expected), every, dtype=np.uint32)
    replaced = Replaced(rows, -expected[rows])
    try:
        base = load_array(table, shape, meant) if holds_base else None
        plain = expected.copy()
        expected[rows] = replaced.values
        arrays = [load_array(table, shape, meant, replaced) for _ in range(2)]
        for array in arrays:
            np.testing.assert_array_equal(array, expected)
        assert (private_bytes() < SIZE // 2) == is_shared or every > 50
        if base is not None:
            np.testing.assert_array_equal(base, plain)
        assert (copies.shared(meant) is None) == (is_shared and not holds_base)
        del arrays, array, base
    finally:
        file_copying._keeper = None  # copies are made in this process again
    until(lambda: descriptors(keeper.pid) <= before)


def private_bytes() -> int:
    """Pages of sealed copies that were written to, and so are this process's own."""
    found, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            is_ours = "/memfd:headrace" in line
        elif is_ours and line.startswith("Anonymous:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.parametrize("rows", [[0, 2**14], [2**32 - 1]])
def test_rows_beyond_the_table_are_refused(client: KeeperClient, file: int, rows: list[int]) -> None:
    numbers = np.array(rows, np.uint32).tobytes() + bytes(64 * len(rows))
    packed = SealedCopy.sealed([memoryview(numbers)])
    for patch in (Patch("a", len(rows), 64, 0), Patch("b", len(rows) + 1, 64, 0), Patch("c", 1, 7, 0)):
        with pytest.raises(OSError, match="the patch"):
            client.copy(file, Content(SIZE, SUM, None, patch), packed.descriptor)
    assert client.copy(file, Content(SIZE, SUM)) is not None


# ---- A keeper that is away ----


def test_one_that_hangs_is_left_alone_and_frees_what_nobody_waits_for(
    own: KeeperProcess, file: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = descriptors(own.pid)
    monkeypatch.setattr(keeper_client, "SILENT_SECONDS", 0.2)
    client = KeeperClient(own.descriptor)
    with caplog.at_level(logging.WARNING), stopped(own.pid):
        assert client.copy(file, Content(SIZE, SUM)) is None
        assert "makes its own copy: it has not answered" in caplog.text
        caplog.clear()
        assert client.copy(file, Content(SIZE, SUM)) is None
        assert not caplog.text
    monkeypatch.undo()
    assert KeeperClient(own.descriptor).checksum(file, SIZE) == SUM
    until(lambda: descriptors(own.pid) <= before)


def test_questions_to_one_that_hangs_do_not_pile_up(
    own: KeeperProcess, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_client, "SILENT_SECONDS", 0.2)
    with stopped(own.pid):
        threads = [asked(KeeperClient(own.descriptor), file, Content(SIZE, SUM)) for _ in range(50)]
        for thread, results in threads:
            thread.join(120)
            assert results == [None]


def test_one_that_is_killed_is_started_again_and_answers_what_was_asked_meanwhile(
    own: KeeperProcess, file: int
) -> None:
    client = KeeperClient(own.descriptor)
    held, first = client.copy(file, Content(SIZE, SUM)), own.pid
    os.kill(first, signal.SIGKILL)
    thread, results = asked(client, file, Content(SIZE, SUM))
    until(lambda: own.look_after() or own.pid != first)
    thread.join(120)
    assert isinstance(results[0], SealedCopy)
    np.testing.assert_array_equal(numbers_of(held), NUMBERS)


def test_where_it_was_ended_each_makes_its_own_copy(file: int, caplog: pytest.LogCaptureFixture) -> None:
    process = KeeperProcess(log_level="error")
    use_keeper(process.descriptor)
    try:
        process.close()
        with open(file, "rb", buffering=0, closefd=False) as opened:
            copy = sealed_copy(opened, Content(SIZE, SUM, Numbers("<f4", 0)))
    finally:
        file_copying._keeper = None  # copies are made in this process again
    np.testing.assert_array_equal(numbers_of(copy), NUMBERS)
    assert "makes its own copy: it has ended" in caplog.text


def test_it_ends_with_its_last_asker(own: KeeperProcess) -> None:
    held = os.dup(own.descriptor)
    own._client_end.close()
    os.close(held)
    assert own._process.wait() == 0


def test_what_is_not_sealed_is_not_taken(file: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever sits at the other end: memory that can still be changed is no sealed copy."""
    keeping, askers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with keeping, askers:
        thread, results = asked(KeeperClient(askers.fileno()), file, Content(SIZE))
        until(lambda: bool(_readable(keeping)))
        received = keeper_client.receive(keeping, 2)
        assert received is not None
        loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
        os.ftruncate(loose, SIZE)
        with socket.socket(fileno=received[1][0]) as lifeline:
            keeper_client.send(lifeline, Copied(), loose)
            thread.join(120)
            lifeline.settimeout(60)
            assert lifeline.recv(1) == b"", "the other end is closed"
        keeper_client.close([received[1][1], loose])
        assert results == [None]
        assert "its copy is not sealed" in caplog.text
        assert memfds("self", "loose") == 0


def _readable(end: socket.socket) -> bytes:
    try:
        return end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""
