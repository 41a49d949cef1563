"""Messages of an embedder that is away go back to the queue's end where they are many: on each queue."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from headrace.archive.filling import retries_and_dead_letters
from headrace.archive.filling.filler import Filler
from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.miss_queue import wanted_of
from headrace.archive.model.archive_toml import archive_config
from headrace.storage.opening import open_queue, open_store
from headrace.storage.queues.queue import Depth, Message, Queue, Receiver
from tests.unit.archive.filling_parts import LengthEmbedder
from tests.waiting import until
from tools.services.kafka_server import Kafka

FILMS = [f"film {number}" for number in range(100)]
TEXTS = [f"text {number}" for number in range(300)]
MOST_ASIDE = 40


class Noting:
    """A queue that notes what is put back to its end."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self.put_back: Counter[str] = Counter()

    def publish(self, messages: Sequence[Message]) -> None:
        self._queue.publish(messages)
        with self._lock:
            self.put_back.update(one.key for one in map(wanted_of, messages) if one.turn)

    def receiver(self) -> Receiver:
        return self._queue.receiver()

    def depth(self) -> Depth:
        return self._queue.depth()

    def remove(self, keys: Collection[bytes]) -> bool:
        return self._queue.remove(keys)

    def close(self) -> None:
        self._queue.close()


@pytest.fixture(params=["memory", "lmdb", pytest.param("kafka", marks=pytest.mark.rest)])
def queue(request: pytest.FixtureRequest) -> dict[str, object]:
    """The settings of one."""
    if request.param != "kafka":
        return {"kind": request.param, "visibility_seconds": 60.0}
    server: Kafka = request.getfixturevalue("kafka_server")
    name = f"queue-{secrets.token_hex(8)}"
    own: dict[str, object] = {"kind": "kafka", "servers": [server.address], "topic": name, "group": name}
    return own | {"partitions": 4, "visibility_seconds": 60.0, "timeout_seconds": 30.0}


@pytest.fixture
def noting(queue: dict[str, object], tmp_path: Path) -> Iterator[tuple[Archive, Noting]]:
    space = {"dimension": 4}
    table = {
        "store": {"kind": "memory"},
        "queue": queue,
        "cache": {"absent_seconds": 0.01},
        "spaces": {"films": space | {"embedder": "well"}, "texts": space | {"embedder": "ill"}},
    }
    config = archive_config(table, "archive.toml", tmp_path)
    noted = Noting(open_queue(config.queue))
    embedders = {"well": LengthEmbedder("well"), "ill": LengthEmbedder("ill")}
    with Archive(config, open_store(config.store), noted, embedders.__getitem__) as archive:
        yield archive, noted


@pytest.mark.rest
def test_more_than_are_kept_aside_are_put_back_and_none_is_lost(
    noting: tuple[Archive, Noting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries_and_dead_letters, "_MOST_ASIDE", MOST_ASIDE)
    archive, queue = noting
    well, ill = LengthEmbedder("well"), LengthEmbedder("ill")
    ill.busy.set()
    archive.want("texts", TEXTS)
    archive.want("films", FILMS)
    # One thread: where a second one joins, Kafka may give a batch to both.
    filler = Filler(archive, {"films": [well], "texts": [ill]}, threads=1, batch=16)
    filler.start()
    try:
        until(lambda: bool(archive.lookup("films", FILMS).found.all()))
        until(lambda: len(queue.put_back) >= len(TEXTS) - MOST_ASIDE)
        assert not queue.put_back.keys() & set(FILMS)
        archive.forget("texts", TEXTS[:50])  # of which some are held, and some were put back
        ill.busy.clear()
        until(lambda: bool(archive.lookup("texts", TEXTS[50:]).found.all()))
        until(lambda: archive.queue.depth().messages == 0)
    finally:
        filler.stop()
    assert not ill.embedded.keys() & set(TEXTS[:50])
    assert set(ill.embedded.values()) == {1}
    assert not list(archive.dead_letters.all())
