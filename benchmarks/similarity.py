"""Neighbours and duplicates: comparing with all, cells, and those indexes that are installed.

That is faiss, and usearch and hnswlib if somebody has installed them. Seconds are of processor time, as two
threads of one process use it: the machine may be shared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.rounds import Effort
from headrace.base.terminal import table
from headrace.similarity.duplicates import Effort as Search
from headrace.similarity.duplicates import duplicates
from headrace.similarity.neighbours import nearest
from headrace.similarity.stored_rows import Floats, Rows, unit

DIMENSION = 256
QUERIES = 2000
LINKS, BUILD = 16, 64
THRESHOLD = 0.95
THREADS = 2

Ask = Callable[[int], Any]


class Spent:
    """Processor time of a piece of work, and by how much the process grew."""

    seconds = 0.0
    megabytes = 0.0


@contextmanager
def spent() -> Iterator[Spent]:
    """Measure what happens within."""
    made, started, before = Spent(), time.process_time(), resident()
    yield made
    made.seconds, made.megabytes = time.process_time() - started, (resident() - before) / 1e6


def resident() -> int:
    """How much memory the process has, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def clustered(count: int) -> np.ndarray[Any, np.dtype[np.float16]]:
    """Vectors in clusters of uneven sizes, of a low rank within; 2 % are copies of others, but for little."""
    random = np.random.default_rng(0)
    rank, topics = 32, max(10, count // 50)
    basis = random.standard_normal((rank, DIMENSION), dtype=np.float32) / np.sqrt(rank)
    middles = random.standard_normal((topics, rank), dtype=np.float32)
    weights = 1 / np.arange(1, topics + 1) ** 0.8
    topic = random.choice(topics, count, p=weights / weights.sum())
    made = np.empty((count, DIMENSION), np.float16)
    for start in range(0, count, 50_000):
        some = slice(start, min(count, start + 50_000))
        within = 0.6 * random.standard_normal((some.stop - start, rank), dtype=np.float32)
        noise = 0.15 * random.standard_normal((some.stop - start, DIMENSION), dtype=np.float32)
        made[some] = unit((middles[topic[some]] + within) @ basis + noise)
    chosen = random.choice(count, 2 * (count // 50), replace=False)
    copies, originals = chosen[: count // 50], chosen[count // 50 :]
    made[copies] = made[originals] + 0.01 * random.standard_normal((len(copies), DIMENSION), dtype=np.float32)
    return made


def faiss_graph(vectors: Floats, half: bool) -> tuple[Ask, tuple[int, ...]]:
    """Faiss's HNSW."""
    faiss: Any = import_module("faiss")
    faiss.omp_set_num_threads(THREADS)
    product = faiss.METRIC_INNER_PRODUCT
    index: Any = faiss.IndexHNSWFlat(DIMENSION, LINKS, product)
    if half:
        index = faiss.IndexHNSWSQ(DIMENSION, faiss.ScalarQuantizer.QT_fp16, LINKS, product)
        index.is_trained = True
    index.hnsw.efConstruction = BUILD
    index.add(vectors)

    def ask(effort: int) -> Any:
        index.hnsw.efSearch = effort
        return lambda asked: index.search(asked, 11)[1]

    return ask, (64, 128)


def faiss_lists(vectors: Floats, half: bool) -> tuple[Ask, tuple[int, ...]]:
    """Faiss's lists by k-means."""
    faiss: Any = import_module("faiss")
    faiss.omp_set_num_threads(THREADS)
    lists, product = 2 ** round(np.log2(4 * len(vectors) ** 0.5)), faiss.METRIC_INNER_PRODUCT
    flat = faiss.IndexFlatIP(DIMENSION)
    index: Any = faiss.IndexIVFFlat(flat, DIMENSION, lists, product)
    if half:
        code = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexIVFScalarQuantizer(flat, DIMENSION, lists, code, product, False)
    index.cp.niter, index.cp.max_points_per_centroid = 8, 64
    sample = np.random.default_rng(0).choice(len(vectors), min(len(vectors), 64 * lists), replace=False)
    index.train(vectors[sample])
    index.add(vectors)

    def ask(effort: int) -> Any:
        index.nprobe = effort
        return lambda asked: index.search(asked, 11)[1]

    return ask, (16, 32)


def usearch_graph(vectors: Floats, half: bool) -> tuple[Ask, tuple[int, ...]]:
    """Usearch's HNSW."""
    index: Any = import_module("usearch.index").Index(
        ndim=DIMENSION, metric="cos", dtype="f16" if half else "f32", connectivity=LINKS, expansion_add=BUILD
    )
    index.add(np.arange(len(vectors), dtype=np.uint64), vectors, threads=THREADS)

    def ask(effort: int) -> Any:
        index.expansion_search = effort
        return lambda asked: index.search(asked, 11, threads=THREADS).keys.astype(np.int64)

    return ask, (64, 128)


def hnswlib_graph(vectors: Floats, half: bool) -> tuple[Ask, tuple[int, ...]]:
    """hnswlib's; it has no float16."""
    index: Any = import_module("hnswlib").Index(space="ip", dim=DIMENSION)
    index.init_index(max_elements=len(vectors), M=LINKS, ef_construction=BUILD)
    index.add_items(vectors, num_threads=THREADS)

    def ask(effort: int) -> Any:
        index.set_ef(effort)
        return lambda asked: index.knn_query(asked, 11, num_threads=THREADS)[0].astype(np.int64)

    return ask, (64, 128)


CANDIDATES = {
    "faiss HNSW": ("faiss", faiss_graph),
    "faiss IVF": ("faiss", faiss_lists),
    "usearch": ("usearch", usearch_graph),
    "hnswlib": ("hnswlib", hnswlib_graph),
}


def recall(truth: Any, found: Any, asked: Any) -> float:
    """Which share of the ten nearest was found; a vector does not count as its own neighbour."""
    shared = 0
    for wanted, came, row in zip(truth.tolist(), found.tolist(), asked.tolist(), strict=True):
        shared += len({one for one in wanted if one != row} & {one for one in came if one != row})
    return shared / (10 * len(asked))


def indexes(vectors: np.ndarray[Any, np.dtype[np.float16]]) -> None:
    """Build each index, and ask it for neighbours of some of its vectors."""
    rows = Rows(vectors)
    asked = np.sort(np.random.default_rng(1).choice(len(vectors), QUERIES, replace=False))
    with spent() as used:
        truth = nearest(rows, rows.only(asked), 11).rows
    lines = [["", "build, s", "MB", "effort", "a query, µs", "recall"]]
    lines.append(["all", "0.0", "0", "", f"{used.seconds / QUERIES * 1e6:.0f}", "1.000"])
    wide = rows.take(slice(None))
    for half in (False, True):
        for name, (package, build) in CANDIDATES.items():
            if find_spec(package) is None or (half and package == "hnswlib"):
                continue
            with spent() as built:
                ask, efforts = build(wide, half)
            for effort in efforts:
                search = ask(effort)
                with spent() as used:
                    found = search(wide[asked])
                cells = [f"{built.seconds:.1f}", f"{built.megabytes:.0f}", str(effort)]
                cells += [f"{used.seconds / QUERIES * 1e6:.0f}", f"{recall(truth, found, asked):.3f}"]
                lines.append([f"{name}{', float16' if half else ''}", *cells])
    print(table(lines, right=range(1, 6), indent="  "))


def search_duplicates(vectors: np.ndarray[Any, np.dtype[np.float16]]) -> None:
    """All pairs that are similar enough, in cells and by comparing all."""
    lines = [["duplicates", "s", "MB", "pairs", "recall as told"]]
    for name, exact in (("in cells", False), ("all with all", True)):
        if exact and len(vectors) > 100_000:
            continue
        with spent() as used:
            found = duplicates(Rows(vectors), THRESHOLD, Search(exact=exact))
        told = "" if found.recall is None else f"{found.recall:.3f}"
        lines.append([name, f"{used.seconds:.1f}", f"{used.megabytes:.0f}", str(found.pair_count), told])
    print(table(lines, right=range(1, 5), indent="  "))


def run(effort: Effort) -> None:
    """Print what each way costs; a million vectors only with ``--seconds 60`` or more."""
    for count in (10_000, 100_000, 1_000_000):
        if count > 100_000 and effort.seconds < 60:
            continue
        print(f"\n{count} vectors of {DIMENSION} numbers", flush=True)
        vectors = clustered(count)
        search_duplicates(vectors)
        indexes(vectors)
