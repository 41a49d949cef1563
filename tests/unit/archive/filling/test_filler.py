"""Fillers: each key is embedded once, and what cannot be is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.filling import retries_and_dead_letters
from headrace.archive.filling.backfill import PAGE, Backfill, Pace
from headrace.archive.filling.filler import Filler
from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.miss_queue import Wanted
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.catalog import partition
from headrace.archive.model.columns import Column
from headrace.archive.model.keys import all_stored
from headrace.archive.model.oov import ENOUGH
from headrace.storage.opening import open_queue, open_store
from headrace.storage.queues.queue import Message
from tests.unit.archive.filling_parts import LengthEmbedder, open_parts, status_of, vector_of
from tests.waiting import until

TEXTS = [f"text {number}" for number in range(200)]


@pytest.fixture(params=["memory", "lmdb"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    space = {"embedder": "lengths"}
    with open_parts(tmp_path, request.param, space, cache={"absent_seconds": 0.01}) as opened:
        yield opened


class Running:
    """A filler at work; stopped in the end."""

    def __init__(self, archive: Archive, *embedders: LengthEmbedder, threads: int = 2) -> None:
        self._filler = Filler(archive, {"texts": embedders}, threads=threads, batch=16)

    def __enter__(self) -> Filler:
        self._filler.start()
        return self._filler

    def __exit__(self, *_: object) -> None:
        self._filler.stop()


def all_found(archive: Archive, keys: Sequence[str]) -> bool:
    return bool(archive.lookup("texts", keys).found.all())


def test_missed_keys_are_embedded_once_and_found_later(archive: Archive) -> None:
    embedder = LengthEmbedder()
    keys = [f"film {number}" for number in range(200)]
    with Running(archive, embedder, threads=3) as filler:
        until(lambda: all_found(archive, keys))
        vectors, _ = archive.lookup("texts", keys)
        np.testing.assert_array_equal(vectors, [vector_of(key) for key in keys])
        until(lambda: archive.queue.depth().messages == 0)
        assert filler.counts["texts"].filled == 200
    assert set(embedder.embedded.values()) == {1}


def test_a_thousand_misses_at_a_time_of_one_key_are_one_embedding(archive: Archive) -> None:
    embedder = LengthEmbedder()
    together = threading.Barrier(20)

    def miss() -> None:
        together.wait()
        for _ in range(50):
            archive.lookup("texts", ["one"])

    threads = [threading.Thread(target=miss) for _ in range(20)]
    with Running(archive, embedder):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: all_found(archive, ["one"]))
        until(lambda: archive.queue.depth().messages == 0)
    assert embedder.embedded == {"one": 1}


def test_keys_that_cannot_be_embedded_become_dead_letters_and_fail_no_other(archive: Archive) -> None:
    good = [f"good {number}" for number in range(10)]
    bad = ["missing", "nan", "breaks"]
    with Running(archive, LengthEmbedder()) as filler:
        archive.want("texts", [*good, *bad])
        until(lambda: all_found(archive, good) and len(list(archive.dead_letters.all())) == 3)
        until(lambda: archive.queue.depth().messages == 0)  # acknowledged after they were counted
        assert filler.counts["texts"].dead == 3
    reasons = {one.key: one.reason for one in archive.dead_letters.all("texts")}
    assert reasons == {
        "missing": "no such thing: missing",
        "nan": "the encoder returned a vector with NaN or infinity",
        "breaks": "the encoder failed: the encoder cannot stand this",
    }
    assert archive.queue.depth().messages == 0


def test_temporary_failures_are_retried(archive: Archive) -> None:
    embedder = LengthEmbedder()
    with Running(archive, embedder):
        archive.want("texts", ["flaky", "good"])
        until(lambda: all_found(archive, ["flaky", "good"]))
    assert embedder.embedded["good"] == 1
    assert embedder.embedded["flaky"] == 3


@pytest.mark.rest
def test_an_encoder_that_is_starting_is_waited_for(archive: Archive) -> None:
    embedder = LengthEmbedder()
    embedder.busy.set()
    with Running(archive, embedder):
        archive.want("texts", ["film"])
        until(lambda: embedder.calls >= 2)
        assert archive.queue.depth().messages == 1
        embedder.busy.clear()
        until(lambda: all_found(archive, ["film"]))


def test_a_forgotten_key_stored_by_a_killed_filler_is_removed_by_the_next_one(archive: Archive) -> None:
    archive.want("texts", ["Heat"])
    dying = archive.queue.receiver()
    assert len(dying.receive(1, 20.0)) == 1
    archive.forget("texts", ["Heat"])
    archive.put("texts", ["Heat"], np.ones((1, 4)))  # what it stores in the midst of that
    dying.close()
    embedder = LengthEmbedder()
    with Running(archive, embedder):
        until(lambda: archive.queue.depth().messages == 0)
    reader = archive.reader("texts")
    assert archive.store.get_many(partition("texts", reader.version.number), all_stored(["Heat"])) == [b""]
    assert not embedder.embedded


def test_a_stopped_filler_gives_its_batch_back(archive: Archive) -> None:
    embedder = LengthEmbedder()
    embedder.busy.set()
    with Running(archive, embedder):
        archive.want("texts", ["film"])
        until(lambda: embedder.calls >= 1)
    embedder.busy.clear()
    with Running(archive, embedder):
        until(lambda: all_found(archive, ["film"]))


def test_a_malformed_message_is_dropped_and_stops_nothing(archive: Archive) -> None:
    archive.queue.publish([Message(b"k", b"\xc1garbage"), Message(b"l", b"\x93\x01\x02\x03")])
    with Running(archive, LengthEmbedder()):
        archive.want("texts", ["film"])
        until(lambda: all_found(archive, ["film"]) and archive.queue.depth().messages == 0)


def test_a_key_that_no_lookup_can_ask_for_is_not_embedded(archive: Archive) -> None:
    """Nobody could look it up, nor forget it."""
    too_long, embedder = "k" * (archive.config.spaces["texts"].max_key_bytes + 1), LengthEmbedder()
    archive.queue.publish([Wanted("texts", 1, too_long).message()])
    with Running(archive, embedder):
        archive.want("texts", ["film"])
        until(lambda: all_found(archive, ["film"]) and archive.queue.depth().messages == 0)
    assert embedder.embedded == {"film": 1}
    (letter,) = archive.dead_letters.all("texts")
    assert letter.key == too_long
    assert letter.reason == "expected a key of 1 to 8192 bytes of UTF-8 (max_key_bytes)"
    assert archive.store.scan("texts_v1").keys == [b"film"]


def test_a_key_that_is_forgotten_while_it_is_embedded_is_not_kept(archive: Archive) -> None:
    embedder = LengthEmbedder()
    embedder.hold.clear()
    with Running(archive, embedder) as filler:
        archive.want("texts", ["secret"])
        until(lambda: embedder.calls == 1)
        archive.forget("texts", ["secret"])
        embedder.hold.set()
        until(lambda: filler.counts["texts"].filled == 1 and archive.queue.depth().messages == 0)
    assert not archive.store.scan("texts_v1").keys


def test_a_forgotten_key_that_waits_is_not_embedded(archive: Archive) -> None:
    embedder = LengthEmbedder()
    archive.want("texts", ["secret"])
    archive.forgotten.add("texts", ["secret"])  # as where the queue cannot drop it
    with Running(archive, embedder):
        until(lambda: archive.queue.depth().messages == 0)
    assert not embedder.embedded


def test_a_new_encoder_is_a_new_version_that_a_backfill_fills_while_the_old_one_answers(
    archive: Archive,
) -> None:
    keys = [f"film {number}" for number in range(60)] + ["x" * 3000, "missing"]
    archive.put("texts", keys, np.ones((62, 4)))
    newer = LengthEmbedder("lengths-2")
    with Running(archive, newer):
        backfill = Backfill(archive, "texts", 1, 2)
        assert backfill.count() == 62
        assert archive.lookup("texts", keys).version == 1
        told: list[int] = []
        assert backfill.run(told.append, threading.Event())
        assert told == sorted(told)
        assert backfill.failed == 1
        backfill.make_default()
    vectors, found = archive.lookup("texts", keys, version=2)
    assert found.tolist() == [True] * 61 + [False]
    np.testing.assert_array_equal(vectors[:61], [vector_of(key) for key in keys[:61]])
    until(lambda: archive.lookup("texts", keys).version == 2)
    assert max(newer.embedded.values()) == 1
    assert archive.record("texts").version(2).is_full  # type: ignore[union-attr]


def test_a_backfill_that_was_stopped_goes_on_where_it_was(archive: Archive) -> None:
    keys = [f"film {number}" for number in range(2600)]  # more than are on their way at a time
    archive.put("texts", keys, np.ones((2600, 4)))
    newer, stopping = LengthEmbedder("lengths-2"), threading.Event()

    def stop(done: int) -> None:
        if done:
            stopping.set()

    with Running(archive, newer):
        first = Backfill(archive, "texts", 1, 2)
        assert not first.run(stop, stopping)
        second = Backfill(archive, "texts", 1, 2)
        assert 0 < second.position.keys == first.position.keys < 2600
        assert second.run(lambda _: None, threading.Event())
    assert archive.lookup("texts", keys, version=2).found.all()
    assert max(newer.embedded.values()) == 1


def test_a_pace_is_kept_and_a_stall_is_caught_up_for_a_second_at_the_most() -> None:
    pace = Pace(100.0)
    assert pace.page == 100
    assert pace.wait(1000.0) == 0
    asked = 0
    for tenth in range(100):  # ten seconds
        now = 1000.0 + tenth / 10
        while not pace.wait(now):
            pace.asked(10, now)
            asked += 10
    assert 1000 <= asked <= 1110
    asked, now = 0, 5000.0
    while not pace.wait(now):
        pace.asked(10, now)
        asked += 10
    assert asked <= 120
    assert Pace(0.5).page == 1
    unlimited = Pace(0.0)
    unlimited.asked(10**9, 0.0)
    assert (unlimited.page, unlimited.wait(0.0)) == (PAGE, 0)


def test_a_backfill_goes_no_faster_than_it_is_told(archive: Archive) -> None:
    keys = [f"film {number}" for number in range(30)]
    archive.put("texts", keys, np.ones((30, 4)))
    with Running(archive, LengthEmbedder("lengths-2")):
        backfill, started = Backfill(archive, "texts", 1, 2), time.monotonic()
        assert backfill.run(lambda _: None, threading.Event(), keys_per_second=10.0)
        assert time.monotonic() - started > 0.8  # the first second's worth is asked for twice at once
    assert archive.lookup("texts", keys, version=2).found.all()


def test_new_keys_go_to_the_newest_version_too(archive: Archive) -> None:
    older, newer = LengthEmbedder(), LengthEmbedder("lengths-2")
    with Running(archive, older, newer):
        until(lambda: all_found(archive, ["film"]))
        until(lambda: bool(archive.lookup("texts", ["film"], version=2).found.all()))
    assert older.embedded == newer.embedded == {"film": 1}


def test_the_mean_of_a_space_stands_for_what_is_missing_once_there_are_enough_vectors(tmp_path: Path) -> None:
    keys = [f"film {number}" for number in range(ENOUGH + 200)]
    space = {"embedder": "lengths", "oov": "mean"}
    with open_parts(tmp_path, "memory", space, cache={"poll_seconds": 0.05}) as archive:
        assert not archive.lookup("texts", ["missing"]).vectors.any()
        with Running(archive, LengthEmbedder()):
            archive.want("texts", keys)
            until(lambda: bool(archive.lookup("texts", ["missing"]).vectors.any()))
        mean = archive.lookup("texts", ["missing"]).vectors[0]
        np.testing.assert_allclose(mean, np.mean([vector_of(key) for key in keys], axis=0), rtol=0.1)
        archive.put("texts", ["far away"], np.full((1, 4), 1e6))
        assert archive.lookup("texts", ["missing"]).vectors[0].tolist() == mean.tolist()  # it stays for good


def test_the_status_tells_how_an_archive_fares(archive: Archive) -> None:
    archive.lookup("texts", ["a", "b"])
    until(lambda: archive.queue.depth().messages == 2)
    archive._reporter._due = 0
    archive._reporter.report()
    status = status_of(archive)
    assert status.queue_messages == 2
    (space,) = status.spaces
    assert (space.version, space.versions, space.processes) == (1, (1,), 1)
    assert (space.keys, space.hit_rate, space.fillers) == (2, 0.0, 0)


# ---- Contents from a feature table ----


@pytest.fixture
def of_films(tmp_path: Path) -> Iterator[Archive]:
    space: dict[str, object] = {"embedder": "lengths", "content": "table:films.title", "pending_seconds": 0.2}
    with open_parts(
        tmp_path, "memory", space, tables={"films": {}}, cache={"absent_seconds": 0.01}
    ) as opened:
        yield opened


@pytest.mark.rest
def test_contents_come_from_a_table_and_what_has_no_row_is_a_dead_letter(of_films: Archive) -> None:
    of_films.table_version("films", [Column(name="title", dtype="text"), Column(name="year", dtype="int32")])
    of_films.put_rows("films", ["1", "2"], {"title": ["Heat", "Amélie"], "year": [1995, 2001]})
    with Running(of_films, LengthEmbedder()):
        until(lambda: of_films.lookup("texts", ["1", "2", "3"]).found.tolist() == [True, True, False])
        vectors, _ = of_films.lookup("texts", ["1", "2"])
        np.testing.assert_array_equal(vectors, [vector_of("Heat"), vector_of("Amélie")])
        until(lambda: of_films.dead_letters.among("texts", ["3"], 1))
        (letter,) = of_films.dead_letters.all()
        assert letter.reason == "the table 'films' has no row of this key yet; load it, and replay"
        assert letter.attempts == 5
        of_films.put_rows("films", ["3"], {"title": ["Ran"], "year": [1985]})
        until(lambda: all_found(of_films, ["3"]))


@pytest.mark.rest
@pytest.mark.parametrize("aside", [10_000, 40])
def test_a_table_that_was_never_loaded_holds_up_its_own_space_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: int
) -> None:
    monkeypatch.setattr(retries_and_dead_letters, "_MOST_ASIDE", aside)
    spaces = {
        "films": {"embedder": "lengths", "content": "table:titles.title"},
        "texts": {"embedder": "lengths"},
    }
    engines = {"store": {"kind": "memory"}, "queue": {"kind": "memory"}}
    table = engines | {"spaces": spaces, "tables": {"titles": {}}, "cache": {"absent_seconds": 0.01}}
    config = archive_config(table, "archive.toml", tmp_path)
    embedder, films = LengthEmbedder(), [f"film {number}" for number in range(300)]
    made = Archive(config, open_store(config.store), open_queue(config.queue), lambda _: LengthEmbedder())
    with made as archive:
        archive.want("films", films)
        archive.want("texts", TEXTS)
        filler = Filler(archive, {"films": [embedder], "texts": [embedder]}, batch=16)
        filler.start()
        try:
            until(lambda: bool(archive.lookup("texts", TEXTS).found.all()))
            until(lambda: archive.queue.depth().messages == len(films))
            until(lambda: archive.troubles)
            assert set(archive.troubles.values()) == {
                "the keys of the space 'films' wait: the table 'titles' has no rows yet; "
                "headrace archive load titles FILE"
            }
            archive.table_version("titles", [Column(name="title", dtype="text")])
            archive.put_rows("titles", films, {"title": [f"The {film}" for film in films]})
            until(lambda: bool(archive.lookup("films", films).found.all()))
            until(lambda: archive.queue.depth().messages == 0 and not archive.troubles)
        finally:
            filler.stop()
        assert not list(archive.dead_letters.all())
    assert set(embedder.embedded.values()) == {1}
    assert embedder.embedded.keys() == {*TEXTS, *(f"The {film}" for film in films)}


def test_a_filler_waits_for_a_table_that_was_never_loaded(of_films: Archive) -> None:
    of_films.lookup("texts", ["1"])
    with Running(of_films, LengthEmbedder()):
        until(lambda: any("has no rows yet" in one for one in of_films.troubles.values()))
        of_films.table_version("films", [Column(name="title", dtype="text")])
        of_films.put_rows("films", ["1"], {"title": ["Heat"]})
        until(lambda: all_found(of_films, ["1"]))
        assert not list(of_films.dead_letters.all())
