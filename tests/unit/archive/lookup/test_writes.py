"""What was forgotten: also where the queue cannot drop it, and another machine's clock said when it came."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.dead_letter_records import now
from headrace.archive.lookup.writes import CLOCKS_APART_SECONDS
from headrace.storage.opening import open_store
from headrace.storage.queues.memory import MemoryMessages
from headrace.storage.settings import MemoryQueue
from tests.unit.archive.filling_parts import LengthEmbedder, open_parts


class KeepsAll(MemoryMessages):
    """A queue in memory that cannot drop what waits in it, as Kafka cannot."""

    def remove(self, keys: Collection[bytes]) -> bool:
        return False


@pytest.mark.parametrize("is_kept", [True, False])
def test_clocks_of_two_machines_may_be_some_seconds_apart(tmp_path: Path, *, is_kept: bool) -> None:
    with open_parts(tmp_path, "memory") as made:
        config = made.config
    queue = KeepsAll(MemoryQueue()) if is_kept else MemoryMessages(MemoryQueue())
    with Archive(config, open_store(config.store), queue, lambda _: LengthEmbedder()) as archive:
        archive.forget("texts", ["secret"])

        def is_forgotten(after_seconds: float) -> bool:
            (gone,) = archive.forgotten.since([("texts", "secret", now() + after_seconds)])
            return gone

        assert is_forgotten(-1.0)
        assert is_forgotten(CLOCKS_APART_SECONDS / 2) == is_kept
        assert not is_forgotten(CLOCKS_APART_SECONDS + 1)
