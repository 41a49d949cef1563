"""What is counted: totals never fall, new keys are new, and status tells of what is there."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.filling.backfill import Backfill
from headrace.archive.filling.filler import Filler
from headrace.archive.lookup import space_reader
from headrace.archive.lookup.archive import Archive
from headrace.archive.operations.status import SpaceStatus
from headrace.storage.opening import open_queue
from headrace.storage.settings import MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from tests.unit.archive.filling_parts import LengthEmbedder, open_parts, status_of
from tests.waiting import until


class Elsewhere(InMemoryStore):
    """A store in memory that is read in the background, as one of another machine is."""

    is_local = False


def test_the_missing_keys_of_a_store_elsewhere_never_become_fewer(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as made:
        config = made.config
    store = Elsewhere(MemoryStore())
    with Archive(config, store, open_queue(config.queue), lambda _: LengthEmbedder()) as archive:
        archive.put("texts", ["a"], np.ones((1, 4)))
        reader, counts = archive.reader("texts"), archive.counts["texts"]
        reader.forget_all()
        found = reader.begin(["a", "b"])
        assert counts.missing == 0
        wait(found.waits, 40)
        reader.end(found, 20.0)
        assert (counts.keys, counts.stored, counts.missing) == (2, 1, 1)
        until(lambda: reader.cache.count() == 1)  # it is kept a moment after it was read
        reader.begin(["a", "b"])  # the one is in memory, of the other it is known that there is none
        assert counts.cached == 1
        assert counts.missing <= 2


def test_missing_keys_of_a_store_of_this_machine_are_counted(tmp_path: Path) -> None:
    with open_parts(tmp_path, "lmdb") as archive:
        archive.lookup("texts", ["a", "b"])
        archive.lookup("texts", ["a", "b", "c"])
        assert archive.counts["texts"].missing == 5


def test_a_key_that_is_queued_again_is_not_new_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000
    monkeypatch.setattr(space_reader, "_monotonic", lambda: now)
    space = {"embedder": "lengths", "pending_seconds": 60.0}
    with open_parts(tmp_path, "memory", space, cache={"absent_seconds": 5.0}) as archive:
        counts = archive.counts["texts"]
        for again in range(3):
            archive.lookup("texts", ["key"])
            until(lambda: archive._publisher.waiting() == 0)  # the queue has it, and the key is marked
            assert (counts.new, counts.again) == (1, again)
            now += 59_999
            archive.lookup("texts", ["key"])  # it is still on its way
            assert (counts.new, counts.again) == (1, again)
            now += 1
        archive.lookup("texts", ["other"])
        assert counts.new == 2


def of_texts(archive: Archive) -> SpaceStatus:
    (space,) = status_of(archive).spaces
    return space


def test_a_process_that_has_ended_is_none(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as archive:
        archive.lookup("texts", ["a"] * 100)
        archive._reporter.report()
        assert of_texts(archive).processes == 1
        archive._reporter.report(is_over=True)
        assert of_texts(archive).processes == 0
        assert of_texts(archive).keys_per_second > 0


def test_a_version_that_waits_for_its_backfill_is_told(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as archive:
        archive.put("texts", ["film"], np.ones((1, 4)))
        assert not of_texts(archive).warnings
        filler = Filler(archive, {"texts": [LengthEmbedder("lengths-2")]})
        (warning,) = of_texts(archive).warnings
        assert warning.startswith("version 2 is of a newer encoder")
        assert "headrace archive backfill texts" in warning
        filler.start()
        try:
            assert Backfill(archive, "texts", 1, 2).run(lambda _: None, threading.Event())
        finally:
            filler.stop()
        assert not of_texts(archive).warnings  # somebody keeps the default where it is
