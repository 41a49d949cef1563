"""Fillers that are killed or stopped: nothing that was queued is lost, and little is embedded twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.operations.open_archive import open_archive_file
from tests.faults.archive_processes import BATCH, THREADS, Encoder, all_found, encoding, filler
from tests.stopped_processes import stands_still, stop
from tests.waiting import until
from tools.services.ports import free_ports

VISIBILITY = "visibility_seconds = 6.0"
"""How long a killed filler's messages are kept from others; a living one renews it in a third of that."""
PATIENT_SECONDS = 60.0
"""The longest that a call of a store or a queue may take."""


@pytest.fixture
def folder(tmp_path: Path, encoder: Encoder) -> Path:
    (tmp_path / "archive.toml").write_text(
        f"""
        cache = {{ absent_seconds = 0.05, poll_seconds = 0.1 }}
        [queue]
        kind = "lmdb"
        {VISIBILITY}
        [spaces.texts]
        embedder = "counted"
        pending_seconds = 600
        [embedders.counted]
        kind = "model"
        model = "encoder"
        url = "{encoder.url}"
        """
    )
    return tmp_path


def change(folder: Path, before: str, after: str) -> None:
    """Change the settings."""
    settings = folder / "archive.toml"
    settings.write_text(settings.read_text().replace(before, after))


@contextmanager
def reading(process: subprocess.Popen[bytes]) -> Iterator[list[bytes]]:
    """Read what a process says, up to its end."""
    stream, said = process.stderr, list[bytes]()
    assert stream is not None
    reader = threading.Thread(target=lambda: said.extend(iter(stream.readline, b"")))
    reader.start()
    try:
        yield said
    finally:
        process.kill()
        reader.join()
        stream.close()


@pytest.mark.rest
def test_a_filler_that_is_killed_while_it_embeds_repeats_a_batch_at_the_most(
    folder: Path, encoder: Encoder
) -> None:
    counted = encoder
    keys = [f"killed while embedding {number}" for number in range(60)]
    with open_archive_file(folder / "archive.toml") as archive:
        archive.want("texts", keys)
        kills = 2
        for _ in range(kills):
            before = sum(counted.embedded().values())
            counted.hold()
            with filler(folder) as process:
                until(lambda before=before: sum(counted.embedded().values()) > before)
                process.kill()
            counted.go()
        with filler(folder):
            until(lambda: all_found(archive, keys))
            until(lambda: archive.queue.depth().messages == 0)
    times = counted.embedded()
    assert all(times[key] >= 1 for key in keys)
    assert sum(times[key] for key in keys) <= len(keys) + kills * THREADS * BATCH


@pytest.mark.rest
def test_a_filler_that_is_killed_between_embedding_and_store_repeats_a_batch_at_the_most(
    folder: Path, encoder: Encoder
) -> None:
    """The store's file is held by a stopped writer while the encoder answers."""
    keys = [f"killed before the store {number}" for number in range(3 * THREADS * BATCH)]
    with open_archive_file(folder / "archive.toml") as archive:
        encoder.hold()
        archive.want("texts", keys)
        with filler(folder, stderr=subprocess.PIPE) as process, reading(process) as said:
            until(lambda: sum(encoder.embedded()[key] for key in keys) == THREADS * BATCH)
            with stopped_writer(folder / "archive", STOPS_IN_A_WRITE_OF_THE_STORE):
                encoder.go()
                until(lambda: any(b"filling waits" in line for line in said))
                process.kill()
                process.wait()
        assert archive.queue.depth().messages == len(keys)
        assert not archive.lookup("texts", keys).found.any()
        with filler(folder):
            until(lambda: all_found(archive, keys) and archive.queue.depth().messages == 0)
    times = {key: encoder.embedded()[key] for key in keys}
    assert sorted(times.values()) == [1] * (len(keys) - THREADS * BATCH) + [2] * THREADS * BATCH
    assert not list(dead_letters(folder))


@pytest.mark.rest
def test_two_fillers_have_twice_as_many_calls_of_the_encoder_waiting(folder: Path, encoder: Encoder) -> None:
    """And each key is embedded once."""
    change(folder, VISIBILITY, "visibility_seconds = 600.0")
    filled = list[str]()
    with open_archive_file(folder / "archive.toml") as archive, ExitStack() as running:
        for fillers in (1, 2):
            keys = [f"filled by {fillers}: {number}" for number in range(20 * BATCH)]
            filled += keys
            running.enter_context(filler(folder))
            encoder.hold()
            try:
                archive.want("texts", keys)
                until(lambda: waiting(encoder, keys) == fillers * THREADS * BATCH)  # noqa: B023
            finally:
                encoder.go()
            until(lambda: all_found(archive, keys))  # noqa: B023
    assert {encoder.embedded()[key] for key in filled} == {1}


def waiting(encoder: Encoder, keys: list[str]) -> int:
    """Count the keys that the encoder has been asked for; while it is held, their calls wait."""
    embedded = encoder.embedded()
    return sum(embedded[key] for key in keys)


