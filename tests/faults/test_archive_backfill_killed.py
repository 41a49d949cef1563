"""A backfill that is killed on the way: the default stays, and the same command again ends it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.operations.open_archive import open_archive_file
from tests.faults.archive_processes import BATCH, THREADS, Encoder
from tests.waiting import until

KEYS = [f"backfilled {number}" for number in range(800)]
OLD = 7.0


@contextmanager
def backfill(toml: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = ["backfill", "texts", "--threads", str(THREADS), "--batch", str(BATCH), "--archive", str(toml)]
    process = subprocess.Popen([sys.executable, "-m", "headrace", "archive", *words])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def check_answers(archive: Archive) -> int:
    """All keys have vectors of one version; gives its number."""
    answer = archive.lookup("texts", KEYS)
    assert answer.found.all()
    raw = np.array([(len(key), sum(key.encode()), 1) for key in KEYS])
    new = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(answer.vectors, {1: np.full_like(new, OLD), 2: new}[answer.version], rtol=1e-5)
    return answer.version


@pytest.mark.rest
def test_a_backfill_that_is_killed_is_run_again_and_repeats_a_batch_a_thread_at_the_most(
    encoder: Encoder, tmp_path: Path
) -> None:
    toml = tmp_path / "archive.toml"
    settings = f"""
        cache = {{ absent_seconds = 0.05, poll_seconds = 0.1 }}
        queue = {{ kind = "lmdb", visibility_seconds = 6.0 }}
        [spaces.texts]
        embedder = "counted"
        [embedders.counted]
        kind = "model"
        model = "encoder"
        url = "{encoder.url}"
        """
    toml.write_text(settings)
    with open_archive_file(toml) as archive:
        archive.put("texts", KEYS, np.full((len(KEYS), 3), OLD))
    toml.write_text(settings + "normalize = true\n")  # which makes another version

    def calls() -> int:
        times = encoder.embedded()
        return sum(times[key] for key in KEYS)

    with open_archive_file(toml) as archive:
        encoder.hold(len(KEYS) * 3 // 4)  # so that it is not done before it is killed
        try:
            with backfill(toml) as process:
                until(lambda: calls() > len(KEYS) / 4)
                process.kill()  # wherever it is
            assert check_answers(archive) == 1
            encoder.hold()
            before = calls()
            with backfill(toml) as process:
                until(lambda: calls() >= before + THREADS * BATCH)
                assert check_answers(archive) == 1
                process.kill()  # each of its threads has a batch
        finally:
            encoder.go()
        assert check_answers(archive) == 1
        assert len(set(KEYS) & set(encoder.embedded())) < len(KEYS)
        with backfill(toml) as process:
            until(lambda: check_answers(archive) == 2)
            assert process.wait() == 0
        assert [version.number for version in archive.record("texts").versions] == [1, 2]
        assert not list(archive.dead_letters.all())
    times = encoder.embedded()
    assert all(times[key] >= 1 for key in KEYS)
    assert calls() <= len(KEYS) + 2 * THREADS * BATCH
