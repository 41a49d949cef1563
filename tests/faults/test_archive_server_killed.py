"""A server of an archive that is killed: every `Put` that it had answered is there after a restart."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.faults.archive_processes import serving

KEYS, WRITERS, PUTS = 50, 4, 40


class Writer:
    """Somebody who puts on and on, until nobody answers.

    Attributes:
        answered: How many of its puts were.
        is_refused: Whether one was answered by an error.
    """

    def __init__(self, name: str) -> None:
        self.name, self.answered, self.is_refused = name, 0, False

    def run(self, port: int, enough: threading.Semaphore) -> None:
        for _ in range(100_000):  # the kill comes long before
            keys = [self.name, *self.keys(self.answered)]
            vectors = [[self.answered, place] for place in range(len(keys))]
            try:
                post(port, "put", {"keys": keys, "vectors": vectors})
            except urllib.error.HTTPError:
                self.is_refused = True
                return
            except (OSError, HTTPException):
                return
            self.answered += 1
            enough.release()

    def keys(self, put: int) -> list[str]:
        return [f"{self.name}, {put}: {place}" for place in range(1, KEYS)]


def post(port: int, verb: str, body: object) -> dict[str, Any]:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/archive/items:{verb}", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return dict(json.loads(answer.read()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "archive.toml").write_text("[spaces.items]\ndimension = 2\n")
    return tmp_path


def found(port: int, keys: list[str]) -> list[list[float]]:
    answer = post(port, "lookup", {"keys": keys})
    assert answer["found"] == [True] * len(keys)
    return list(answer["vectors"])


@pytest.mark.rest
@pytest.mark.exact
def test_a_put_that_was_answered_is_there_after_a_kill(folder: Path) -> None:
    """The store is LMDB's, as it is without settings; other puts are on their way at that moment."""
    writers: list[Writer] = []
    for start in range(2):
        now = [Writer(f"{start}/{number}") for number in range(WRITERS)]
        writers += now
        answers = threading.Semaphore(0)
        with ThreadPoolExecutor(WRITERS) as pool, serving(folder) as port:
            running = [pool.submit(writer.run, port, answers) for writer in now]
            for _ in range(PUTS):
                assert answers.acquire(timeout=60)
            # It was killed as soon as the last of these was answered.
        for writing in running:
            writing.result()
    assert sum(writer.answered for writer in writers) >= 2 * PUTS
    with serving(folder) as port:
        for writer in writers:
            assert not writer.is_refused
            for put in range(writer.answered):
                expected = [[put, place] for place in range(1, KEYS)]
                assert found(port, writer.keys(put)) == expected
            if writer.answered:
                (last,) = found(port, [writer.name])
                # The one that was on its way may be there as well.
                assert last in ([writer.answered - 1, 0], [writer.answered, 0])