def dead_letters(folder: Path) -> list[str]:
    with open_archive_file(folder / "archive.toml") as archive:
        return [letter.reason for letter in archive.dead_letters.all()]


@pytest.mark.rest
def test_a_filler_that_is_killed_between_store_and_acknowledge_repeats_nothing(
    folder: Path, encoder: Encoder
) -> None:
    """The queue's file is held by a stopped writer while the vectors are stored."""
    counted = encoder
    keys = [f"killed before acknowledge {number}" for number in range(BATCH)]
    with open_archive_file(folder / "archive.toml") as archive:
        counted.hold()
        archive.want("texts", keys)
        with filler(folder) as process:
            until(lambda: sum(counted.embedded()[key] for key in keys) == len(keys))
            with stopped_writer(folder / "queue"):
                counted.go()
                until(lambda: all_found(archive, keys))
                process.kill()
                process.wait()
        assert archive.queue.depth().messages == len(keys)
        with filler(folder):
            until(lambda: archive.queue.depth().messages == 0)
    assert {key: counted.embedded()[key] for key in keys} == dict.fromkeys(keys, 1)


STOPS_IN_A_WRITE = """
import os, signal, sys
from pathlib import Path
from headrace.storage.queues.lmdb import LmdbMessages
from headrace.storage.settings import LmdbQueue

queue = LmdbMessages(LmdbQueue(path=Path(sys.argv[1])))
queue._writer.run(lambda transaction: os.kill(os.getpid(), signal.SIGSTOP) or 0)
"""

STOPS_IN_A_WRITE_OF_THE_STORE = """
import os, signal, sys
from pathlib import Path
from headrace.storage.opening import open_store
from headrace.storage.settings import LmdbStore

store = open_store(LmdbStore(path=Path(sys.argv[1])))
with store._file.writing(store._deadline()):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def stopped_writer(path: Path, program: str = STOPS_IN_A_WRITE) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that is stopped within a write."""
    process = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        until(lambda: stands_still(process.pid))
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_filler_that_is_stopped_within_a_write_delays_no_lookup(folder: Path, encoder: Encoder) -> None:
    """Whoever waited for one of the writers would do so for longer than this test takes."""
    change(folder, VISIBILITY, f"timeout_seconds = {PATIENT_SECONDS}")
    change(folder, "[queue]", f'[store]\nkind = "lmdb"\ntimeout_seconds = {PATIENT_SECONDS}\n[queue]')
    keys = [f"a writer is stopped {number}" for number in range(50)]
    with open_archive_file(folder / "archive.toml") as archive:
        archive.put("texts", keys, np.ones((50, 3)))
        with (
            stopped_writer(folder / "archive", STOPS_IN_A_WRITE_OF_THE_STORE) as of_store,
            stopped_writer(folder / "queue") as of_queue,
        ):
            for number in range(200):
                archive.reader("texts").forget_all()
                _, found = archive.lookup("texts", [*keys, f"new {number}"])
                assert found.tolist() == [True] * 50 + [False]
            assert stands_still(of_store.pid)
            assert stands_still(of_queue.pid)


@pytest.mark.rest
def test_a_stopped_filler_goes_on_and_another_one_has_done_its_work(folder: Path, encoder: Encoder) -> None:
    counted = encoder
    keys = [f"stopped and gone on {number}" for number in range(40)]
    with open_archive_file(folder / "archive.toml") as archive:
        counted.hold()
        archive.want("texts", keys)
        with filler(folder) as stopping:
            # All its threads wait for the encoder: none is stopped while it writes, which is another test's.
            until(lambda: sum(counted.embedded()[key] for key in keys) >= THREADS * BATCH)
            stop(stopping.pid)
            counted.go()
            with filler(folder):
                until(lambda: all_found(archive, keys))
                os.kill(stopping.pid, signal.SIGCONT)
                until(lambda: archive.queue.depth().messages == 0)
    assert sum(counted.embedded()[key] for key in keys) <= len(keys) + THREADS * BATCH


@pytest.mark.rest
def test_the_encoder_goes_and_comes_back(
    folder: Path, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It is asked again, with growing pauses; no key becomes a dead letter for it."""
    place = tmp_path_factory.mktemp("coming")
    settings = folder / "archive.toml"
    (port,) = free_ports(1)  # which nobody who connects to anybody is given while it is gone
    with encoding(place, 3, "--http-port", str(port)) as coming:
        settings.write_text(settings.read_text().replace(encoder.url, coming.url))
        with open_archive_file(settings) as archive, filler(folder):
            archive.want("texts", ["before"])
            until(lambda: all_found(archive, ["before"]))
            coming.server.stop()
            archive.want("texts", ["while it is gone"])
            threading.Event().wait(1.0)
            assert archive.queue.depth().messages >= 1
            with encoding(place, 3, "--http-port", str(port)):
                until(lambda: all_found(archive, ["while it is gone"]))
            assert not list(archive.dead_letters.all())
