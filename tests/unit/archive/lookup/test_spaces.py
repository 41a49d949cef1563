"""The spaces of a process: what is in memory stays there when something else of a space changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.catalog import with_default
from headrace.archive.model.oov import ENOUGH, keep_mean
from headrace.storage.opening import open_queue, open_store
from tests.unit.archive.filling_parts import LengthEmbedder, open_parts
from tests.waiting import until


def test_a_new_version_or_default_or_mean_empties_no_cache_of_another(tmp_path: Path) -> None:
    space = {"embedder": "lengths", "oov": "mean"}
    with open_parts(tmp_path, "memory", space, cache={"poll_seconds": 0.02}) as archive:
        keys = [f"film {number}" for number in range(ENOUGH)]
        archive.put("texts", keys, np.ones((ENOUGH, 4)))
        archive.lookup("texts", keys)
        counts = archive.counts["texts"]

        def are_in_memory() -> bool:
            before = counts.stored
            assert archive.lookup("texts", keys, version=1).found.all()
            return counts.stored == before

        assert are_in_memory()
        archive.add_version("texts", LengthEmbedder("lengths-2"))
        assert are_in_memory()
        assert keep_mean(archive.store, archive.catalog, "texts", archive.reader("texts", 1).version)
        until(lambda: bool(archive.lookup("texts", ["none"]).vectors.all()))
        assert are_in_memory()
        archive.catalog.change("texts", lambda record: with_default(record, 2, 1.0))
        until(lambda: archive.lookup("texts", ["none"]).version == 2)
        assert archive.reader("texts", 2).version.is_full
        assert are_in_memory()


def test_spaces_that_are_not_known_for_one_reason_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = {"kind": "redis", "address": "127.0.0.1:1"}
    table = {"store": store, "spaces": {"films": {"dimension": 2}, "texts": {"dimension": 2}}}
    config = archive_config(table | {"queue": {"kind": "memory"}}, "archive.toml", tmp_path)
    with Archive(config, open_store(config.store), open_queue(config.queue)):
        said = [line for line in caplog.messages if "known yet" in line]
    assert len(said) == 1
    assert said[0].startswith("the spaces films, texts are not known yet: ")


def test_many_versions_have_no_more_memory_than_twice_the_spaces(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory", cache={"size_bytes": 2**20}) as archive:
        for number in range(2, 12):
            archive.add_version("texts", LengthEmbedder(f"lengths-{number}"))
            readers = [archive.reader("texts", one.number) for one in archive.record("texts").versions]
            assert len(readers) == number
            assert sum(reader.cache_bytes for reader in readers) <= 2 * 2**20
