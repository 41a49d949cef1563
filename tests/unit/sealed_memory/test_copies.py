"""Sealed copies: nobody can change them, whoever has their descriptor."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from contextlib import suppress

import numpy as np
import pytest

from headrace.sealed_memory.copies import SealedCopy

CONTENT = np.arange(4096, dtype=np.float32)


@pytest.fixture
def copy() -> SealedCopy:
    return SealedCopy.sealed(
        memoryview(CONTENT.tobytes())[start : start + 1000] for start in range(0, 16384, 1000)
    )


def test_a_copy_has_the_content_of_its_source(copy: SealedCopy) -> None:
    assert copy.size_bytes == 16384
    np.testing.assert_array_equal(copy.array(CONTENT.dtype, (4096,), 0), CONTENT)
    np.testing.assert_array_equal(copy.array(CONTENT.dtype, (2, 1000), 64), CONTENT[16:2016].reshape(2, -1))


def test_a_sealed_copy_cannot_be_written_truncated_or_extended(copy: SealedCopy) -> None:
    for change in (
        lambda: os.pwrite(copy.descriptor, b"x", 0),
        lambda: os.ftruncate(copy.descriptor, 10),
        lambda: os.ftruncate(copy.descriptor, 2**20),
        lambda: mmap.mmap(copy.descriptor, 16384, flags=mmap.MAP_SHARED),
        lambda: fcntl.fcntl(copy.descriptor, fcntl.F_ADD_SEALS, 0),
        lambda: os.close(os.open(f"/proc/self/fd/{copy.descriptor}", os.O_RDWR | os.O_TRUNC)),
    ):
        with pytest.raises(PermissionError):
            change()
    np.testing.assert_array_equal(copy.array(CONTENT.dtype, (4096,), 0), CONTENT)


def test_a_copy_is_sealed_once_its_pages_are_released() -> None:
    """A writable mapping keeps the kernel from sealing, as its own work on a page does for a moment."""
    ended: list[threading.Timer] = []

    def keep_busy(descriptor: int) -> None:
        mapped = mmap.mmap(descriptor, 16384, flags=mmap.MAP_SHARED)
        with pytest.raises(OSError, match="busy"):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        ended.append(threading.Timer(0.3, mapped.close))
        ended[0].start()

    copy = SealedCopy.sealed([memoryview(CONTENT.tobytes())], keep_busy)
    ended[0].join()
    with pytest.raises(PermissionError):
        os.pwrite(copy.descriptor, b"x", 0)


def test_pages_that_stay_mapped_for_writing_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sealed_memory.copies._BUSY_SECONDS", 0.2)
    held: list[mmap.mmap] = []
    with pytest.raises(OSError, match="busy"):
        SealedCopy.sealed(
            [memoryview(CONTENT.tobytes())],
            lambda descriptor: held.append(mmap.mmap(descriptor, 16384, flags=mmap.MAP_SHARED)),
        )
    held[0].close()


def test_another_process_maps_it_and_sees_that_it_is_sealed(copy: SealedCopy) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        seals = fcntl.fcntl(copy.descriptor, fcntl.F_GET_SEALS)
        mapped = mmap.mmap(copy.descriptor, 0, access=mmap.ACCESS_READ)
        good = seals & fcntl.F_SEAL_WRITE and seals & fcntl.F_SEAL_SHRINK and mapped[:] == CONTENT.tobytes()
        os.write(writing, b"good" if good else b"bad")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 10) == b"good"
    os.close(reading)


def test_a_copy_lives_as_long_as_its_arrays_and_then_closes_its_descriptor() -> None:
    copy = SealedCopy.sealed([memoryview(CONTENT.tobytes())])
    array = copy.array(CONTENT.dtype, (4096,), 0)
    part = array[10:20]
    memfd = os.fstat(copy.descriptor)
    del copy, array
    np.testing.assert_array_equal(part, CONTENT[10:20])
    assert is_open(memfd)
    del part
    assert not is_open(memfd)


def is_open(file: os.stat_result) -> bool:
    """Say whether a descriptor of this process refers to a file."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, by another thread
            if os.path.samestat(os.fstat(int(name)), file):
                return True
    return False
