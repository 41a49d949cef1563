"""Stores: what `get_many` costs beside LMDB's own loop, on one file of a million values of 530 bytes.

`own` is `[transaction.get(key) for key in keys]` on the same values, with the keys as they are in the file.
`staying` are values without a time to live, `ending` those with one. Keys come in random order.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from headrace.storage.settings import LmdbStore
from headrace.storage.stores.lmdb import InLmdbStore
from headrace.storage.stores.store import Item

VALUES = 1_000_000
VALUE_BYTES = 530
AT_ONCE = (1, 100, 2000)
KEYS_A_TURN = 4_000
TURNS_A_ROUND = 15
"""Many short ones: a machine that others use, too, disturbs a few."""
WANTED = 1.25
OWN = "own"

Batches = Sequence[Sequence[bytes]]


def run(effort: Effort) -> None:
    """Fill a file, then measure each way to read it in turns.

    Args:
        effort: How much measuring is done.
    """
    with tempfile.TemporaryDirectory() as name:
        store = InLmdbStore(LmdbStore(path=Path(name), sync=False, timeout_seconds=60.0))
        _fill(store, "staying", 0.0)
        _fill(store, "ending", 1e9)
        for at_once in AT_ONCE:
            _compare(store, at_once, effort)
        store.close()


def _fill(store: InLmdbStore, partition: str, ttl_seconds: float) -> None:
    store.create(partition)
    began, step = time.perf_counter(), 10_000
    for first in range(0, VALUES, step):
        items = [Item(_key(number), _value(number)) for number in range(first, first + step)]
        store.put_many(partition, items, ttl_seconds)
    seconds = time.perf_counter() - began
    print(f"  {partition}: {VALUES / seconds:,.0f} values/s written, {step} at once, not synced")


def _compare(store: InLmdbStore, at_once: int, effort: Effort) -> None:
    chosen = random.Random(at_once)

    def turn(read: Callable[[Batches], None], prefix: bytes) -> float:
        batches = [
            [prefix + _key(chosen.randrange(VALUES)) for _ in range(at_once)]
            for _ in range(KEYS_A_TURN // at_once)
        ]
        began = time.perf_counter()
        read(batches)
        return (time.perf_counter() - began) / KEYS_A_TURN * 1e6

    lines = [("keys at once: " + str(at_once), "own, µs a key", "get_many, µs a key", "× own")]
    reached = []
    for name, odd in (("staying", 0), ("ending", 1)):
        prefix = _prefix(store, name, odd)
        measured = interleaved(
            {
                OWN: partial(turn, partial(_own, store), prefix),
                name: partial(turn, partial(_get_many, store, name), b""),
            },
            effort.rounds * TURNS_A_ROUND,
        )
        times = ratios(measured[name], measured[OWN])
        lines.append((name, spread(measured[OWN], 3), spread(measured[name], 3), spread(times)))
        reached.append((name, middle(times)))
    print_lines(lines)
    for name, ratio in reached if at_once > 1 else ():
        verdict(f"{at_once} keys, {name}: ≤ {WANTED} × own", ratio <= WANTED, f"{ratio:.2f}")


def _own(store: InLmdbStore, batches: Batches) -> None:
    for keys in batches:
        with store._file.reading() as transaction:
            values = [transaction.get(key) for key in keys]
        assert len(values[0]) >= VALUE_BYTES


def _get_many(store: InLmdbStore, partition: str, batches: Batches) -> None:
    for keys in batches:
        values = store.get_many(partition, keys)
        assert len(values[0]) == VALUE_BYTES


def _prefix(store: InLmdbStore, partition: str, odd: int) -> bytes:
    with store._file.reading() as transaction:
        entry: bytes = transaction.get(b"p" + partition.encode())
    return (0x8000_0000 | 2 * int.from_bytes(entry[:4]) + odd).to_bytes(4)


def _key(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def _value(number: int) -> bytes:
    return (b"%16d" % number * 34)[:VALUE_BYTES]
