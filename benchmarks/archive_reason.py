"""What the archive is for: pages and a trainer with the encoder in their way, and with the archive instead.

A page shows 20 of 20,000 titles, popular ones more often, and needs their vectors by MiniLM: inline it
encodes them; with the archive it looks them up. The trainer learns an mdn with a title's vector a row, 2,048
rows at once: inline it encodes the titles of a batch, each once. One thread; the archive is an LMDB file with
all titles in it, and memory for a tenth of them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.archive_filling import DIMENSION, titles
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.operations.open_archive import open_archive, open_embedder
from headrace.base.tensors import Array
from headrace.ctr.factory import create
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema

TITLES, A_PAGE, ROWS, USERS = 20_000, 20, 2048, 2**16
INLINE, ARCHIVED = "the encoder inline", "the archive"
SPACE = "titles"
MEMORY_BYTES = TITLES // 10 * 4 * DIMENSION

Vectors = Callable[[Array], Array]
"""The vectors of titles by their numbers."""


def run(effort: Effort) -> None:
    """Measure pages, then the trainer.

    Args:
        effort: How much measuring is done.
    """
    texts = titles(0, TITLES)
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as archive:
        numbers = np.random.default_rng(0).standard_normal((TITLES, DIMENSION)).astype(np.float32)
        for start in range(0, TITLES, 1000):
            archive.put(SPACE, texts[start : start + 1000], numbers[start : start + 1000])
        embedder = open_embedder("minilm", None, Path(folder))
        sides = {INLINE: encoding(embedder, texts), ARCHIVED: looking_up(archive, texts)}
        pages = interleaved(
            {name: page_timer(one, effort.seconds) for name, one in sides.items()}, effort.rounds
        )
        rows = interleaved({name: trainer(one, effort.seconds) for name, one in sides.items()}, effort.rounds)
        embedder.close()
    lines = [("", "a page, p50 ms", "p99 ms", "rows learnt a second")]
    for name in sides:
        spent = [[one[place] for one in pages[name]] for place in (0, 1)]
        lines.append((name, *(f"{middle(one):.3f}" for one in spent), f"{middle(rows[name]):,.0f}"))
    print_lines(lines)
    slow, fast = ([one[1] for one in pages[name]] for name in (INLINE, ARCHIVED))
    print(f"  a page's p99 inline: {spread(ratios(slow, fast), 0)} × the archive's")
    print(f"  rows a second with the archive: {spread(ratios(rows[ARCHIVED], rows[INLINE]), 1)} × inline")


def opened(folder: Path) -> Archive:
    """An archive in files."""
    table = {
        "store": {"kind": "lmdb", "path": "store", "sync": False},
        "queue": {"kind": "memory"},
        "cache": {"size_bytes": MEMORY_BYTES},
        "spaces": {SPACE: {"dimension": DIMENSION}},
    }
    return open_archive(archive_config(table, "archive.toml", folder), folder)


def encoding(embedder: Embedder, texts: list[str]) -> Vectors:
    """Encode titles, each once a call."""

    def vectors(numbers: Array) -> Array:
        distinct, where = np.unique(numbers, return_inverse=True)
        made = embedder.embed([texts[number].encode() for number in distinct.tolist()])
        assert not made.failures
        return made.vectors[where]

    return vectors


def looking_up(archive: Archive, texts: list[str]) -> Vectors:
    """Look titles up."""

    def vectors(numbers: Array) -> Array:
        found = archive.lookup(SPACE, [texts[number] for number in numbers.tolist()])
        assert found.written.all()
        return found.vectors

    return vectors


def drawn(random: np.random.Generator, count: int) -> Array:
    """Titles as they are asked for: the n-th most popular one about 1/n times as often as the first."""
    return (TITLES ** random.random(count)).astype(np.int64) % TITLES


def page_timer(vectors: Vectors, seconds: float) -> Callable[[], Array]:
    """How long pages take, p50 and p99 in ms."""
    random = np.random.default_rng(1)

    def measure() -> Array:
        took, stop = [], time.monotonic() + seconds
        while time.monotonic() < stop:
            asked = drawn(random, A_PAGE)
            began = time.perf_counter()
            assert vectors(asked).shape == (A_PAGE, DIMENSION)
            took.append(time.perf_counter() - began)
        return np.percentile(took, [50, 99]) * 1e3

    return measure


def trainer(vectors: Vectors, seconds: float) -> Callable[[], float]:
    """How many rows a second are learnt."""
    label, user = Field(name="clicked", role="label"), Field(name="user", role="categorical", buckets=USERS)
    schema = Schema(fields=(label, user, Field(name="title", role="vector", size=DIMENSION)))
    model = create(ModelSettings(kind="mdn", hidden=(64,), batch_rows=ROWS), Features.of(schema))
    random = np.random.default_rng(2)

    def batch() -> None:
        users = random.integers(1, USERS, (ROWS, 1)).astype(np.uint32)
        made = np.ascontiguousarray(vectors(drawn(random, ROWS)), np.float32)
        model.learn(Block(users, made, random.integers(0, 2, ROWS).astype(np.float32)))

    def measure() -> float:
        batch()
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            batch()
            done += ROWS
        return done / (time.perf_counter() - began)

    return measure
