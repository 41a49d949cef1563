"""Dropping space versions: nothing of them is left, and nothing goes that a model needs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.filling.filler import Filler
from headrace.archive.history.history import past_partition
from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.dead_letter_records import DeadLetter, now
from headrace.archive.model.catalog import partition, with_default, without
from headrace.archive.operations.space_versions import check_unneeded, drop_version, read_whole
from headrace.base.errors import ConfigError, FailedPrecondition, NotFound, TooLarge
from headrace.storage.stores.store import pages
from headrace.versions.manifest import publish
from tests.unit.archive.filling_parts import DIMENSION, LengthEmbedder, open_parts
from tests.waiting import until

SPACE = {"embedder": "lengths", "history_seconds": 600.0}


@pytest.fixture(params=["memory", "lmdb"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    """An archive with two versions of a space; each has vectors, a past and a dead letter."""
    with open_parts(tmp_path, request.param, SPACE) as opened:
        opened.add_version("texts", LengthEmbedder("lengths-2"))
        for version in (1, 2):
            for value in (1.0, 2.0):
                opened.put("texts", ["a", "b"], np.full((2, 4), value), version=version)
        letters = [
            DeadLetter(space="texts", version=one, key="x", reason="r", attempts=1, died=now())
            for one in (1, 2)
        ]
        opened.dead_letters.add(letters)
        yield opened


def left(archive: Archive, version: int) -> tuple[int, int, int]:
    """How many vectors, entries of the past, and dead letters there are of a version."""
    wheres = partition("texts", version), past_partition("texts", version)
    keys = [sum(len(page.keys) for page in pages(archive.store, where)) for where in wheres]
    return keys[0], keys[1], len(archive.dead_letters.among("texts", ["x"], version))


def all_found(archive: Archive, key: str, version: int) -> bool:
    return bool(archive.lookup("texts", [key], version=version).found.all())


def a_version(models: Path, name: str, spaces: dict[str, int] | None) -> Path:
    def write(draft: Path) -> None:
        (draft / "model.bin").write_bytes(b"x")

    return publish(write, models / name, metadata={} if spaces is None else {"spaces": spaces})


def test_nothing_of_a_dropped_version_is_left(archive: Archive) -> None:
    assert left(archive, 2) == (2, 6, 1)
    drop_version(archive, "texts", 2)
    assert left(archive, 2) == (0, 0, 0)
    assert left(archive, 1) == (2, 6, 1)
    record = archive.catalog.read("texts")
    assert ([one.number for one in record.versions], record.dropped) == ([1], ())
    assert archive.add_version("texts", LengthEmbedder("lengths-2")).number == 3
    with pytest.raises(NotFound, match="no version 2"):
        archive.lookup("texts", ["a"], version=2)
    with pytest.raises(NotFound, match="no version 2"):
        drop_version(archive, "texts", 2)


def test_all_dead_letters_go_however_many_there_are(archive: Archive) -> None:
    made = [
        DeadLetter(space="texts", version=1, key=f"{one}", reason="r", attempts=1, died=now())
        for one in range(1001)
    ]
    archive.dead_letters.add(made)
    archive.catalog.change("texts", lambda record: with_default(record, 2, 1.0))
    drop_version(archive, "texts", 1)
    assert [one.version for one in archive.dead_letters.all("texts")] == [2]


def test_a_drop_that_was_killed_is_completed_by_the_next_one(archive: Archive) -> None:
    archive.catalog.change("texts", lambda record: without(record, 2))
    archive.store.drop(partition("texts", 2))
    assert left(archive, 2) == (0, 6, 1)
    drop_version(archive, "texts", 2)
    assert left(archive, 2) == (0, 0, 0)
    assert archive.catalog.read("texts").dropped == ()


def test_the_default_version_stays(archive: Archive) -> None:
    with pytest.raises(FailedPrecondition, match="version 1 is the default"):
        drop_version(archive, "texts", 1)
    assert left(archive, 1) == (2, 6, 1)
    archive.catalog.change("texts", lambda record: with_default(record, 2, 1.0))
    drop_version(archive, "texts", 1)
    assert left(archive, 1) == (0, 0, 0)


def test_versions_that_a_model_was_trained_on_are_kept(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for spaces in ({"texts": 1}, {"texts": 2, "images": 1}, None, {"images": 2}):
        a_version(models, "ads", spaces)
    needed = a_version(models, "films", {"texts": 2})
    assert check_unneeded("texts", 3, [models]) == 5
    for place in (models, models / "films", needed, tmp_path):
        with pytest.raises(
            FailedPrecondition, match=r"version 2 of the space 'texts' is needed: .*films/1"
        ) as told:
            check_unneeded("texts", 2, [place])
        assert ("ads/2" in told.value.message) == (place in (models, tmp_path))
    shutil.rmtree(needed)
    shutil.rmtree(models / "ads/2")
    assert check_unneeded("texts", 2, [models, models]) == 6


def test_an_unreadable_model_prevents_the_drop(tmp_path: Path) -> None:
    version = a_version(tmp_path, "ads", {"texts": 1})
    (version / "headrace-manifest.json").write_text("{")
    with pytest.raises(
        FailedPrecondition, match=r"cannot determine whether .* is needed: .*ads/1: .*not a manifest"
    ):
        check_unneeded("texts", 2, [tmp_path])
    with pytest.raises(ConfigError, match=r"--models: .*nowhere is not a directory"):
        check_unneeded("texts", 2, [tmp_path / "nowhere"])


def test_messages_that_ask_for_a_dropped_version_are_acknowledged(tmp_path: Path) -> None:
    with open_parts(tmp_path, "lmdb", SPACE) as archive:
        older, newer = LengthEmbedder(), LengthEmbedder("lengths-2")
        archive.add_version("texts", newer)
        archive.want("texts", ["a", "b"], 2)
        drop_version(archive, "texts", 2)
        archive.want("texts", ["c"])
        archive._spaces.look("texts")
        filler = Filler(archive, {"texts": [older]})
        filler.start()
        until(lambda: archive.queue.depth().messages == 0)
        filler.stop()
        assert archive.lookup("texts", ["c"]).found.all()
        assert not list(archive.dead_letters.all())
        assert not newer.embedded


def test_a_filler_goes_on_where_what_it_fills_is_dropped(tmp_path: Path) -> None:
    with open_parts(tmp_path, "lmdb", SPACE, cache={"poll_seconds": 0.05}) as archive:
        filler = Filler(archive, {"texts": [LengthEmbedder(), LengthEmbedder("lengths-2")]})
        filler.start()
        archive.want("texts", ["a"], 2)
        until(lambda: all_found(archive, "a", 2))
        drop_version(archive, "texts", 2)
        until(lambda: archive.record("texts").version(2) is None)
        archive.want("texts", ["b"])
        until(lambda: all_found(archive, "b", 0))
        filler.stop()
        assert archive.queue.depth().messages == 0


def test_a_directory_without_models_is_not_where_they_are(archive: Archive, tmp_path: Path) -> None:
    """Nothing that is below it says what is needed; an empty one says that there are no models."""
    models = tmp_path / "models"
    models.mkdir()
    assert check_unneeded("texts", 2, [models]) == 0
    (models / "notes.txt").write_text("not a model")
    with pytest.raises(ConfigError, match=r"--models: expected models .* found none below .*models; name"):
        check_unneeded("texts", 2, [models])


# A space version is read whole: every key once, as it is stored, and no more than may be.

KEYS = [f"key {number}" for number in range(4500)] + ["é" * 5000, "\0", "../"]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_space_version_is_read_as_it_is_stored(tmp_path: Path, kind: str, dtype: str) -> None:
    given = np.random.default_rng(0).standard_normal((len(KEYS), DIMENSION)).astype(np.float32)
    told: list[int] = []
    with open_parts(
        tmp_path, kind, {"dimension": DIMENSION, "dtype": dtype, "max_key_bytes": 10_000}
    ) as archive:
        archive.put("texts", KEYS, given)
        archive.put("texts", KEYS[:1], given[:1])
        archive.invalidate("texts", KEYS[7:9])
        whole = read_whole(archive, "texts", progress=told.append)
        answered = archive.lookup("texts", whole.keys[:1000]).vectors
    assert (whole.space, whole.version) == ("texts", 1)
    assert sorted(whole.keys) == sorted(KEYS[:7] + KEYS[9:])
    assert whole.vectors.dtype == np.dtype(dtype)
    numbers = whole.vectors.astype(np.float32)
    if whole.scales is not None:
        numbers *= whole.scales[:, None]
    np.testing.assert_array_equal(numbers[:1000], answered.astype(np.float32))
    places = [KEYS.index(key) for key in whole.keys]
    np.testing.assert_allclose(numbers, given[places], atol=0.02)
    assert told[-1] == len(KEYS) - 2
    assert told == sorted(told)


def test_a_space_without_vectors_is_empty(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory", {"dimension": DIMENSION, "dtype": "int8"}) as archive:
        whole = read_whole(archive, "texts")
    assert whole.keys == []
    assert whole.vectors.shape == (0, DIMENSION)
    assert whole.scales is not None
    assert whole.scales.shape == (0,)


def test_reading_a_too_large_or_missing_version_is_refused(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory", {"dimension": DIMENSION}) as archive:
        archive.put("texts", KEYS[:100], np.ones((100, DIMENSION)))
        with pytest.raises(TooLarge, match="space: expected at most 3199 bytes of vectors"):
            read_whole(archive, "texts", most_bytes=3199)
        assert len(read_whole(archive, "texts", most_bytes=3200).keys) == 100
        with pytest.raises(NotFound):
            read_whole(archive, "texts", 7)
        with pytest.raises(NotFound):
            read_whole(archive, "images")
