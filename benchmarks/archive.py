"""Lookups in process: from the cache and from LMDB, beside a plain dict, LMDB's own loop and Redis.

A million distinct keys, Python texts in random order; half of them are in the cache. 256 numbers of float16.
Values are checked in the end: every vector that is found is its key's, and just those are found that should
be. Throughput is by processor time of this process, as the machine may be shared; beside Redis, which has
processes of its own, it is the middle call by the clock. Redis holds as many keys as LMDB.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.catalog import partition
from headrace.archive.operations.open_archive import open_archive
from tools.services.catalogue import running
from tools.services.redis_server import Redis

KEYS = 1_000_000
IN_LMDB = 200_000
DIMENSION = 256
VECTOR_BYTES = 2 * DIMENSION
BATCHES = (1, 100, 2000)
SPACE = "images"
PART = 20_000
MOST_CALLS = 50_000
CACHED = "archive, cache, half found"
INTO = "archive, cache, into an array"
DICT = "dict.get, no vectors"
DICT_JOINED = "dict of bytes, joined"
FROM_LMDB = "archive, LMDB"
LMDB_LOOP = "LMDB's own get loop"
REDIS = "Redis MGET, joined"

Ask = Callable[[list[Any]], Any]


@dataclass
class Timed:
    """A round: how long a key took, and calls one by one."""

    nanoseconds_a_key: float
    p50_microseconds: float
    p99_microseconds: float


@dataclass
class Side:
    """Something that is asked for keys."""

    ask: Ask
    keys: list[Any]
    clock: Callable[[], int] = time.process_time_ns


def run(effort: Effort) -> None:
    """Measure and print."""
    random = np.random.default_rng(0)
    keys = [f"https://images.example/{number * 7919 % 10**9:012d}.jpg" for number in range(KEYS)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        cached = held.enter_context(archive("memory", Path(folder), 450))
        fill_cache(cached, keys[: KEYS // 2])
        stored = held.enter_context(archive("lmdb", Path(folder), 1))
        fill_store(stored, keys[:IN_LMDB])
        sides = {
            **of_cache(cached, [keys[place] for place in random.permutation(KEYS).tolist()]),
            **of_lmdb(stored, keys[:IN_LMDB], random.permutation(IN_LMDB).tolist()),
            REDIS: held.enter_context(of_redis(keys[:IN_LMDB], random.permutation(IN_LMDB).tolist())),
        }
        gc.collect()
        gc.freeze()  # a million keys are no garbage; the server does the same
        for batch in BATCHES:
            measures = {name: timer(side, batch) for name, side in sides.items()}
            print_rounds(batch, interleaved(measures, effort.rounds))
        check(cached, keys)


@contextmanager
def archive(kind: str, folder: Path, megabytes: int) -> Iterator[Archive]:
    """An archive of one space that is filled by ``put``."""
    table = {
        "store": {"kind": kind, "path": "store"} if kind == "lmdb" else {"kind": kind},
        "queue": {"kind": "memory"},
        "cache": {"size_bytes": megabytes * 2**20, "absent_seconds": 3600.0},
        "spaces": {
            SPACE: {
                "dimension": DIMENSION,
                "dtype": "float16",
                "max_keys": KEYS,
                "pending_seconds": 3600.0,
            }
        },
    }
    with open_archive(archive_config(table, "archive.toml", folder), folder) as opened:
        yield opened


def vectors(start: int, stop: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Vectors that say their own number."""
    made = np.zeros((stop - start, DIMENSION), np.float32)
    numbers = np.arange(start, stop)
    made[:, 0], made[:, -1] = numbers % 2048, numbers // 2048
    return made


def fill_cache(opened: Archive, keys: list[str]) -> None:
    """Have keys in memory, though no store has them."""
    reader = opened.reader(SPACE)
    for start in range(0, len(keys), PART):
        some = keys[start : start + PART]
        reader.cache_stored(some, reader.version.form.encode(vectors(start, start + len(some)), 1), 0)


def fill_store(opened: Archive, keys: list[str]) -> None:
    """Have keys in the store."""
    for start in range(0, len(keys), PART):
        some = keys[start : start + PART]
        opened.put(SPACE, some, vectors(start, start + len(some)))


def of_cache(opened: Archive, asked: list[str]) -> dict[str, Side]:
    """What is asked for keys of which half are in memory, and the rest known to be missing."""
    opened.lookup(SPACE, asked)
    out = np.empty((max(BATCHES), DIMENSION), np.float16)
    reader = opened.reader(SPACE)
    found = {
        key: b"x" * VECTOR_BYTES
        for key, is_there in zip(asked, opened.lookup(SPACE, asked).found, strict=True)
        if is_there
    }
    none = bytes(VECTOR_BYTES)

    def joined(keys: list[str]) -> Any:
        return np.frombuffer(b"".join([found.get(key, none) for key in keys]), np.float16).reshape(
            len(keys), -1
        )

    return {
        CACHED: Side(lambda keys: opened.lookup(SPACE, keys), asked),
        INTO: Side(lambda keys: reader.lookup(keys, 0.0, "", out[: len(keys)]), asked),
        DICT: Side(lambda keys: [found.get(key) for key in keys], asked),
        DICT_JOINED: Side(joined, asked),
    }


