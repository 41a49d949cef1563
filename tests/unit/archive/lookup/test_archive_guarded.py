"""What one caller, one key, one message or one record does wrong stays with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.archive.embedders.embedder import Embedded
from headrace.archive.filling.filler import Filler
from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.miss_queue import Publisher, Wanted, wanted_of
from headrace.archive.lookup.reports import Reporter
from headrace.archive.model.archive_toml import ArchiveConfig, SpaceSettings, archive_config
from headrace.archive.model.catalog import SpaceVersion
from headrace.archive.model.oov import oov_vector
from headrace.base.errors import ConfigError, HeadraceError, InvalidRequest, Unavailable
from headrace.storage.opening import open_queue, open_store
from headrace.storage.queues.memory import MemoryMessages
from headrace.storage.queues.queue import Message
from headrace.storage.settings import MemoryQueue, MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from tests.unit.archive.filling_parts import LengthEmbedder, open_parts, status_of, vector_of
from tests.waiting import until

TWO_SPACES = {"films": {"embedder": "lengths"}, "posters": {"embedder": "lengths"}}


def of_spaces(folder: Path, spaces: dict[str, object], **settings: object) -> Archive:
    table = {"store": {"kind": "memory"}, "queue": {"kind": "memory"}, "spaces": spaces, **settings}
    config = archive_config(table, "archive.toml", folder)
    return Archive(config, open_store(config.store), open_queue(config.queue), lambda _: LengthEmbedder())


def test_a_read_only_output_array_is_refused(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as archive:
        archive.put("texts", ["a"], np.ones((1, 4)))
        out = np.frombuffer(bytes(16), np.float32).reshape(1, 4)
        with pytest.raises(InvalidRequest, match=r"out: expected a writable C-contiguous array of .*, got"):
            archive.lookup("texts", ["a"], out=out)
        assert not out.any()


def test_forgetting_a_key_in_one_space_leaves_it_in_others(tmp_path: Path) -> None:
    with of_spaces(tmp_path, TWO_SPACES) as archive:
        archive.lookup("films", ["Heat"])
        archive.lookup("posters", ["Heat"])
        until(lambda: archive.queue.depth().messages == 2)
        archive.forget("films", ["Heat"])
        (left,) = archive.queue.receiver().receive(10, 5.0)
        assert wanted_of(left.message).space == "posters"


@pytest.mark.parametrize("keys", [["Heat", 1], ["Heat", "\ud800"], ["Heat", ""]])
def test_nothing_is_forgotten_where_one_key_is_none(tmp_path: Path, keys: list[str]) -> None:
    with open_parts(tmp_path, "memory") as archive:
        archive.put("texts", ["Heat"], np.ones((1, 4)))
        with pytest.raises(InvalidRequest, match=r"keys\[1\]: expected"):
            archive.forget("texts", keys)
        assert archive.lookup("texts", ["Heat"]).found.all()


class TooLargeNumbers(LengthEmbedder):
    def embed(self, contents: Sequence[bytes]) -> Embedded:
        embedded = super().embed(contents)
        for place, content in enumerate(contents):
            if content == b"huge":
                embedded.vectors[place] = 70_000.0
        return embedded


def test_a_vector_that_float16_cannot_be_is_a_dead_letter_alone(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory", {"embedder": "lengths", "dtype": "float16"}) as archive:
        filler = Filler(archive, {"texts": [TooLargeNumbers()]})
        filler.start()
        archive.want("texts", ["good", "huge", "also good"])
        until(lambda: bool(archive.lookup("texts", ["good", "also good"]).found.all()))
        until(lambda: archive.queue.depth().messages == 0)
        filler.stop()
        (letter,) = archive.dead_letters.all()
        assert letter.key == "huge"
        assert letter.reason == "the encoder returned a vector with a number too large for float16"


class Talkative(LengthEmbedder):
    def embed(self, contents: Sequence[bytes]) -> Embedded:
        raise HeadraceError("x" * 5000)


def test_a_reason_is_kept_short(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as archive:
        filler = Filler(archive, {"texts": [Talkative()]})
        filler.start()
        archive.want("texts", ["one"])
        until(lambda: len(list(archive.dead_letters.all())) == 1)
        filler.stop()
        (letter,) = archive.dead_letters.all()
        assert len(letter.reason) < 3000


def test_a_filler_loses_nothing_that_it_cannot_make(tmp_path: Path) -> None:
    with of_spaces(tmp_path, TWO_SPACES) as archive:
        filler = Filler(archive, {"films": [LengthEmbedder()]})
        filler.start()
        archive.want("films", ["Heat"])
        archive.want("posters", ["Heat"])
        until(lambda: archive.queue.depth().messages == 0)
        filler.stop()
        (letter,) = archive.dead_letters.all()
        assert (letter.space, letter.key) == ("posters", "Heat")
        assert "it has no embedder of this space" in letter.reason


def test_dead_letters_of_two_versions_are_two(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as archive:
        filler = Filler(archive, {"texts": [LengthEmbedder(), LengthEmbedder("lengths-2")]})
        filler.start()
        archive.want("texts", ["missing"])
        until(lambda: len(list(archive.dead_letters.all())) == 2)
        filler.stop()
        assert {one.version for one in archive.dead_letters.all()} == {1, 2}
        archive.forget("texts", ["missing"])
        assert not list(archive.dead_letters.all())


def test_a_key_that_another_process_forgets_is_forgotten_here_whatever_is_done_here(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory", cache={"poll_seconds": 3600.0}) as one:
        other = Archive(one.config, one.store, one.queue)
        one.put("texts", ["private", "else"], np.ones((2, 4)))
        assert other.lookup("texts", ["private"]).found.all()
        one.forget("texts", ["private"])
        other.invalidate("texts", ["else"])  # reads the record before the next poll does
        assert not other.lookup("texts", ["private"]).found.any()
        other._closed.set()
        other._publisher.close()


@pytest.mark.parametrize("mean", ["AAAA", "no base64", ""])
def test_a_damaged_mean_is_no_look_into_memory(mean: str) -> None:
    version = SpaceVersion(
        number=1, embedder="e", fingerprint="f", dimension=64, dtype="float16", created=1.0, mean=mean
    )
    if mean:
        with pytest.raises(ConfigError, match="the stored mean of version 1 is damaged"):
            oov_vector("mean", version)
    else:
        assert oov_vector("mean", version).shape == (64,)


@pytest.mark.parametrize("wrong", [{"dimension": -1}, {"dimension": 2**40}, {"dimension": 0}, {"dtype": "x"}])
def test_a_record_of_no_version_is_damaged(tmp_path: Path, wrong: dict[str, object]) -> None:
    with open_parts(tmp_path, "memory") as archive:
        record = msgspec.json.decode(archive.store.read("space/texts") or b"")
        record["versions"][0] |= wrong
        archive.store.swap("space/texts", archive.store.read("space/texts"), msgspec.json.encode(record))
        with pytest.raises(HeadraceError, match="the store's record of the space 'texts' is damaged"):
            archive.catalog.read("texts")


def test_texts_of_numpy_are_texts(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as archive:
        archive.lookup("texts", [*np.array(["a", "b"]), "c"])
        until(lambda: archive.queue.depth().messages == 3)


def test_a_nearly_full_queue_takes_the_keys_that_fit(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory", queue={"kind": "memory", "max_messages": 100}) as archive:
        archive.lookup("texts", [f"film {number}" for number in range(200)])
        until(lambda: archive.queue.depth().messages == 100)


def test_a_message_without_a_key_is_none_of_ours() -> None:
    with pytest.raises(HeadraceError, match="names no key"):
        wanted_of(Message(b"k", Wanted("films", 1, "").message().body))


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    first = open_parts(tmp_path, "lmdb")
    with open_parts(tmp_path, "lmdb") as second:
        first.close()
        first.close()
        second.put("texts", ["a"], np.ones((1, 4)))
        second.reader("texts").forget_all()
        assert second.lookup("texts", ["a"]).found.all()


class FarStore(InMemoryStore):
    """A store that is elsewhere: each read takes a few milliseconds."""

    is_local = False

    def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        time.sleep(0.005)
        return super().get_many(partition, keys, missing)


def test_short_timeouts_of_callers_do_not_open_the_breaker(tmp_path: Path) -> None:
    table = {"queue": {"kind": "memory"}, "spaces": {"texts": {"dimension": 4}}}
    config = archive_config(table, "archive.toml", tmp_path)
    store = FarStore(MemoryStore())
    with Archive(config, store, MemoryMessages(config.queue)) as archive:
        archive.put("texts", ["a"], np.ones((1, 4)))
        for _ in range(30):  # how long reads take is known
            archive.reader("texts").forget_all()
            assert archive.lookup("texts", ["a"], timeout_seconds=20.0).found.all()
        for _ in range(50):
            archive.reader("texts").forget_all()
            archive.lookup("texts", ["a"], timeout_seconds=1e-6)
        assert archive._reads is not None
        assert not archive._reads.breaker.is_open
        archive.reader("texts").forget_all()
        until(lambda: bool(archive.lookup("texts", ["a"]).found.all()))  # a read may take a moment longer


def test_a_lookup_does_not_bring_back_what_is_forgotten_meanwhile(tmp_path: Path) -> None:
    """Threads look up without a pause; after each round of forgetting, nothing of it is in memory."""
    with open_parts(tmp_path, "memory", {"dimension": 4}) as archive:
        keys = [f"film {number}" for number in range(50)]
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                archive.lookup("texts", keys)

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            archive.put("texts", keys, np.ones((50, 4)))
            archive.forget("texts", keys)
            assert not archive.lookup("texts", keys).found.any()
        done.set()
        for thread in threads:
            thread.join()
        assert not archive.lookup("texts", keys).found.any()


def test_the_vectors_of_good_keys_stay_right(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as archive:
        filler = Filler(archive, {"texts": [LengthEmbedder()]})
        filler.start()
        archive.want("texts", ["good"])
        until(lambda: bool(archive.lookup("texts", ["good"]).found.all()))
        filler.stop()
        np.testing.assert_array_equal(archive.lookup("texts", ["good"]).vectors, [vector_of("good")])


class NotYet(InMemoryStore):
    """A store that is read, and takes nothing yet."""

    def create(self, partition: str) -> None:
        raise Unavailable("no keyspace yet")


def test_before_the_first_version_is_made_nothing_is_said_to_be_missing(tmp_path: Path) -> None:
    table = {
        "store": {"kind": "memory"},
        "queue": {"kind": "memory"},
        "spaces": TWO_SPACES | {"puts": {"dimension": 2}},
    }
    config = archive_config(table, "archive.toml", tmp_path)
    queue = open_queue(config.queue)
    with Archive(config, NotYet(MemoryStore()), queue, lambda _: LengthEmbedder()) as archive:
        assert archive.lookup("puts", ["a"]).vectors.tolist() == [[0, 0]]
        for space in ("puts", "films"):
            with pytest.raises(Unavailable, match="not known yet"):
                archive.put(space, ["a"], np.ones((1, 2)))
        with pytest.raises(Unavailable, match="not known yet"):
            archive.lookup("films", ["a"])


def test_status_tells_what_processes_wait_for(tmp_path: Path) -> None:
    with of_spaces(tmp_path, TWO_SPACES) as archive:
        for troubles in ({"a thread": "filling waits: no room", "another": "filling waits: no room"}, {}):
            Reporter(archive.store, archive.counts, archive.fills, dict(troubles)).report()
        assert status_of(archive).warnings == ("1 process waits: filling waits: no room",)


def test_a_full_queue_is_a_trouble_as_long_as_there_are_missing_keys(tmp_path: Path) -> None:
    with of_spaces(tmp_path, TWO_SPACES, queue={"kind": "memory", "max_messages": 1}) as archive:
        archive.lookup("films", ["one", "two", "three"])
        told: list[str] = []
        until(lambda: told.extend(archive.troubles.copy().values()) or told)
        assert told[0].startswith("the queue does not accept missing keys: the queue holds 1 of")
        until(lambda: not archive.troubles)


def test_the_end_of_an_outage_of_the_queue_is_logged_with_its_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Away(MemoryMessages):
        def publish(self, messages: Sequence[Message]) -> None:
            asked.append(len(messages))
            if len(asked) < 3:
                raise Unavailable("no route")
            super().publish(messages)

    asked: list[int] = []
    publisher = Publisher(Away(MemoryQueue()), lambda _: None, {})
    for number in (1, 2, 3):
        publisher.want([Wanted("films", 1, f"film {number}")])
        until(lambda: len(asked) == number)  # noqa: B023 - called at once
    until(lambda: publisher.published == 1)
    publisher.close()
    said = {record.message: vars(record) for record in caplog.records}
    assert len(said) == 2
    assert said["the queue accepts missing keys again"]["seconds"] > 0.5  # pauses of 0.2 s and 0.4 s


def test_a_store_of_this_machine_that_cannot_be_read_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its keys are answered as missing, as a lookup does not fail: nobody would see it otherwise."""

    class Cut(InMemoryStore):
        def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
            if partition.startswith("items"):
                raise Unavailable("the file was cut")
            return super().get_many(partition, keys, missing)

    config = ArchiveConfig(
        store=MemoryStore(), queue=MemoryQueue(), spaces={"items": SpaceSettings(dimension=2)}
    )
    with Archive(config, Cut(MemoryStore()), open_queue(config.queue)) as archive:
        for _ in range(3):
            assert not archive.lookup("items", ["a"]).found.any()
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert said == ["the store cannot be read, so keys of items are missing: the file was cut"]
