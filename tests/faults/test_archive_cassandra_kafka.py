"""An archive on Cassandra and Kafka: from the first miss to a restart; they go and come back under load."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.space_reader import Lookup
from headrace.archive.model.catalog import partition
from headrace.archive.model.keys import all_stored
from headrace.archive.operations.open_archive import open_archive_file
from headrace.base.tensors import Array
from headrace.storage.queues.queue import Depth
from tests.faults.archive_outages import OUTAGES, check_outage, works
from tests.faults.archive_processes import BATCH, THREADS, Encoder, all_found, check_concurrent_misses, filler
from tests.waiting import until
from tools.services.cassandra_server import Cassandra
from tools.services.catalogue import running
from tools.services.kafka_server import Kafka

pytestmark = pytest.mark.rest

HEADRACE = (sys.executable, "-m", "headrace")


@pytest.fixture(scope="module")
def cassandra() -> Iterator[Cassandra]:
    with running(Cassandra) as server:
        yield server


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with running(Kafka) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, cassandra: Cassandra, kafka: Kafka, encoder: Encoder) -> Path:
    name = f"archive_{secrets.token_hex(6)}"
    (tmp_path / "archive.toml").write_text(
        f"""
        cache = {{ absent_seconds = 0.05, poll_seconds = 0.1 }}
        [store]
        kind = "cassandra"
        contact_points = ["{cassandra.address}"]
        keyspace = "{name}"
        timeout_seconds = 30.0
        [queue]
        kind = "kafka"
        servers = ["{kafka.address}"]
        topic = "{name}"
        group = "{name}"
        partitions = 4
        visibility_seconds = 6.0
        timeout_seconds = 30.0
        [spaces.texts]
        embedder = "counted"
        pending_seconds = 600
        [spaces.films]
        dimension = 3
        [embedders.counted]
        kind = "model"
        model = "encoder"
        url = "{encoder.url}"
        """
    )
    return tmp_path


@contextmanager
def opened(folder: Path) -> Iterator[Archive]:
    """The archive, once its spaces are known: a keyspace is made by the first call that works."""
    with open_archive_file(folder / "archive.toml") as archive:
        until(lambda: works(lambda: (archive.reader("texts"), archive.reader("films"))))
        yield archive


def impatient(folder: Path) -> Path:
    """The same with calls that end soon, for outages; elsewhere a crowded machine may take its time."""
    settings = folder / "archive.toml"
    settings.write_text(settings.read_text().replace("timeout_seconds = 30.0", "timeout_seconds = 3.0"))
    return folder


def headrace(folder: Path, *words: str) -> str:
    command = [*HEADRACE, "archive", *words, "--archive", str(folder / "archive.toml")]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def found(archive: Archive, keys: list[str], version: int = 0) -> Array:
    """Look keys up until all are found, and return their vectors: those the store gives late are missing."""
    answers: list[Lookup] = []

    def are_found() -> bool:
        answers.append(archive.lookup("texts", keys, version=version))
        return bool(answers[-1].found.all())

    until(are_found)
    return answers[-1].vectors


def counted(encoder: Encoder, keys: list[str]) -> dict[str, int]:
    times = encoder.embedded()
    return {key: times[key] for key in keys}


def test_from_the_first_miss_to_a_restart(folder: Path, encoder: Encoder) -> None:
    run = secrets.token_hex(4)
    keys = [f"{run} {number}" for number in range(30)]
    with opened(folder) as archive:
        assert not archive.lookup("texts", keys).found.any()
        with filler(folder, "--threads", "1"):  # where a second one joins, Kafka may give a batch to both
            until(lambda: all_found(archive, keys))
            assert counted(encoder, keys) == dict.fromkeys(keys, 1)
            archive.invalidate("texts", keys[:5])
            assert not archive.lookup("texts", keys[:5]).found.any()
            until(lambda: all_found(archive, keys))
            assert counted(encoder, keys) == {**dict.fromkeys(keys, 1), **dict.fromkeys(keys[:5], 2)}
        archive.want("texts", ["a secret"])
        archive.put("texts", ["a secret"], np.ones((1, 3)))
        archive.forget("texts", ["a secret"])
        where = partition("texts", 1)
        assert archive.store.get_many(where, all_stored(["a secret"])) == [b""]
        settings = folder / "archive.toml"
        settings.write_text(settings.read_text() + "        normalize = true\n")  # another encoder's vectors
        headrace(folder, "backfill", "texts")
        until(lambda: archive.record("texts").default == 2)
        with filler(folder):  # a backfill ends with its own keys, whatever else waits in other partitions
            until(lambda: archive.queue.depth().messages == 0)
        assert encoder.embedded()["a secret"] == 0, "it was forgotten while it waited"
        assert archive.store.get_many(partition("texts", 2), all_stored(["a secret"])) == [b""]
        np.testing.assert_allclose(np.linalg.norm(found(archive, keys), axis=1), 1, rtol=1e-5)
        assert found(archive, keys, version=1)[:, 0].tolist() == [len(key) for key in keys]
    with opened(folder) as archive:
        found(archive, keys)
        found(archive, keys, version=1)
        assert archive.record("texts").default == 2


def test_cassandra_goes_and_comes_back_under_load(folder: Path, cassandra: Cassandra) -> None:
    keys = ["kept over a restart", "and this"]
    with opened(impatient(folder)) as archive:
        until(lambda: works(lambda: archive.put("texts", keys, np.ones((2, 3)))))
        for outage in ("frozen", "stopped"):
            check_outage(archive, cassandra, outage, times=1)
        found(archive, keys)


def test_misses_during_an_outage_of_kafka_are_queued_by_a_later_lookup(
    folder: Path, encoder: Encoder, kafka: Kafka
) -> None:
    known = [f"known {number}" for number in range(9)]
    with opened(impatient(folder)) as archive, filler(folder) as process:
        archive.lookup("texts", known)
        until(lambda: all_found(archive, known))
        for outage in ("frozen", "stopped"):
            begin, end = OUTAGES[outage]
            missed = [f"missed while {outage} {number}" for number in range(9)]
            begin(kafka)
            until(lambda missed=missed: looked_up(archive, known, missed) and archive.troubles)
            end(kafka)
            until(
                lambda missed=missed: looked_up(archive, known, missed) and all_found(archive, missed),
            )
            assert process.poll() is None
            times = counted(encoder, missed)
            assert sum(times.values()) <= len(missed) + THREADS * BATCH, times
        depths: list[Depth] = []
        until(lambda: works(lambda: depths.append(archive.queue.depth())) and depths[-1].messages == 0)
        until(lambda: not archive.troubles)


def looked_up(archive: Archive, known: list[str], missed: list[str]) -> bool:
    assert archive.lookup("texts", known).found.all()
    assert archive.lookup("texts", [*missed, "new"]).vectors.shape == (len(missed) + 1, 3)
    return True


def test_fillers_that_join_and_are_killed_repeat_at_most_a_batch_each(folder: Path, encoder: Encoder) -> None:
    keys = [f"rebalanced {number}" for number in range(100)]
    with opened(folder) as archive:
        encoder.hold()
        archive.want("texts", keys)
        with filler(folder) as killed, filler(folder):
            until(lambda: sum(counted(encoder, keys).values()) >= THREADS * BATCH)
            with filler(folder):
                until(lambda: sum(counted(encoder, keys).values()) >= 2 * THREADS * BATCH)
                killed.kill()
                encoder.go()
                until(lambda: all_found(archive, keys))
                until(lambda: archive.queue.depth().messages == 0)
    times = counted(encoder, keys)
    assert min(times.values()) == 1
    assert sum(times.values()) <= len(keys) + 3 * THREADS * BATCH


def test_a_thousand_misses_of_one_key_in_two_servers_are_one_embedding(
    folder: Path, encoder: Encoder
) -> None:
    check_concurrent_misses(folder, encoder, "missed by all")
