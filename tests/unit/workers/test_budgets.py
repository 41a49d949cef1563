"""One worker's part of the limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.archive.model.archive_toml import ArchiveConfig, CacheSettings
from headrace.base import cpus
from headrace.base.errors import ConfigError
from headrace.config import CachePolicy, Limits, ModelConfig, ServerConfig
from headrace.storage.queues.queue_settings import MemoryQueue
from headrace.storage.stores.store_settings import MemoryStore
from headrace.workers import budgets
from headrace.workers.messages import Begin, decoded, encoded

MIB = 2**20


@pytest.mark.parametrize(
    ("inflight", "connections", "workers", "expected"),
    [
        (512 * MIB, 0, 2, (256 * MIB, 0)),
        (512 * MIB, 1000, 3, (512 * MIB // 3, 334)),
        (512 * MIB, 1, 4, (128 * MIB, 1)),
        (512 * MIB, 0, 64, (64 * MIB, 0)),  # the largest message fits
    ],
)
def test_a_workers_limits(inflight: int, connections: int, workers: int, expected: tuple[int, int]) -> None:
    config = ServerConfig(
        workers=workers, limits=Limits(max_inflight_bytes=inflight, max_connections=connections)
    )
    limits = budgets.of_server(config, workers).limits
    assert (limits.max_inflight_bytes, limits.max_connections) == expected


@pytest.mark.parametrize(("size", "workers", "expected"), [(0, 4, 0), (MIB, 4, MIB // 4), (2**17, 4, 2**16)])
def test_a_workers_prediction_cache(size: int, workers: int, expected: int) -> None:
    config = ModelConfig(cache=CachePolicy(size_bytes=size))
    assert budgets.of_model(config, workers).cache.size_bytes == expected


@pytest.mark.parametrize(
    ("fill", "fills", "expected"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_workers_part_of_an_archive(fill: bool, fills: bool, expected: bool) -> None:
    config = ArchiveConfig(cache=CacheSettings(size_bytes=8 * MIB), fill=fill)
    part = budgets.of_archive(config, 4, fills=fills)
    assert (part.cache.size_bytes, part.fill) == (2 * MIB, expected)


@pytest.mark.parametrize(
    ("config", "name"),
    [(ArchiveConfig(store=MemoryStore()), "store"), (ArchiveConfig(queue=MemoryQueue()), "queue")],
)
def test_an_archive_of_one_process_is_refused(config: ArchiveConfig, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}.kind: expected one that processes can share"):
        budgets.of_archive(config, 2, fills=True)


def test_processors_are_divided() -> None:
    alone = cpus.available()
    try:
        cpus.divide_by(2)
        assert cpus.available() == max(1, alone // 2)
        cpus.divide_by(1000)
        assert cpus.available() == 1
    finally:
        cpus.divide_by(1)
    assert cpus.available() == alone


def test_settings_survive_the_way_to_a_worker() -> None:
    config = ServerConfig(archive=Path("archive.toml"), workers="auto")
    begin = Begin(1, Path("models"), config, (4, 5), 2, True, False, 1.5, False, True, 6)
    assert decoded(encoded(begin)) == begin
