"""Copying and checking in one pass, and what a process without a keeper does not pay for."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.base import memory
from headrace.sealed_memory.copies import room_for
from headrace.sealed_memory.file_copying import (
    PIECE_BYTES,
    Content,
    NotCopied,
    Numbers,
    Refusal,
    kept_checksum,
    pieces,
    sealed_copy,
)

NUMBERS = np.arange(3 * PIECE_BYTES // 4, dtype=np.float32)
SIZE = NUMBERS.nbytes
SUM = hashlib.sha256(NUMBERS.tobytes()).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[io.FileIO]:
    (tmp_path / "numbers").write_bytes(NUMBERS.tobytes())
    with open(tmp_path / "numbers", "r+b", buffering=0) as opened:
        yield opened


def refusal(file: io.FileIO, content: Content) -> Refusal:
    with pytest.raises(NotCopied) as told:
        sealed_copy(file, content)
    return told.value.refusal


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (Content(SIZE, "0" * 64), Refusal("checksum")),
        (Content(SIZE + 4), Refusal("changed")),
        (Content(SIZE - 4), Refusal("changed")),
        (Content(SIZE - 4, None, Numbers("<f4", 16)), Refusal("changed")),
    ],
)
def test_unexpected_content_is_refused_with_the_reason(
    file: io.FileIO, content: Content, expected: Refusal
) -> None:
    assert refusal(file, content) == expected


@pytest.mark.parametrize("place", [0, PIECE_BYTES // 4 - 1, PIECE_BYTES // 4, len(NUMBERS) - 1])
@pytest.mark.parametrize("offset", [0, 16])
def test_the_number_that_is_not_finite_is_counted_from_the_first(
    file: io.FileIO, place: int, offset: int
) -> None:
    os.pwrite(file.fileno(), np.float32(-np.inf).tobytes(), 4 * place)
    if 4 * place < offset:
        sealed_copy(file, Content(SIZE, None, Numbers("<f4", offset)))
    else:
        found = refusal(file, Content(SIZE, None, Numbers("<f4", offset)))
        assert found == Refusal("number", place=place - offset // 4, number=-np.inf)


def test_a_file_that_changes_while_it_is_read_is_refused(file: io.FileIO) -> None:
    copying = pieces(file.fileno(), Content(SIZE))
    next(copying)
    os.pwrite(file.fileno(), b"!", SIZE - 1)
    os.utime(file.fileno(), ns=(1, 1))
    with pytest.raises(NotCopied) as told:
        list(copying)
    assert told.value.refusal == Refusal("changed")


def test_where_the_file_is_read_does_not_move(file: io.FileIO) -> None:
    file.seek(7)
    assert b"".join(map(bytes, pieces(file.fileno(), Content(SIZE, SUM)))) == NUMBERS.tobytes()
    assert file.tell() == 7


def test_copies_that_are_being_made_count_as_memory_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    with room_for(60) as first:
        with pytest.raises(OSError, match="takes 50 bytes of memory, and only 40 are"), room_for(50):
            pass
        first.copied(30)
        with room_for(50):
            pass
    with room_for(100):
        pass


def test_without_a_keeper_nothing_is_asked_nor_imported(file: io.FileIO) -> None:
    assert kept_checksum(file, 2**30, lambda: None) is None
    program = """if True:
        import sys
        import headrace.runtimes.onnx, headrace.ctr.files.arrays, headrace.versions.manifest
        print(sorted(name for name in sys.modules if name.startswith("headrace.sealed_memory.")))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['headrace.sealed_memory.copies', 'headrace.sealed_memory.file_copying']"
