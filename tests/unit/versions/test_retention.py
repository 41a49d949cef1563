"""Which versions go, and that they go whole."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from headrace.ctr.files.arrays import load_array, write_array
from headrace.versions.retention import delete_versions, hide_versions, sweep, versions_to_delete

WHOLE = dict.fromkeys(range(1, 8))


@pytest.mark.parametrize(
    ("versions", "keep", "named", "going"),
    [
        ({}, 3, (), []),
        (WHOLE, 3, (), [1, 2, 3, 4]),
        (WHOLE, 0, (), []),
        (WHOLE, 100, (), []),
        (WHOLE, 1, (2, 5), [1, 3, 4, 6]),
        (WHOLE, 2, (99,), [1, 2, 3, 4, 5]),
        ({1: None, 2: 1, 3: 1, 4: 1}, 1, (), [2, 3]),
        ({1: None, 2: 1, 3: None, 4: 3}, 2, (), [1, 2]),
        ({1: None, 2: 1, 3: None, 4: 3}, 1, (2,), []),
        ({2: 1, 3: None}, 1, (), [2]),
    ],
)
def test_the_newest_the_named_and_their_bases_stay(
    versions: dict[int, int | None], keep: int, named: tuple[int, ...], going: list[int]
) -> None:
    assert versions_to_delete(versions, keep, named) == going


def test_a_loaded_version_can_be_read_after_it_was_deleted(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "1").mkdir()
    content = np.arange(2**20, dtype=np.float32)
    write_array(tmp_path / "1/a.npy", content)
    mapped = load_array(tmp_path / "1/a.npy", ("float32", (2**20,)))
    assert delete_versions(tmp_path, [1, 2]) == [1]
    assert not list(tmp_path.iterdir())
    np.testing.assert_array_equal(mapped, content)


def test_of_a_version_that_is_a_link_only_the_link_goes(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "2").symlink_to(tmp_path / "elsewhere")
    assert delete_versions(tmp_path, [2]) == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_a_hidden_link_that_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").touch()
    (tmp_path / "7").symlink_to(tmp_path / "elsewhere")
    assert list(hide_versions(tmp_path, [7])) == [7]
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    assert (tmp_path / "elsewhere/file").exists()


def age(path: Path) -> None:
    os.utime(path, (0, 0))


def test_only_what_nobody_writes_to_is_swept(tmp_path: Path) -> None:
    names = (
        ".deleting-3-abc",
        ".publishing-1-dead",
        ".publishing-2-alive",
        ".publishing-3-young",
        ".other",
        "1",
    )
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        if "young" not in name:
            age(tmp_path / name)
    descriptor = os.open(tmp_path / ".publishing-2-alive", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        sweep(tmp_path)
    finally:
        os.close(descriptor)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".other",
        ".publishing-2-alive",
        ".publishing-3-young",
        "1",
    ]
