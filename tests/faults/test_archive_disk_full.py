"""The disk under an archive's store and queue is full: lookups go on, nothing accepted is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.operations.open_archive import open_archive_file
from headrace.base.errors import Unavailable
from headrace.storage.queues.queue import Message
from tests.faults.archive_processes import BATCH, THREADS, all_found, encoding, filler
from tests.unit.archive.filling_parts import status_of
from tests.waiting import until

DIMENSION = 4000  # vectors that find no place in the gaps of a full file
KNOWN = [f"known {number}" for number in range(50)]


@pytest.fixture
def folder(small_disk: Path, tmp_path: Path) -> Path:
    """Settings of an archive on the small disk; its encoder's address is to be filled in."""
    (tmp_path / "archive.toml").write_text(
        f"""
        store = {{ kind = "lmdb", path = "{small_disk}/archive" }}
        queue = {{ kind = "lmdb", path = "{small_disk}/queue", visibility_seconds = 6.0 }}
        cache = {{ size_bytes = 65536, absent_seconds = 0.05, poll_seconds = 0.1 }}
        [spaces.texts]
        embedder = "counted"
        pending_seconds = 600
        [embedders.counted]
        kind = "model"
        model = "encoder"
        url = "ENCODER"
        """
    )
    return tmp_path


def fill_up(disk: Path, archive: Archive) -> None:
    """Leave no room on the disk, and put vectors until there is none in the store's file either."""
    with suppress(OSError), (disk / "rest").open("wb", buffering=0) as rest:
        for _ in range(1 << 20):
            rest.write(bytes(4096))
    vector = np.ones((1, DIMENSION))
    assert "the disk under the LMDB file is full" in refusal(
        lambda number: archive.put("texts", [f"more {number}"], vector)
    )


def refusal(call: Callable[[int], object]) -> str:
    """What is said when something is done once too often."""
    for number in range(10_000):
        try:
            call(number)
        except Unavailable as error:
            return error.message
    raise AssertionError("it was not refused")


def publish(archive: Archive, size: int, number: int) -> None:
    """Publish what is none of an archive's, and is dropped."""
    archive.queue.publish([Message(b"%d" % number, bytes(size))])


def status(folder: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "headrace", "archive", "status", "--json"]
    done = subprocess.run(
        [*command, "--archive", str(folder / "archive.toml")], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def test_an_archive_is_not_begun_on_a_full_disk(small_disk: Path) -> None:
    """In a process of its own: the system would kill it."""
    with suppress(OSError), (small_disk / "rest").open("wb", buffering=0) as rest:
        for _ in range(1 << 20):
            rest.write(bytes(4096))
    (small_disk.parent / "archive.toml").write_text(
        f'store = {{ kind = "lmdb", path = "{small_disk}/archive" }}\n[spaces.items]\ndimension = 3\n'
    )
    command = [sys.executable, "-m", "headrace", "archive", "status"]
    done = subprocess.run(
        [*command, "--archive", str(small_disk.parent / "archive.toml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done
    assert "the disk under the LMDB file is full" in done.stderr


def keys_until_refused(archive: Archive, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Look new keys up until the queue takes one no more; a filler beside may have made room for some."""
    keys: list[str] = []

    def is_refused() -> bool:
        keys.append(f"late {len(keys)}")
        archive.lookup("texts", keys[-1:])
        return "the queue does not accept missing keys" in caplog.text

    until(is_refused)
    return keys


@pytest.mark.rest
def test_a_full_disk_fails_no_lookup_and_loses_nothing(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, settings = tmp_path / "disk", tmp_path / "archive.toml"
    with encoding(tmp_path, DIMENSION) as encoder:
        settings.write_text(settings.read_text().replace("ENCODER", encoder.url))
        with open_archive_file(settings) as archive:
            archive.put("texts", KNOWN, np.array([[len(key), *[1] * (DIMENSION - 1)] for key in KNOWN]))
            wanted = [f"wanted {number}" for number in range(3 * BATCH)]
            archive.want("texts", wanted)
            fill_up(disk, archive)
            for kill in (True, False):
                with filler(folder) as process:
                    before = sum(encoder.embedded().values())
                    until(lambda before=before: sum(encoder.embedded().values()) > before)
                    for number in range(100):
                        _, found = archive.lookup("texts", [*KNOWN, wanted[0], f"new {number % 10}"])
                        assert found.tolist() == [True] * len(KNOWN) + [False] * 2
                    if kill:
                        continue
                    told = status(folder)
                    assert any("accepts no writes" in str(one) for one in told["warnings"]), told
                    for size in (100_000, 1000, 10):  # until there is no gap left
                        assert "No space left" in refusal(partial(publish, archive, size))
                    late = keys_until_refused(archive, caplog)
                    assert process.poll() is None
                    (disk / "rest").unlink()
                    for keys in (KNOWN, wanted, late):
                        until(lambda keys=keys: all_found(archive, keys))
                    until(lambda: archive.queue.depth().messages == 0)
                    until(lambda: not status_of(archive).warnings)
        times = encoder.embedded()
        assert sum(times[key] for key in wanted) <= len(wanted) + THREADS * BATCH
        assert all(times[key] == 1 for key in late)
