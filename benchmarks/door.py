"""The door: what one hostile request costs others, in time and in memory, and what a large legal one does.

Each kind is sent to a server of its own, three times, or once where it takes long. Stall is the longest time
that a neighbour's small request took meanwhile, on a connection of its own; memory is what the process held
at the most, beside what it held before; refused is how many of the neighbour's requests got no 200. A server
that has not answered after 60 s, or takes more than 6 GB, is ended: `>` stands before its figures then.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.door_requests import MEGABYTE, MOST_SECONDS, Line, hostile_lines
from benchmarks.large_bodies import legal_lines
from tests.conformance.ctr_models import LARGE
from tests.conformance.ctr_models import write as write_clicks
from tests.faults.heavy import WORDS
from tests.faults.neighbours import Connection, percentile, sending, waits
from tests.faults.still_serves import MODEL, predict_request
from tests.faults.worst_bodies import GOOD, WORST, write_models
from tests.model_directories import affine, write
from tests.running_server import RunningServer

if TYPE_CHECKING:
    from benchmarks.rounds import Effort

_MOST_BYTES = 6 * 1024 * MEGABYTE
_LOOK_SECONDS = 0.005
_SLOW_SECONDS = 2.0
"""What has stalled others for so long need not be sent again."""
_OK = 200
_FORK = multiprocessing.get_context("fork")


class Server(RunningServer):
    """A server without the options that only the newest has: any headrace may be measured."""

    common = ()


@dataclass
class Cost:
    """What a request cost others.

    Attributes:
        status: What was answered to it.
        stall_seconds: The neighbour's longest wait.
        peak_bytes: What the process held beside what it held before.
        asked: How many requests of the neighbour were sent.
        refused: How many of them got something else than 200.
        ended: Whether the server was ended because it took too long, or too much.
    """

    status: str = "none"
    stall_seconds: float = 0.0
    peak_bytes: int = 0
    asked: int = 0
    refused: int = 0
    ended: bool = False


def run(effort: Effort, names: tuple[str, ...] = ()) -> None:
    """Print the table: what is hostile, what is large and legal, and four connections' worst small bodies.

    Args:
        effort: How much measuring is done; what costs seconds is sent once however much that is.
        names: Parts of the names of what is sent; everything if empty.
    """
    with tempfile.TemporaryDirectory() as directory:
        models = Path(directory) / "models"
        _write_models(models)
        for name, made in (*hostile_lines(), *legal_lines()):
            if _wanted(name, names):
                _print_line(name, models, made())
        if _wanted("4 × 64 KB", names):
            _print_worst(models, min(1.0, effort.seconds))


def _wanted(name: str, names: tuple[str, ...]) -> bool:
    return not names or any(part in name for part in names)


def _write_models(models: Path) -> None:
    write(models, MODEL, 1, affine(1.0, 1.0))
    write_models(models)
    write(models, "ages", 1, WORDS, '[signature]\nkind = "regress"\n')
    (models / "clicks" / "1").mkdir(parents=True)
    write_clicks(models / "clicks" / "1", "lr", LARGE)


def _print_line(name: str, models: Path, line: Line) -> None:
    with Server(models, "--allow-code") as server:
        waits(server.http_port, 0.2)
        costs = [_cost(server, line)]
        while len(costs) < line.times and costs[-1].stall_seconds < _SLOW_SECONDS and not costs[-1].ended:
            costs.append(_cost(server, line))
        if server.process.poll() is None:
            server.kill()
    more = "> " if any(cost.ended for cost in costs) else ""
    stalls = ", ".join(f"{cost.stall_seconds:.2f}" for cost in costs)
    peak = max(cost.peak_bytes for cost in costs) / MEGABYTE
    refused, asked = (sum(getattr(cost, what) for cost in costs) for what in ("refused", "asked"))
    said = f"{refused} of {asked}" if refused else "0"
    print(
        f"| {name} | {_size(line.wire_bytes)} | {costs[0].status} | {more}{stalls} s "
        f"| {more}{peak:.0f} MB | {said} |",
        flush=True,
    )


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.0f} KiB" if count < MEGABYTE else f"{count / MEGABYTE:.1f} MiB"


def _cost(server: RunningServer, line: Line) -> Cost:
    """Send it from a process of its own, so that a neighbour waits for nothing but the server."""
    statuses: SimpleQueue[str] = _FORK.SimpleQueue()
    sender = _FORK.Process(target=lambda: statuses.put(line.call(server)))
    cost, ended = Cost(), threading.Event()
    connection = Connection(server.http_port, MOST_SECONDS)
    connection.send(predict_request(MODEL, [1.0]))
    sender.start()
    watcher = threading.Thread(target=_watch, args=(server, cost, sender.is_alive, ended))
    watcher.start()
    while not ended.is_set():
        started = time.monotonic()
        status = connection.send(predict_request(MODEL, [1.0]))
        cost.stall_seconds = max(cost.stall_seconds, time.monotonic() - started)
        cost.asked += 1
        cost.refused += status != _OK
        time.sleep(0.001)  # a neighbour, not a load
    watcher.join()
    sender.join()
    connection.close()
    if not cost.ended and not statuses.empty():
        cost.status = statuses.get()
    return cost


def _watch(server: RunningServer, cost: Cost, under_way: Callable[[], bool], ended: threading.Event) -> None:
    """Look at the process's memory until the answer is there, and end it if it takes too long or too much."""
    before, until = server.rss_bytes(), time.monotonic() + MOST_SECONDS
    while under_way() and server.process.poll() is None:
        try:
            cost.peak_bytes = max(cost.peak_bytes, server.rss_bytes() - before)
        except (OSError, AssertionError):
            break  # it has ended by itself
        if time.monotonic() > until or cost.peak_bytes > _MOST_BYTES:
            cost.ended = True
            ended.set()
            server.kill()
            return
        time.sleep(_LOOK_SECONDS)
    cost.ended = server.process.poll() is not None
    ended.set()


def _print_worst(models: Path, seconds: float) -> None:
    with Server(models, "--allow-code") as server:
        for one in (*GOOD, *WORST):
            for how, request in (("", one.request()), (", gzip", one.packed(MEGABYTE))):
                with sending(server.http_port, [request]) as statuses:
                    waited = waits(server.http_port, seconds)
                status, longest = max(statuses), percentile(waited, 0.99) * 1000
                size, name = _size(len(request)), f"4 × 64 KB: {one.name}{how}"
                print(f"| {name} | {size} | {status} | p99 {longest:.1f} ms | | |", flush=True)


if __name__ == "__main__":
    from benchmarks.rounds import Effort as _Effort

    parser = argparse.ArgumentParser(prog="python -m benchmarks.door", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="part of a line's name; all if none is given"
    )
    run(_Effort(1, 0.4), tuple(parser.parse_args().names))
