"""The door: how long one hostile request holds up a neighbour, and how much memory it takes.

Stall is the longest time that a neighbour's small request took meanwhile; peak is what the process held at
the most, beside what it held before. `PYTHONPATH` says which headrace is started, so that two can be
compared: `PYTHONPATH=OTHER/src python -m benchmarks.door`.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.neighbours import Connection, percentile, sending, waits
from tests.faults.still_serves import MODEL, http_request
from tests.faults.worst_bodies import GOOD, WORST, Worst, large_numbers, large_text, write_models
from tests.model_directories import affine, write
from tests.running_server import RunningServer

if TYPE_CHECKING:
    from benchmarks.rounds import Effort

_MOST_SECONDS = 20.0
_MEGABYTE = 1 << 20
_LARGE = 60 * _MEGABYTE


def run(effort: Effort) -> None:
    """Send each attack once to a server of its own, then the worst 64 KB bodies from four connections.

    Args:
        effort: How much measuring is done; the attacks are sent once however much that is.
    """
    with tempfile.TemporaryDirectory() as directory:
        models = Path(directory) / "models"
        write(models, MODEL, 1, affine(1.0, 1.0))
        write_models(models)
        for name, request in _attacks():
            stall, peak, status = _once(models, request)
            print(
                f"  {name:42} {len(request) / 1024:9.0f} KiB  {status:>7}  stall {stall:6.2f} s  "
                f"peak {peak / _MEGABYTE:5.0f} MB",
                flush=True,
            )
        with RunningServer(models, "--allow-code") as server:
            for one in (*GOOD, *WORST):
                for how, request in (("", one.request()), (", gzip", one.packed(_MEGABYTE))):
                    with sending(server.http_port, [request]) as statuses:
                        waited = waits(server.http_port, min(1.0, effort.seconds))
                    print(
                        f"  4 × {one.name + how:38} {len(request) / 1024:9.0f} KiB  {max(statuses):>7}  "
                        f"p99 {percentile(waited, 0.99) * 1000:7.1f} ms",
                        flush=True,
                    )


def _attacks() -> Iterator[tuple[str, bytes]]:
    by_name = {one.name: one for one in WORST}
    yield "65 lists, then escaped quotes", by_name["escaped quotes in deep lists"].request()
    lists = Worst("", "/v1/models/pair:predict", b'{"inputs":{"a":[', b"[],", b'],"b":[1]}}')
    yield "60 MiB of empty lists", lists.request(_LARGE)
    yield "60 MiB of empty lists, gzip", lists.packed(_LARGE)
    yield "numbers like 1e-320", by_name["tiny numbers"].request()
    yield "numbers like 1e-320, gzip", by_name["tiny numbers"].packed(_MEGABYTE)
    yield "20,000 inputs, the last two of one name", _many_inputs(20_000)
    yield (
        "60 MiB of zeros, gzip",
        http_request(
            "/v1/models/half_plus_two:predict", gzip.compress(bytes(_LARGE)), "content-encoding: gzip"
        ),
    )
    yield "64 MB of texts, legal", large_text(64 * _MEGABYTE - 4096)
    for form in ("rows", "columns", "flat", "nested"):
        yield f"64 MB, a million numbers, legal, {form}", large_numbers(64 * _MEGABYTE - 4096, form)


def _many_inputs(count: int) -> bytes:
    names = [*(f"x{index}" for index in range(count - 2)), "same", "same"]
    inputs = [{"name": name, "datatype": "FP32", "shape": [1], "data": [1]} for name in names]
    return http_request("/v2/models/half_plus_two/infer", json.dumps({"inputs": inputs}).encode())


def _once(models: Path, request: bytes) -> tuple[float, int, str]:
    with RunningServer(models, "--allow-code") as server:
        before, peak, ended = server.rss_bytes(), 0, threading.Event()
        statuses: list[int] = []

        def send() -> None:
            connection = Connection(server.http_port)
            statuses.append(connection.send(request))
            connection.close()
            ended.set()

        def watch() -> None:
            nonlocal peak
            while not ended.is_set():
                peak = max(peak, server.rss_bytes() - before)
                time.sleep(0.005)

        threads = [threading.Thread(target=send), threading.Thread(target=watch)]
        for thread in threads:
            thread.start()
        longest = max(waits(server.http_port, 3 * _MOST_SECONDS, ended))
        for thread in threads:
            thread.join()
        return longest, peak, str(statuses[0] or "none")


if __name__ == "__main__":
    from benchmarks.rounds import Effort as _Effort

    run(_Effort(1, 0.4))
