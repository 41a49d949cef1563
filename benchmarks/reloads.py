"""A thousand versions of one model under requests: do memory, descriptors, threads and p99 stay flat?"""

from __future__ import annotations

import http.client
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.models import CACHE
from benchmarks.rounds import Effort, print_lines, verdict
from benchmarks.soak.memory import slope
from headrace.versions.manifest import publish
from tests.model_directories import affine
from tests.running_server import RunningServer

RELOADS = 1000
STRETCH = 100
"""So many reloads at the end are held against as many at the beginning, after the first ones."""
BALLAST_BYTES = 2_000_000
PAUSE_SECONDS = 0.002
LONGEST_SECONDS = 240.0
MOST_GROWTH_BYTES = 20 * 2**20
MOST_P99 = 1.5
MOST_SLOPE_BYTES = 25_000
"""RSS may rise by so much a reload in the last half: 1.25 % of a version, 12 MB in 500 reloads.

It cannot be much less: the allocator keeps free memory in its arenas, which grow until some 1,500 reloads
(docs/benchmarks.md).
"""
P99_RELOADS = 25
"""So many reloads have enough requests for a p99 in the picture."""
PLOT = CACHE / "reloads.png"


class Held(NamedTuple):
    """What the server's process holds after a reload.

    Attributes:
        at: When that was, on the monotonic clock.
        rss_bytes: Its memory.
        descriptors: Its open files.
        threads: Its threads.
    """

    at: float
    rss_bytes: int
    descriptors: int
    threads: int


@dataclass
class Asker:
    """Asks on one connection, request after request, and notes how long each took.

    Attributes:
        port: The server's port of REST.
        asked: When each request began, and how many seconds it took.
        failed: What was no answer, or one of an older version than the answer before.
    """

    port: int
    asked: list[tuple[float, float]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    ends: threading.Event = field(default_factory=threading.Event)

    def work(self) -> None:
        """Until ``ends``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        last = 0.0
        while not self.ends.is_set():
            began = time.monotonic()
            connection.request("POST", "/v1/models/m:predict", b'{"instances": [0.0]}')
            response = connection.getresponse()
            body = json.loads(response.read())
            self.asked.append((began, time.monotonic() - began))
            number = body["predictions"][0] if response.status == 200 else -1.0
            if number < last:
                self.failed.append(f"{response.status} {body}")
            last = max(last, number)
            time.sleep(PAUSE_SECONDS)
        connection.close()


class Stretch(NamedTuple):
    """What was held and how long requests took while a hundred versions came and went.

    Attributes:
        rss_bytes: The least memory.
        descriptors: The most open files.
        threads: The least threads: one more is a loader at work.
        p50_ms: The median of its requests.
        p99_ms: Their 99th percentile.
    """

    rss_bytes: int
    descriptors: int
    threads: int
    p50_ms: float
    p99_ms: float


class Reloads(NamedTuple):
    """A thousand reloads under requests.

    Attributes:
        first: A hundred of the first two hundred.
        last: The last hundred.
        held: What was held after each.
        asked: When each request began, and how many seconds it took.
        failed: What was no answer, or one of an older version than the answer before.
    """

    first: Stretch
    last: Stretch
    held: list[Held]
    asked: list[tuple[float, float]]
    failed: list[str]

    @property
    def count(self) -> int:
        """How many reloads there were: fewer where they take too long."""
        return len(self.held)

    @property
    def growth_bytes(self) -> int:
        """By how much memory grew."""
        return self.last.rss_bytes - self.first.rss_bytes

    @property
    def more_descriptors(self) -> int:
        """How many more files were open at the end."""
        return self.last.descriptors - self.first.descriptors

    @property
    def more_threads(self) -> int:
        """How many more threads there were at the end."""
        return self.last.threads - self.first.threads

    @property
    def slope_bytes(self) -> float:
        """By how much memory grew with a reload in the last half."""
        return slope_bytes(self.held[len(self.held) // 2 :])

    @property
    def p99_ratio(self) -> float:
        """The p99 at the end over that of the beginning."""
        return self.last.p99_ms / self.first.p99_ms


def run(effort: Effort) -> None:
    """Publish versions, and look at the server's process after each."""
    found = measured()
    _report(found)
    if effort.plot:
        _plot(found)
        print(f"plot: {PLOT}")


def measured() -> Reloads:
    """Publish a thousand versions under requests, which takes a minute or more."""
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        _publish(models, 1)
        with RunningServer(models, "--poll-seconds", "0.02") as server:
            asker = Asker(server.http_port)
            thread = threading.Thread(target=asker.work)
            thread.start()
            try:
                held = _reload(server, models)
            finally:
                asker.ends.set()
                thread.join()
    first, last = (_stretch(part, asker) for part in (held[STRETCH : 2 * STRETCH], held[-STRETCH:]))
    return Reloads(first, last, held, asker.asked, asker.failed)


def slope_bytes(held: Sequence[Held]) -> float:
    """The slope of memory from reload to reload, by Theil and Sen."""
    return slope([(float(number), float(one.rss_bytes)) for number, one in enumerate(held)])


def p99_ms(held: Sequence[Held], asked: Sequence[tuple[float, float]]) -> list[tuple[int, float]]:
    """The p99 of the requests during each twenty-five reloads.

    Returns:
        The number of the last of these reloads, and the p99 in milliseconds.
    """
    ends = [*range(P99_RELOADS - 1, len(held), P99_RELOADS)]
    sent, spent = np.array(asked).reshape(-1, 2).T
    places = np.searchsorted(sent, [held[end].at for end in (0, *ends)])
    parts = [spent[begin:end] for begin, end in pairwise(places)]
    return [
        (end + 1, float(np.percentile(part, 99)) * 1e3)
        for end, part in zip(ends, parts, strict=True)
        if len(part)
    ]


def _stretch(held: list[Held], asker: Asker) -> Stretch:
    spent = [one for at, one in asker.asked if held[0].at <= at <= held[-1].at]
    p50, p99 = np.percentile(spent, [50, 99]) * 1e3
    return Stretch(
        min(one.rss_bytes for one in held),
        max(one.descriptors for one in held),
        min(one.threads for one in held),
        float(p50),
        float(p99),
    )


def _publish(models: Path, number: int) -> None:
    content = affine(0.0, float(number), BALLAST_BYTES)
    publish(lambda path: (path / "model.onnx").write_bytes(content), models / "m", number)


def _reload(server: RunningServer, models: Path) -> list[Held]:
    until, held = time.monotonic() + LONGEST_SECONDS, []
    for number in range(2, 2 + RELOADS):
        _publish(models, number)
        wanted = (200, {"predictions": [float(number)]})
        server.wait_for(
            lambda wanted=wanted: server.post("/v1/models/m:predict", {"instances": [0.0]}) == wanted,
            f"version {number}",
        )
        gone = f"/v2/models/m/versions/{number - 1}/ready"
        server.wait_for(lambda gone=gone: server.get(gone)[0] != 200, "the version before to go")
        shutil.rmtree(models / f"m/{number - 1}")
        held.append(_held(server))
        if time.monotonic() > until:
            print(f"  stopped after {len(held)} reloads: {LONGEST_SECONDS:.0f} s are over")
            break
    return held


def _held(server: RunningServer) -> Held:
    process = Path(f"/proc/{server.process.pid}")
    descriptors, threads = len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))
    return Held(time.monotonic(), server.rss_bytes(), descriptors, threads)


