"""A backfill that is run again: it does what is left, and refuses what makes no sense."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.filling.backfill import Backfill
from headrace.archive.filling.filler import Filler
from headrace.archive.lookup.archive import Archive
from headrace.base.errors import Conflict, FailedPrecondition
from tests.unit.archive.filling_parts import LengthEmbedder, open_parts


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with open_parts(tmp_path, "memory") as opened:
        yield opened


@contextmanager
def filling(archive: Archive, embedder: LengthEmbedder) -> Iterator[None]:
    filler = Filler(archive, {"texts": [embedder]}, threads=2, batch=16)
    filler.start()
    try:
        yield
    finally:
        filler.stop()


def put(archive: Archive, first: int, count: int) -> list[str]:
    keys = [f"film {number}" for number in range(first, first + count)]
    archive.put("texts", keys, np.ones((count, 4)))
    return keys


def test_keys_that_came_since_a_backfill_was_done_are_filled_by_the_next(archive: Archive) -> None:
    keys, newer = put(archive, 0, 20), LengthEmbedder("lengths-2")
    with filling(archive, newer):
        assert Backfill(archive, "texts", 1, 2).run(lambda _: None, threading.Event())
        keys += put(archive, 20, 5)
        again = Backfill(archive, "texts", 1, 2)
        assert again.run(lambda _: None, threading.Event())
    assert archive.lookup("texts", keys, version=2).found.all()
    assert again.position.keys == 25
    assert max(newer.embedded.values()) == 1


def test_a_backfill_that_goes_on_counts_each_key_once(archive: Archive) -> None:
    put(archive, 0, 2600)
    stopping, told = threading.Event(), list[int]()
    with filling(archive, LengthEmbedder("lengths-2")):
        Backfill(archive, "texts", 1, 2).run(lambda done: done and stopping.set(), stopping)
        rest = Backfill(archive, "texts", 1, 2)
        before = rest.position.keys
        assert rest.run(told.append, threading.Event())
    assert 0 < before <= told[0]
    assert rest.position.keys == told[-1] == 2600


def test_the_default_stays_until_all_is_done(archive: Archive) -> None:
    put(archive, 0, 3)
    archive.add_version("texts", LengthEmbedder("lengths-2"))
    with pytest.raises(
        FailedPrecondition, match="the backfill is not complete; the default version is unchanged"
    ):
        Backfill(archive, "texts", 1, 2).make_default()
    assert archive.record("texts").default == 1
    with pytest.raises(FailedPrecondition, match="cannot be filled from itself"):
        Backfill(archive, "texts", 1, 1)


def test_a_concurrent_run_of_the_same_backfill_is_a_conflict(archive: Archive) -> None:
    put(archive, 0, 20)
    with filling(archive, LengthEmbedder("lengths-2")):
        first, second = (Backfill(archive, "texts", 1, 2) for _ in range(2))
        assert first.run(lambda _: None, threading.Event())
        with pytest.raises(Conflict, match="another process runs the backfill of the space 'texts'"):
            second.run(lambda _: None, threading.Event())
    first.make_default()
    assert archive.catalog.read("texts").default == 2
