"""What a vector in LMDB costs as there are more of them: bytes of the file, and time a key.

Vectors of 256 numbers of float16 by URLs of 42 bytes, written 1,000 at a time in random order, not synced.
Keys are asked for anywhere, 100 and 2,000 at once; none is in the archive's memory, all of the file is in the
system's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.archive import DIMENSION, SPACE
from benchmarks.rounds import Effort, middle, print_lines
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.operations.open_archive import open_archive
from headrace.storage.stores.store import Item

SIZES = (1_000_000, 4_000_000)
PLANNED = 100_000_000
AT_ONCE = (100, 2000)
ASKED = 200_000
PART = 1000
_ODD = 2_654_435_761  # so that keys follow one another in no order


def run(effort: Effort) -> None:
    """Fill one file to each size, and measure there.

    Args:
        effort: How much measuring is done.
    """
    lines = [
        ("keys", "bytes a key", "levels", "written/s", *(f"ns a key, {many} at once" for many in AT_ONCE))
    ]
    sizes = []
    with tempfile.TemporaryDirectory() as folder:
        table = {
            "store": {"kind": "lmdb", "path": "store", "sync": False},
            "queue": {"kind": "memory"},
            "cache": {"size_bytes": 2**20},
            "spaces": {SPACE: {"dimension": DIMENSION, "dtype": "float16"}},
        }
        with open_archive(archive_config(table, "archive.toml", Path(folder)), Path(folder)) as archive:
            before = 0
            for keys in SIZES:
                rate = fill(archive, before, keys)
                size, levels = file_bytes(archive)
                costs = [cost(archive, keys, many, effort.rounds) for many in AT_ONCE]
                sizes.append(size / keys)
                told = f"{keys:,}", f"{size / keys:.0f}", str(levels), f"{rate:,.0f}"
                lines.append((*told, *(f"{one:.0f}" for one in costs)))
                before = keys
    print_lines(lines)
    print(f"  {PLANNED:,} keys, at as many bytes: {PLANNED * sizes[-1] / 1e9:.0f} GB")


def key(number: int) -> str:
    """A key as shops have them."""
    return f"https://images.example/{number * _ODD % 2**32:015d}.jpg"


def fill(archive: Archive, start: int, stop: int) -> float:
    """Write vectors that say their own number; how many a second."""
    reader = archive.reader(SPACE)
    form, where = reader.version.form, f"{SPACE}_v{reader.version.number}"
    numbers, began = np.zeros((PART, DIMENSION), np.float16), time.perf_counter()
    for first in range(start, stop, PART):
        here = np.arange(first, first + PART)
        numbers[:, 0], numbers[:, 1] = here % 2048, here // 2048
        records = form.encode(numbers, 1)
        items = [Item(key(first + row).encode(), record.tobytes()) for row, record in enumerate(records)]
        archive.store.put_many(where, items)
    return (stop - start) / (time.perf_counter() - began)


def file_bytes(archive: Archive) -> tuple[int, int]:
    """How many bytes of the file are in use, and how many levels its tree has."""
    store: Any = archive.store
    stat, info = store._file.environment.stat(), store._file.environment.info()
    return (info["last_pgno"] + 1) * stat["psize"], stat["depth"]


def cost(archive: Archive, keys: int, at_once: int, rounds: int) -> float:
    """Nanoseconds of processor time a key; values are checked."""
    random, costs = np.random.default_rng(at_once), []
    ask: Callable[..., Any] = archive.lookup
    for _ in range(rounds):
        numbers = random.integers(0, keys, ASKED)
        asked = [key(number) for number in numbers.tolist()]
        began = time.process_time_ns()
        answers = [ask(SPACE, asked[at : at + at_once]).vectors[:, :2] for at in range(0, ASKED, at_once)]
        costs.append((time.process_time_ns() - began) / ASKED)
        said = np.concatenate(answers).astype(np.int64)
        assert (said[:, 0] + 2048 * said[:, 1] == numbers).all()
    return middle(costs)
