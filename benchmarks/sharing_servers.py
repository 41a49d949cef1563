"""The memory of ``headrace serve`` with models of 1 GiB: one process, and four workers with all beside them.

Memory is the proportional set size of the server's whole tree of processes, supervisor and keeper included,
after every worker has answered for rows on all pages of the table.
"""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.faults.worker_processes import connections_of, process_tree, pss_bytes, workers_of
from tests.running_server import RunningServer
from tests.sharing_models import publish_clicks, publish_lookup

SIZE = 2**30
AIM_BYTES = 1_600_000_000
WORKERS = (1, 4)
_PAGE_ROWS = 32  # rows of 128 bytes on a page of 4 KiB
_ROWS = 2**13
_START_SECONDS = 600.0
_CONNECTIONS = 512
_RANDOM_BODIES = 160  # five rows for each page of the table


def run() -> None:
    """Print a table with a verdict."""
    print(f"  headrace serve with one model of {SIZE / 2**30:g} GiB, memory of all its processes together")
    for kind, publish in (("clicks", publish_clicks), ("lookup", publish_lookup)):
        with tempfile.TemporaryDirectory() as name:
            publish(Path(name), SIZE)
            for workers in WORKERS:
                _measure(kind, Path(name), workers)


def _measure(kind: str, models: Path, workers: int) -> None:
    with RunningServer(models, "--workers", str(workers), seconds=_START_SECONDS) as server:
        server.wait_for(lambda: server.count_in_log("version is ready") == workers, "all", _START_SECONDS)
        with ExitStack() as held:
            for connection in _one_each(server, workers, held):
                for body in _bodies(kind):
                    _ask(connection, kind, body)
        tree = process_tree(server.process.pid)
        taken = pss_bytes(tree)
    verdict = (
        f"; aim {AIM_BYTES / 1e9:g} GB: {'met' if taken <= AIM_BYTES else 'MISSED'}" if workers > 1 else ""
    )
    print(
        f"    {kind:<7} --workers {workers}: {taken / 1e9:.2f} GB ({taken / 2**30:.2f} GiB) "
        f"in {len(tree)} processes{verdict}",
        flush=True,
    )


def _one_each(server: RunningServer, workers: int, held: ExitStack) -> Iterator[http.client.HTTPConnection]:
    """A connection to each worker."""
    processes = workers_of(server) or [server.process.pid]
    if len(processes) != workers:
        raise RuntimeError(f"expected {workers} workers, found {len(processes)}")
    reached = dict.fromkeys(processes, 0)
    for _ in range(_CONNECTIONS):
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=_START_SECONDS)
        held.callback(connection.close)
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        now = {one: connections_of(one, server) for one in processes}
        found = next(one for one in processes if now[one] > reached[one])
        if not reached[found]:
            yield connection
        reached = {one: connections_of(one, server) for one in processes}
        if all(reached.values()):
            return
    raise RuntimeError(f"of {_CONNECTIONS} connections a worker got none")


def _bodies(kind: str) -> Iterator[dict[str, np.ndarray]]:
    """Inputs that reach all pages of a table: one row of each, or so many at random that none is left out."""
    if kind == "lookup":
        rows = np.arange(0, SIZE // 128, _PAGE_ROWS)
        for start in range(0, len(rows), _ROWS):
            yield {"ad": rows[start : start + _ROWS]}
        return
    random = np.random.default_rng(0)
    for _ in range(_RANDOM_BODIES):
        yield {"ad": random.integers(0, 2**62, _ROWS), "user": np.zeros(_ROWS, np.int64)}


def _ask(connection: http.client.HTTPConnection, kind: str, body: dict[str, np.ndarray]) -> None:
    """One inference, with tensors as bytes both ways."""
    parts = [value.astype(np.int64).tobytes() for value in body.values()]
    inputs = [
        {
            "name": name,
            "datatype": "INT64",
            "shape": [len(value)],
            "parameters": {"binary_data_size": len(part)},
        }
        for (name, value), part in zip(body.items(), parts, strict=True)
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    connection.request("POST", f"/v2/models/{kind}/infer", head + b"".join(parts), headers)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200:
        raise RuntimeError(said[:500])