def _report(found: Reloads) -> None:
    lines = [("reloads", "RSS at least, MB", "descriptors", "threads", "p50, ms", "p99, ms")]
    for name, part in (("first", found.first), ("last", found.last)):
        memory, times = f"{part.rss_bytes / 2**20:.1f}", (f"{part.p50_ms:.2f}", f"{part.p99_ms:.2f}")
        lines.append((f"{name} {STRETCH}", memory, f"{part.descriptors}", f"{part.threads}", *times))
    print_lines(lines)
    verdict(
        f"{found.count} reloads, {len(found.asked)} requests: none lost, none answered by an older version",
        not found.failed,
        f"{len(found.failed)} {found.failed[:1]}",
    )
    growth = found.growth_bytes
    verdict("memory grows by at most 20 MB", growth <= MOST_GROWTH_BYTES, f"{growth / 2**20:.1f} MB")
    rises = found.slope_bytes
    verdict(
        f"memory rises by at most {MOST_SLOPE_BYTES / 1e3:g} kB a reload in the last half",
        rises <= MOST_SLOPE_BYTES,
        f"{rises / 1e3:+.1f} kB",
    )
    verdict("no descriptor more", found.more_descriptors <= 0, f"{found.more_descriptors}")
    verdict("no thread more", found.more_threads <= 0, f"{found.more_threads}")
    ratio = found.p99_ratio
    verdict(f"p99 at most {MOST_P99} times that of the beginning", ratio <= MOST_P99, f"{ratio:.2f}")


def _plot(found: Reloads) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    numbers = np.arange(1, found.count + 1)
    memory = np.array([one.rss_bytes for one in found.held]) / 2**20
    figure = Figure((8, 6), layout="constrained")
    above, middle, below = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1, 1))
    above.plot(numbers, memory, linewidth=1, color="#1f5fa8")
    half = numbers[found.count // 2 :]
    line = (half - np.median(half)) * found.slope_bytes / 2**20 + np.median(memory[found.count // 2 :])
    above.plot(
        half, line, "--", color="black", linewidth=1, label=f"{found.slope_bytes / 1e3:+.1f} kB a reload"
    )
    above.set_ylim(bottom=0)
    above.set_ylabel("RSS, MiB")
    above.legend(loc="lower right", frameon=False)
    middle.plot(numbers, [one.descriptors for one in found.held], linewidth=1, label="descriptors")
    middle.plot(numbers, [one.threads for one in found.held], linewidth=1, label="threads")
    middle.set_ylim(bottom=0)
    middle.legend(loc="center right", ncols=2, frameon=False)
    below.plot(*zip(*p99_ms(found.held, found.asked), strict=True), color="#d1701f", linewidth=1)
    below.set_ylim(bottom=0)
    below.set_ylabel("p99, ms")
    below.set_xlabel(f"reloads; p99 of each {P99_RELOADS}")
    PLOT.parent.mkdir(exist_ok=True)
    FigureCanvasAgg(figure).print_figure(PLOT, dpi=120)
