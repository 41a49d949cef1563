"""Filling: an archive as a whole beside its embedder alone, and lookups beside a filler at full speed.

Texts that nobody has seen, by MiniLM. Whole means: from the queue in a file, through the embedder, into the
store in a file, synced, and acknowledged. Both sides have two threads, and are timed by the clock, in turns.
Lookups ask for 100 keys of 384 numbers in process, from memory and from LMDB; the filler is a process of its
own that works on the same files, and is stopped in every other turn.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.processes import cores, on_core
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.filling.filler import BATCH, Filler
from headrace.archive.lookup.archive import Archive
from headrace.archive.operations.open_archive import open_archive_file, open_embedder
from headrace.base.tensors import Array

LEAST = 0.9
"""What filling is to reach of the embedder's rate."""

SPACE = "titles"
EMBEDDED, THREADS = 8 * BATCH, 2
STORED, AT_ONCE, WAITING, DIMENSION = 20_000, 100, 20_000, 384
SETTINGS = f'[spaces.{SPACE}]\nembedder = "minilm"\n[cache]\nsize_bytes = '
IN_MEMORY, IN_LMDB, BESIDE = "from memory", "from LMDB", ", a filler beside"
_WAIT_SECONDS = 120.0


def run(effort: Effort) -> None:
    """Measure both.

    Args:
        effort: How much measuring is done.
    """
    with tempfile.TemporaryDirectory() as folder:
        throughput(Path(folder), effort)
    with tempfile.TemporaryDirectory() as folder:
        beside(Path(folder), effort)


def titles(start: int, count: int) -> list[str]:
    """Texts as long as film titles are, no two alike."""
    words = ("The", "Return", "of", "Silent", "River", "Night", "Golden", "Heart", "City", "Last", "Winter")
    size = len(words)
    return [
        f"{words[n % size]} {words[n // size % size]} {words[n // size**2 % size]} {n} (1995)"
        for n in range(start, start + count)
    ]


def throughput(folder: Path, effort: Effort) -> None:
    """Contents a second, in turns."""
    embedder = open_embedder("minilm", None, folder)
    (folder / "archive.toml").write_text(f"{SETTINGS}{2**24}\n")
    with open_archive_file(folder / "archive.toml") as archive:
        seen = 0

        def fresh() -> list[str]:
            nonlocal seen
            seen += EMBEDDED
            return titles(seen, EMBEDDED)

        filled(archive, embedder, fresh())
        measured = interleaved(
            {
                "the embedder alone": lambda: alone(embedder, fresh()),
                "the archive": lambda: filled(archive, embedder, fresh()),
            },
            effort.rounds,
        )
    embedder.close()
    times = ratios(measured["the archive"], measured["the embedder alone"])
    print_lines([("filling", "a second"), *((name, spread(one, 0)) for name, one in measured.items())])
    verdict(f"filling ≥ {LEAST} × the embedder alone", middle(times) >= LEAST, spread(times))


def alone(embedder: Embedder, texts: list[str]) -> float:
    """The embedder's own rate, by batches and threads as a filler has them."""
    contents = [text.encode() for text in texts]
    batches = [contents[start : start + BATCH] for start in range(0, len(contents), BATCH)]
    with ThreadPoolExecutor(THREADS) as threads:
        began = time.perf_counter()
        for made in threads.map(embedder.embed, batches):
            assert not made.failures
        return len(texts) / (time.perf_counter() - began)


def filled(archive: Archive, embedder: Embedder, texts: list[str]) -> float:
    """How many keys a second are filled, of those that wait; the start of the filler is not counted."""
    filler = Filler(archive, {SPACE: (embedder,)}, threads=THREADS)
    for start in range(0, len(texts), 500):
        archive.want(SPACE, texts[start : start + 500])
    counts = filler.counts[SPACE]
    wanted, deadline = counts.filled + len(texts), time.monotonic() + _WAIT_SECONDS
    began = time.perf_counter()
    filler.start()
    while counts.filled < wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    rate = len(texts) / (time.perf_counter() - began)
    assert counts.filled == wanted
    filler.stop()
    return rate


def beside(folder: Path, effort: Effort) -> None:
    """Latencies without and with a filler."""
    for name, size in (("memory", 2**26), ("lmdb", 2**16)):
        (folder / f"{name}.toml").write_text(f"{SETTINGS}{size}\n")
    keys = [f"stored {number}" for number in range(STORED)]
    with open_archive_file(folder / "memory.toml") as cached:
        embedder = open_embedder("minilm", None, folder)
        Filler(cached, {SPACE: (embedder,)})  # makes the space's version
        embedder.close()
        cached.put(SPACE, keys, np.ones((STORED, DIMENSION), np.float32))
        for start in range(0, WAITING, 500):
            cached.want(SPACE, titles(start, 500))
        with open_archive_file(folder / "lmdb.toml") as stored, filling(folder) as filler:
            measures: dict[str, Callable[[], Array]] = {}
            for name, archive in ((IN_MEMORY, cached), (IN_LMDB, stored)):
                for other, how in (("", signal.SIGSTOP), (BESIDE, signal.SIGCONT)):
                    measures[name + other] = lookups(archive, keys, filler, how, effort.seconds)
            measured = interleaved(measures, effort.rounds)
            assert filler.poll() is None
    lines = [(f"{AT_ONCE} keys", "p50 µs", "p99 µs")]
    for name, turns in measured.items():
        lines.append((name, *(spread([one[place] for one in turns], 1) for place in (0, 1))))
    print_lines(lines)
    for name in (IN_MEMORY, IN_LMDB):
        for place, what in enumerate(("p50", "p99")):
            busy, calm = ([one[place] for one in measured[name + other]] for other in (BESIDE, ""))
            times = ratios(busy, calm)
            print(f"  {name}: {what} beside a filler {spread(times)} × that without")


@contextmanager
def filling(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A filler of its own, on the core that asks for nothing, at work."""
    program = [str(Path(sys.executable).with_name("headrace")), "archive", "fill", "--archive"]
    command, before = on_core(cores()[1], [*program, str(folder / "memory.toml")]), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores()[0]})
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with open_archive_file(folder / "lmdb.toml") as archive:
            deadline = time.monotonic() + _WAIT_SECONDS
            while archive.queue.depth().messages > WAITING - 2 * BATCH and time.monotonic() < deadline:
                time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()
        os.sched_setaffinity(0, before)


def lookups(
    archive: Archive, keys: list[str], filler: subprocess.Popen[bytes], how: signal.Signals, seconds: float
) -> Callable[[], Array]:
    """How long lookups take, p50 and p99 in µs, with the filler stopped or at work."""
    random = np.random.default_rng(1)

    def measure() -> Array:
        filler.send_signal(how)
        took, stop = [], time.monotonic() + seconds
        while time.monotonic() < stop:
            asked = [keys[place] for place in random.integers(0, STORED, AT_ONCE).tolist()]
            began = time.perf_counter_ns()
            found = archive.lookup(SPACE, asked).written
            took.append(time.perf_counter_ns() - began)
            assert found.all()
        return np.percentile(took, [50, 99]) / 1e3

    return measure