def of_lmdb(opened: Archive, keys: list[str], order: list[int]) -> dict[str, Side]:
    """What is asked for keys that are in LMDB, and not in memory; both sides' keys lie anywhere."""
    import lmdb  # noqa: PLC0415 - only here

    store: Any = opened.store
    environment: lmdb.Environment = store._file._environment
    where = partition(SPACE, 1)
    with store._file.reading() as transaction:
        prefix = store_prefix(transaction, where)
    encoded = [prefix + key.encode() for key in keys]
    transaction = environment.begin(buffers=False)

    def loop(some: list[bytes]) -> Any:
        get = transaction.get
        return [get(key) for key in some]

    return {
        FROM_LMDB: Side(lambda some: opened.lookup(SPACE, some), [keys[place] for place in order]),
        LMDB_LOOP: Side(loop, [encoded[place] for place in order]),
    }


@contextmanager
def of_redis(keys: list[str], order: list[int]) -> Iterator[Side]:
    """What is asked for keys by MGET, over the loopback, and makes one array of what comes."""
    import redis  # noqa: PLC0415 - only here

    with running(Redis) as server, redis.Redis(port=server.port, protocol=3) as client:
        for start in range(0, len(keys), PART):
            some = keys[start : start + PART]
            made = vectors(start, start + len(some)).astype(np.float16)
            client.mset({key: vector.tobytes() for key, vector in zip(some, made, strict=True)})

        def ask(some: list[str]) -> Any:
            together = b"".join(client.mget(some))
            return np.frombuffer(together, np.float16).reshape(len(some), -1)

        assert (ask(keys[:PART]) == vectors(0, PART).astype(np.float16)).all()
        yield Side(ask, [keys[place] for place in order])


def store_prefix(transaction: Any, where: str) -> bytes:
    """How the store's keys of a partition begin."""
    from headrace.storage.stores.lmdb import _partition  # noqa: PLC0415 - LMDB's own loop needs the keys as they are

    found = _partition(transaction, where)
    if found is None:
        raise SystemExit(f"no partition {where}")
    return found.staying


def timer(side: Side, batch: int) -> Callable[[], Timed]:
    """Ask a side for all its keys once, in batches; a part of them where batches are small."""
    calls = min(len(side.keys) // batch, MOST_CALLS)
    parts = [side.keys[at * batch : (at + 1) * batch] for at in range(calls)]

    def measure() -> Timed:
        took = np.empty(len(parts), np.int64)
        ask, clock = side.ask, time.perf_counter_ns
        started = side.clock()
        for number, part in enumerate(parts):
            before = clock()
            ask(part)
            took[number] = clock() - before
        spent = side.clock() - started
        return Timed(
            spent / (calls * batch),
            float(np.percentile(took, 50)) / 1e3,
            float(np.percentile(took, 99)) / 1e3,
        )

    return measure


def print_rounds(batch: int, rounds: dict[str, list[Timed]]) -> None:
    """Print a table and the ratios."""
    lines = [(f"{batch} keys a call", "M keys/s/core", "ns a key", "p50 µs", "p99 µs")]
    for name, timed in rounds.items():
        cost = middle([one.nanoseconds_a_key for one in timed])
        lines.append(
            (
                name,
                f"{1e3 / cost:.2f}",
                f"{cost:.0f}",
                f"{middle([one.p50_microseconds for one in timed]):.1f}",
                f"{middle([one.p99_microseconds for one in timed]):.1f}",
            )
        )
    print_lines(lines)
    for name, base in ((CACHED, DICT), (CACHED, DICT_JOINED), (FROM_LMDB, LMDB_LOOP)):
        above = [one.nanoseconds_a_key for one in rounds[base]]
        below = [one.nanoseconds_a_key for one in rounds[name]]
        print(f"  {name}: {spread(ratios(above, below))} x as many keys/s as {base}")
    above = [one.p50_microseconds for one in rounds[REDIS]]
    below = [one.p50_microseconds for one in rounds[FROM_LMDB]]
    print(f"  {FROM_LMDB}: 1/{spread(ratios(above, below), 1)} of the time of {REDIS}, the middle call")
    print()


def check(opened: Archive, keys: list[str]) -> None:
    """Every vector that is found is its key's, and about half of the keys are found."""
    answer = opened.lookup(SPACE, keys)
    there = np.flatnonzero(answer.written)
    assert 0.49 * KEYS < len(there) <= KEYS // 2
    assert there.max() < KEYS // 2
    assert (answer.vectors[there, 0] == there % 2048).all()
    assert (answer.vectors[there, -1] == there // 2048).all()
    assert not answer.vectors[answer.written == 0].any()
    print(f"checked: {len(there):,} of {len(keys):,} keys found, each with its own vector")
