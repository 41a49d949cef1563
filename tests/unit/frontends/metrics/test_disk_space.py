"""How full disks are: what is asked, what is told of it, and what a file system that hangs holds up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.config import ServerConfig
from headrace.config.server import server_config
from headrace.frontends.metrics import disk_space
from headrace.frontends.metrics.disk_space import DiskSpace, free_share, watched
from headrace.storage.settings import KafkaQueue, LmdbStore
from tests.waiting import until

MODELS = Path("/models")


def system(blocks: int, free_blocks: int, files: int, free_files: int) -> os.statvfs_result:
    """What a file system of so many blocks and files says."""
    return os.statvfs_result((4096, 4096, blocks, blocks, free_blocks, files, files, free_files, 0, 255))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (system(100, 25, 0, 0), 0.25),  # of btrfs: it has no number of files
        (system(100, 25, 100, 50), 0.25),
        (system(100, 50, 100, 10), 0.1),
        (system(100, 0, 100, 100), 0.0),
        (system(0, 0, 0, 0), None),
    ],
)
def test_what_is_scarcer_counts(said: os.statvfs_result, expected: float | None) -> None:
    assert free_share(said) == expected


CONFIGS: list[tuple[Path | None, dict[str, object], dict[str, tuple[Path, ...]]]] = [
    (MODELS, {}, {"models": (MODELS,)}),
    (None, {}, {}),
    (None, {"models": {"a": {"path": "/other/a"}, "b": {}}}, {"models": (Path("/other/a"),)}),
    (
        MODELS,
        {"access_log": {"path": "/logs/access"}, "audit": {"file": "/safe/audit"}},
        {"models": (MODELS,), "access_log": (Path("/logs"),), "audit_log": (Path("/safe"),)},
    ),
    (MODELS, {"access_log": {"path": "-"}}, {"models": (MODELS,)}),
]


@pytest.mark.parametrize(("models", "settings", "expected"), CONFIGS)
def test_what_is_asked_is_where_the_server_reads_and_writes(
    models: Path | None, settings: dict[str, object], expected: dict[str, tuple[Path, ...]]
) -> None:
    config = server_config(settings, "settings", Path("/"))
    assert watched(models, config, {}) == expected


def test_of_an_archive_what_has_a_path_is_on_a_disk() -> None:
    parts = {"store": LmdbStore(path=Path("/archive/store")), "queue": KafkaQueue(servers=("one:9092",))}
    assert watched(None, ServerConfig(), parts) == {"archive_store": (Path("/archive/store"),)}


def told(space: DiskSpace) -> dict[str, float]:
    return {one.labels["of"]: one.value for metric in space.collect() for one in metric.samples}


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A path whose file system does not answer, as one of NFS may not."""
    path, answered, asked = tmp_path / "hangs", threading.Event(), os.statvfs

    def statvfs(one: Path) -> os.statvfs_result:
        if one == path:
            answered.wait(120)
        return asked(one)

    monkeypatch.setattr(os, "statvfs", statvfs)
    yield path
    answered.set()


def test_a_file_system_that_hangs_holds_up_no_scrape_and_no_other(hanging: Path, tmp_path: Path) -> None:
    space = DiskSpace({"models": (tmp_path,), "audit_log": (hanging,), "access_log": (tmp_path / "away",)})
    before = set(threading.enumerate())  # some of which may be ending

    def asking() -> int:
        return sum(one.name.startswith("disk space of ") for one in set(threading.enumerate()) - before)

    told(space)
    assert asking() == 3
    until(lambda: set(told(space)) == {"models"})
    assert 0 <= told(space)["models"] <= 1
    space.close()
    until(lambda: asking() == 1)  # but for the one that hangs


def test_what_is_old_is_not_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    space = DiskSpace({"models": (tmp_path,)})
    until(lambda: set(told(space)) == {"models"})
    monkeypatch.setattr(disk_space, "_BELIEVED_SECONDS", -1.0)
    assert told(space) == {}
    space.close()
