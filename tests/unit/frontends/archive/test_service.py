"""The Door: nothing holds the serving thread for long, and what goes on after an answer is counted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import ArchiveConfig, SpaceSettings
from headrace.archive.model.keys import SLICE_LETTERS, in_slices
from headrace.base.errors import DeadlineExceeded, InvalidRequest, Overloaded
from headrace.config import Limits
from headrace.frontends.archive import service as doors
from headrace.frontends.archive.service import ArchiveService
from headrace.frontends.calls import GrpcCall
from headrace.frontends.transport.bodies import Bodies
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.storage.opening import open_queue
from headrace.storage.settings import MemoryQueue, MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from headrace.storage.stores.store import Item
from tests.unit.frontends.archive.doors import DIMENSION, a_door
from tests.waiting import until


def test_slices_are_of_few_bytes_and_few_keys() -> None:
    keys = ["k"] * 700 + ["k" * 8000] * 100
    slices = list(in_slices(keys, 256, 8192))
    assert [keys[one] for one in slices] == [keys[one.start : one.stop] for one in slices]
    assert [one.start for one in slices] == [0, *(one.stop for one in slices[:-1])]
    assert slices[-1].stop == len(keys)
    assert max(one.stop - one.start for one in slices) == 256
    assert max(sum(map(len, keys[one])) for one in slices) <= SLICE_LETTERS
    assert list(in_slices([], 5, 5)) == []
    assert list(in_slices(["k" * SLICE_LETTERS] * 2, 5, SLICE_LETTERS)) == [slice(0, 1), slice(1, 2)]
    with pytest.raises(InvalidRequest, match=r"keys\[1\]: expected 1 to 10 bytes of UTF-8, got 5000000"):
        list(in_slices(["a", "k" * 5_000_000], 5, 10))


async def _turns_beside(work: Any) -> int:
    """How many turns of the event loop others get while something is done."""
    turns, is_done = 0, False

    async def others() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    await asyncio.sleep(0)
    turns = 0
    await work
    found, is_done = turns, True
    await beside
    return found


def test_few_large_keys_are_looked_up_with_others_answered_in_between() -> None:
    keys = [f"{number:08000}" for number in range(200)]
    with a_door() as service:
        reader = service.archive.reader("items")

        async def look() -> None:
            await service.lookup(reader, keys, GrpcCall(), 0.0, RequestBudget(service.limits))

        assert asyncio.run(_turns_beside(look())) > 8


class HeldStore(InMemoryStore):
    """A store in memory whose writes wait until they may go on."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.may_write = threading.Event()
        self.may_write.set()

    def put_many(self, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0) -> None:
        self.may_write.wait(120)
        super().put_many(partition, items, ttl_seconds)


class SilentStore(InMemoryStore):
    """A store that is elsewhere, and says nothing to a read."""

    is_local = False

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.may_answer = threading.Event()

    def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        if partition.startswith("items"):
            self.may_answer.wait(120)
        return super().get_many(partition, keys, missing)


@pytest.mark.parametrize("seconds", [0.02, 0.5])
def test_a_silent_store_leaves_time_for_the_answer(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nothing is known of a store, it is waited for; but an answer at the deadline is an error."""
    store, spaces = SilentStore(), {"items": SpaceSettings(dimension=DIMENSION)}
    config = ArchiveConfig(store=MemoryStore(), queue=MemoryQueue(), spaces=spaces)
    with Archive(config, store, open_queue(config.queue)) as archive:
        service = ArchiveService(archive, Limits(), TimeSlicer(), is_admin=False)
        waited: list[float] = []
        monkeypatch.setattr(doors, "time", SimpleNamespace(monotonic=lambda: 1000.0))

        async def look() -> None:
            reader, call = archive.reader("items"), GrpcCall(1000.0 + seconds)
            found = service.quick(reader, ["a"], call)
            assert found is not None
            assert found.waits
            patience = reader.patience
            reader.patience = lambda longest: waited.append(longest) or patience(longest)  # type: ignore[method-assign]
            found = await service.finished(reader, found, call, 0.0)
            assert not found.found.any()

        try:
            asyncio.run(look())
        finally:
            store.may_answer.set()
            service.close()
    assert 0 < waited[0] <= seconds - max(0.005, 0.09 * seconds)


def test_what_a_put_works_on_is_counted_until_it_is_done() -> None:
    """Also when its call has had its answer: as many bytes as are under way may be, and no more."""
    store, limits = HeldStore(), Limits(max_message_bytes=2**20, max_inflight_bytes=2**20)
    spaces = {"items": SpaceSettings(dimension=DIMENSION)}
    config = ArchiveConfig(store=MemoryStore(), queue=MemoryQueue(), spaces=spaces)
    keys = [f"key {number}" for number in range(9000)]
    vectors = np.zeros((len(keys), DIMENSION), np.float32)

    async def put(service: ArchiveService, bodies: Bodies, seconds: float) -> None:
        call = GrpcCall(time.monotonic() + seconds, budget=bodies)
        await service.put("items", keys, vectors, 0, call)

    async def puts(service: ArchiveService) -> None:
        bodies = Bodies(limits)
        with pytest.raises(DeadlineExceeded):
            await put(service, bodies, 0.01)
        assert bodies.held_bytes > vectors.nbytes
        with pytest.raises(Overloaded, match="max_inflight_bytes"):
            await put(service, bodies, 20)
        store.may_write.set()
        await asyncio.to_thread(until, lambda: bodies.held_bytes == 0)
        await put(service, bodies, 20)
        assert bodies.held_bytes == 0

    with Archive(config, store, open_queue(config.queue)) as archive:
        service = ArchiveService(archive, limits, TimeSlicer(), is_admin=False)
        store.may_write.clear()
        try:
            asyncio.run(puts(service))
        finally:
            store.may_write.set()
            service.close()
