"""Lookups: what is there, what is not, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.miss_queue import wanted_of
from headrace.archive.model.catalog import partition, with_default
from headrace.base.errors import ConfigError, InvalidRequest, NotFound, TooLarge
from headrace.storage.stores.store import Item
from tests.unit.archive.filling_parts import DIMENSION, LengthEmbedder, open_parts
from tests.waiting import until


@pytest.fixture(params=["memory", "lmdb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def archive(tmp_path: Path, kind: str) -> Iterator[Archive]:
    with open_parts(tmp_path, kind) as opened:
        yield opened


def test_stored_vectors_are_found_also_without_the_cache(archive: Archive) -> None:
    given = np.arange(3 * DIMENSION, dtype=np.float32).reshape(3, DIMENSION)
    archive.put("texts", ["a", "b", "x" * 5000], given)
    for _ in range(2):
        vectors, found = archive.lookup("texts", ["x" * 5000, "b", "none", "a"])
        np.testing.assert_array_equal(vectors, np.vstack([given[[2, 1]], np.zeros((1, 4)), given[:1]]))
        assert found.tolist() == [True, True, False, True]
        archive.reader("texts").forget_all()
    counts = archive.counts["texts"]
    assert (counts.lookups, counts.keys, counts.cached, counts.stored, counts.missing) == (2, 8, 3, 3, 2)


def test_an_answer_names_its_version_and_when_each_value_was_written(archive: Archive) -> None:
    archive.put("texts", ["a"], np.ones((1, 4)))
    answer = archive.lookup("texts", ["a", "none"])
    assert answer.version == 1
    assert answer.written[0] > 1_700_000_000_000
    assert answer.written[1] == 0
    archive.put("texts", ["a"], np.ones((1, 4)) * 2)
    again = archive.lookup("texts", ["a"])
    assert again.written[0] >= answer.written[0]
    assert again.vectors[0, 0] == 2


def test_many_misses_of_a_key_are_one_message(archive: Archive) -> None:
    for _ in range(50):
        assert not archive.lookup("texts", ["new", "new", "other"]).found.any()
    until(lambda: archive.queue.depth().messages == 2)
    received = archive.queue.receiver().receive(10, 5.0)
    assert sorted(wanted_of(one.message).key for one in received) == ["new", "other"]


def test_a_pending_key_is_not_queued_again_before_its_time(tmp_path: Path, kind: str) -> None:
    space = {"embedder": "lengths", "pending_seconds": 0.2}
    with open_parts(tmp_path, kind, space, cache={"absent_seconds": 0.0}) as archive:
        archive.lookup("texts", ["new"])
        until(lambda: archive._publisher.published == 1)
        for _ in range(5):
            archive.lookup("texts", ["new"])
        assert archive.counts["texts"].new == 1

        def asked_again() -> bool:
            archive.lookup("texts", ["new"])
            return archive.counts["texts"].again >= 1

        until(asked_again)


def test_vectors_are_written_to_the_callers_array(archive: Archive) -> None:
    archive.put("texts", ["a"], np.ones((1, 4)))
    out = np.full((2, 4), 9, np.float32)
    answer = archive.lookup("texts", ["a", "none"], out=out)
    assert answer.vectors is out
    assert out.tolist() == [[1.0] * 4, [0.0] * 4]


@pytest.mark.parametrize(
    "out", [np.zeros((2, 4)), np.zeros((1, 4), np.float32), np.zeros((4, 2), np.float32).T]
)
def test_a_place_that_does_not_fit_is_refused(archive: Archive, out: np.ndarray) -> None:
    with pytest.raises(InvalidRequest, match="out: expected a writable C-contiguous array of float32"):
        archive.lookup("texts", ["a", "none"], out=out)


def test_no_keys_are_no_vectors(archive: Archive) -> None:
    vectors, found = archive.lookup("texts", [])
    assert vectors.shape == (0, 4)
    assert found.shape == (0,)


def test_unknown_names_are_refused_with_those_that_there_are(archive: Archive) -> None:
    with pytest.raises(NotFound, match="no space 'text'; did you mean 'texts'"):
        archive.lookup("text", ["a"])
    with pytest.raises(NotFound, match="no version 7 of the space 'texts'; it has version 1"):
        archive.lookup("texts", ["a"], version=7)


def test_more_keys_than_a_lookup_may_have_are_refused(archive: Archive) -> None:
    with pytest.raises(TooLarge, match="keys: expected at most 10000 keys, got 10001"):
        archive.lookup("texts", ["a"] * 10_001)


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        (np.ones((2, 4)), r"vectors: expected numbers \[1, 4\], got float64, \[2, 4\]"),
        (np.ones((1, 3)), r"vectors: expected numbers \[1, 4\], got float64, \[1, 3\]"),
        (np.array([["a"] * 4]), r"vectors: expected numbers"),
        (np.full((1, 4), np.nan), r"vectors\[0\]: expected finite numbers of float32"),
        (np.full((1, 4), 1e300), r"vectors\[0\]: expected finite numbers of float32"),
    ],
)
def test_vectors_that_cannot_be_are_refused(archive: Archive, vectors: np.ndarray, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        archive.put("texts", ["a"], vectors)
    assert not archive.lookup("texts", ["a"]).found.any()


def test_a_wrong_value_in_the_store_is_out_of_vocabulary_and_counted(archive: Archive) -> None:
    archive.put("texts", ["a", "b"], np.ones((2, 4)))
    archive.reader("texts").forget_all()
    archive.store.put_many(partition("texts", 1), [Item(b"a", b"garbage")])
    vectors, found = archive.lookup("texts", ["a", "b"])
    assert found.tolist() == [False, True]
    assert vectors.tolist() == [[0.0] * 4, [1.0] * 4]
    assert archive.counts["texts"].damaged == 1


def test_a_vector_that_is_over_its_time_is_missing_and_wanted(tmp_path: Path, kind: str) -> None:
    with open_parts(tmp_path, kind, {"embedder": "lengths", "ttl_seconds": 1.0}) as archive:
        begun = time.monotonic()
        archive.put("texts", ["a"], np.ones((1, 4)))
        assert archive.lookup("texts", ["a"]).found.all() or time.monotonic() - begun > 1.0
        until(lambda: not archive.lookup("texts", ["a"]).found.any())
        until(lambda: archive.queue.depth().messages == 1)


def test_an_invalidated_key_is_wanted_anew(archive: Archive) -> None:
    archive.put("texts", ["a", "b"], np.ones((2, 4)))
    archive.invalidate("texts", ["a"])
    assert archive.lookup("texts", ["a", "b"]).found.tolist() == [False, True]
    until(lambda: archive.queue.depth().messages == 1)


def test_a_forgotten_key_is_nowhere(archive: Archive) -> None:
    archive.put("texts", ["a", "b"], np.ones((2, 4)))
    archive.lookup("texts", ["waits"])
    until(lambda: archive.queue.depth().messages == 1)
    archive.forget("texts", ["a", "waits"])
    assert archive.queue.depth().messages == 0
    assert archive.lookup("texts", ["a", "b"]).found.tolist() == [False, True]


@pytest.mark.parametrize("verb", [Archive.forget, Archive.invalidate])
@pytest.mark.parametrize("history_seconds", [0.0, 60.0])
def test_a_key_is_removed_from_a_version_that_is_not_served_too(
    tmp_path: Path, verb: Callable[[Archive, str, list[str]], int], history_seconds: float
) -> None:
    space = {"embedder": "lengths", "history_seconds": history_seconds}
    with open_parts(tmp_path, "lmdb", space) as archive:
        archive.put("texts", ["old", "both"], np.ones((2, DIMENSION)))
        longer = LengthEmbedder("lengths-2")
        longer.dimension = DIMENSION + 1
        archive.add_version("texts", longer)
        archive.catalog.change("texts", lambda record: with_default(record, 2, 1.0))
        archive.put("texts", ["both"], np.ones((1, DIMENSION + 1)), version=2)
    np.save(tmp_path / "oov.npy", np.ones(DIMENSION + 1))
    with open_parts(tmp_path, "lmdb", {**space, "oov": "oov.npy"}) as archive:
        with pytest.raises(NotFound, match="no version 1"):
            archive.lookup("texts", ["old"], version=1)
        assert verb(archive, "texts", ["old", "both", "none"]) == 2
        assert not archive.lookup("texts", ["both"]).found.any()
    with open_parts(tmp_path, "lmdb", space) as archive:
        for version in (1, 2):
            assert not archive.lookup("texts", ["old", "both"], version=version).found.any()


def test_two_archives_on_one_store_agree(tmp_path: Path) -> None:
    with open_parts(tmp_path, "lmdb", cache={"poll_seconds": 0.05}) as one:
        config, embedder = one.config, LengthEmbedder()
        assert one.record("texts").versions[0].fingerprint == embedder.fingerprint
        # LMDB is opened once a process: the other archive shares what is open.
        other = Archive(config, one.store, one.queue)
        one.put("texts", ["a"], np.ones((1, 4)))
        assert other.lookup("texts", ["a"]).found.all()
        one.forget("texts", ["a"])
        until(lambda: not other.lookup("texts", ["a"]).found.any())
        newer = one.add_version("texts", LengthEmbedder("lengths-2"))
        assert newer.number == 2
        until(lambda: other.record("texts").last == 2)
        assert other.lookup("texts", ["a"], version=2).version == 2
        assert other.lookup("texts", ["a"]).version == 1
        other._closed.set()
        other._thread.join()
        other._publisher.close()


def test_a_space_that_a_newer_headrace_has_changed_stays_as_it_was_known_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_parts(tmp_path, "memory", cache={"poll_seconds": 0.02}) as archive:
        archive.put("texts", ["a"], np.ones((1, 4)))
        before = archive.store.read("space/texts")
        assert archive.store.swap("space/texts", before, b'{"format": 2, "else": 1}')
        until(lambda: "format 2 is newer than 1; update headrace" in str(archive.troubles))
        assert archive.lookup("texts", ["a"]).found.all()
        assert archive.store.swap("space/texts", b'{"format": 2, "else": 1}', before or b"")
        until(lambda: not archive.troubles)
    assert caplog.text.count("update headrace; keeping the last known record of the space") == 1


def test_an_embedder_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spaces\.texts\.dimension: expected 4, as the embedder 'lengths'"):
        open_parts(tmp_path, "memory", {"embedder": "lengths", "dimension": 7})


def test_a_file_may_hold_the_vector_that_stands_for_what_is_missing(tmp_path: Path) -> None:
    np.save(tmp_path / "oov.npy", np.array([1, 2, 3]))
    with open_parts(tmp_path, "memory", {"dimension": 3, "dtype": "int8", "oov": "oov.npy"}) as archive:
        assert archive.lookup("texts", ["a"]).vectors.tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("vector", "said"),
    [
        (np.ones(4), "expected 3 numbers, got float64, \\[4\\]"),
        (np.array([1, np.nan, 2]), "expected finite numbers"),
        (np.array([None]), "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_holds_no_such_vector_is_told(
    tmp_path: Path, vector: np.ndarray | None, said: str
) -> None:
    if vector is not None:
        np.save(tmp_path / "oov.npy", vector)
    with pytest.raises(ConfigError, match=f"oov: .*oov.npy.*{said}|oov: .*{said}"):
        open_parts(tmp_path, "memory", {"dimension": 3, "oov": "oov.npy"})


def test_a_caller_that_is_over_its_quota_is_answered_and_its_keys_are_not_queued(tmp_path: Path) -> None:
    space = {"embedder": "lengths", "max_new_keys_per_second": 0.001, "max_new_keys_burst": 3}
    with open_parts(tmp_path, "memory", space) as archive:
        for number in range(10):
            archive.lookup("texts", [f"ads/{number}"], caller="ads")
        archive.lookup("texts", ["search/1"], caller="search")
        counts = archive.counts["texts"]
        assert (counts.new, counts.over_quota) == (3 + 1, 7)
        until(lambda: archive.queue.depth().messages == counts.new)


def test_a_space_without_an_embedder_is_filled_by_put_alone(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory", {"dimension": 3, "dtype": "int8"}) as archive:
        archive.put("texts", ["a"], np.array([[1.0, -127.0, 0.5]]))
        vectors, found = archive.lookup("texts", ["a", "b"])
        assert vectors.dtype == np.float32
        assert np.abs(vectors[0] - [1.0, -127.0, 0.5]).max() <= 0.5
        assert found.tolist() == [True, False]
        assert archive.counts["texts"].new == 0
