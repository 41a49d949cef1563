"""Dead letters: poison is tried once, and what may be had later holds nobody up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.filling.encoder_calls import FillSources, Stop
from headrace.archive.filling.fill_batch import BatchFiller
from headrace.archive.filling.filler import Filler
from headrace.archive.filling.retries_and_dead_letters import ATTEMPTS
from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.dead_letter_records import PARTITION, DeadLetter, now
from headrace.archive.lookup.reports import FillCounts
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.oov import ENOUGH
from headrace.storage.opening import open_queue, open_store
from headrace.storage.stores.store import Item
from tests.unit.archive.filling_parts import LengthEmbedder, open_parts
from tests.waiting import until

TTL_SECONDS = 1000.0


@pytest.fixture(params=["memory", "lmdb"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    space = {"embedder": "lengths", "ttl_seconds": TTL_SECONDS}
    with open_parts(tmp_path, request.param, space, cache={"absent_seconds": 0.01}) as opened:
        yield opened


class Running:
    """A filler with one thread at work; stopped in the end."""

    def __init__(self, archive: Archive, embedder: LengthEmbedder, batch: int = 16) -> None:
        self._filler = Filler(archive, {"texts": [embedder]}, threads=1, batch=batch)

    def __enter__(self) -> Filler:
        self._filler.start()
        return self._filler

    def __exit__(self, *_: object) -> None:
        self._filler.stop()


def letter(key: str, *, is_final: bool, age_seconds: float = 0.0) -> DeadLetter:
    died = now() - age_seconds
    return DeadLetter(space="texts", version=1, key=key, reason="r", attempts=1, died=died, is_final=is_final)


def keys_of(archive: Archive) -> set[str]:
    return {one.key for one in archive.dead_letters.all()}


def queue_is_empty(archive: Archive) -> bool:
    return archive.queue.depth().messages == 0


def test_a_dead_letter_is_not_retried_when_its_key_is_wanted_again(archive: Archive) -> None:
    embedder = LengthEmbedder()
    with Running(archive, embedder):
        archive.want("texts", ["missing"])
        until(lambda: queue_is_empty(archive))
        (before,) = archive.dead_letters.all()
        assert before.is_final
        archive.want("texts", ["missing", "good"])
        until(lambda: queue_is_empty(archive))
        assert embedder.embedded == {"missing": 1, "good": 1}
        assert list(archive.dead_letters.all()) == [before]


def test_a_letter_keeps_a_key_from_being_tried_no_longer_than_a_vector_lives(archive: Archive) -> None:
    embedder = LengthEmbedder()
    old = letter("old", is_final=True, age_seconds=TTL_SECONDS + 10)
    young = letter("young", is_final=True, age_seconds=TTL_SECONDS - 100)
    archive.dead_letters.add([old, young, letter("busy then", is_final=False)])
    with Running(archive, embedder):
        archive.want("texts", ["old", "young", "busy then"])
        until(lambda: queue_is_empty(archive))
    assert embedder.embedded == {"old": 1, "busy then": 1}
    assert keys_of(archive) == {"young"}  # what has a vector now has no letter


@pytest.mark.parametrize("change", ["put", "invalidate", "forget"])
def test_a_letter_goes_when_its_key_has_a_vector_or_is_made_anew(archive: Archive, change: str) -> None:
    archive.dead_letters.add([letter("dead", is_final=True), letter("other", is_final=True)])
    if change == "put":
        archive.put("texts", ["dead", "new"], np.ones((2, 4)))
    else:
        getattr(archive, change)("texts", ["dead", "new"])
    assert keys_of(archive) == {"other"}


def test_an_encoder_that_fails_makes_letters_that_are_tried_again(archive: Archive) -> None:
    embedder = LengthEmbedder()
    with Running(archive, embedder):
        archive.want("texts", ["breaks"])
        until(lambda: queue_is_empty(archive))
        (dead,) = archive.dead_letters.all()
        assert not dead.is_final
        calls = embedder.calls
        archive.want("texts", ["breaks"])
        until(lambda: embedder.calls > calls)


def test_contents_that_may_come_later_delay_no_other_key(archive: Archive) -> None:
    embedder = LengthEmbedder()
    with Running(archive, embedder):
        archive.want("texts", ["never"])
        until(lambda: embedder.embedded["never"] == 1)
        archive.want("texts", ["film"])
        until(lambda: bool(archive.lookup("texts", ["film"]).found.all()))
        assert embedder.embedded["never"] < ATTEMPTS
    assert archive.queue.depth().messages == 1  # it was given back


def test_only_a_few_batches_of_later_contents_are_held(archive: Archive) -> None:
    embedder = LengthEmbedder()
    with Running(archive, embedder, batch=1):
        archive.want("texts", [f"never {number}" for number in range(9)])
        until(lambda: len(embedder.embedded) == 4 and max(embedder.embedded.values()) > 1)
        assert len(embedder.embedded) == 4
    assert archive.queue.depth().messages == 9


def test_a_damaged_letter_is_counted_and_keeps_no_other_from_being_read(archive: Archive) -> None:
    good = letter("good", is_final=False)
    archive.dead_letters.add([good])
    archive.store.put_many(PARTITION, [Item(b"a", b"{"), Item(b"z", b'{"space": 1}')])
    assert list(archive.dead_letters.all()) == [good]
    assert archive.dead_letters.damaged == 2
    archive.dead_letters.remove([good])
    assert not list(archive.dead_letters.all())


def test_each_space_has_its_own_time_to_take_a_mean(tmp_path: Path) -> None:
    space = {"embedder": "lengths", "oov": "mean"}
    table = {
        "store": {"kind": "memory"},
        "queue": {"kind": "memory"},
        "spaces": {"few": space, "many": space},
    }
    config = archive_config(table, "archive.toml", tmp_path)
    stores = open_store(config.store), open_queue(config.queue)
    with Archive(config, *stores, lambda _: LengthEmbedder()) as archive:
        counts = {name: FillCounts() for name in ("few", "many")}
        filler = BatchFiller(archive, FillSources(), counts, Stop())
        filler._keep_mean(archive.reader("few"), ENOUGH - 100)  # too few: it is tried again later
        archive.put("many", [f"film {number}" for number in range(ENOUGH)], np.ones((ENOUGH, 4)))
        filler._keep_mean(archive.reader("many"), ENOUGH)
        assert archive.catalog.read("many").versions[0].mean
        assert not archive.catalog.read("few").versions[0].mean
