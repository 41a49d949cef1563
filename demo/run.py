"""The demonstration: `make demo`, or `python -m demo.run`.

Real ratings become a model, the model is served, what was held out is replayed against it, and a better
version is published under that load. Exits 1 if a single request failed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np

from demo import clients, data, features, report, training
from demo.clients import Client
from demo.replay import Load, Tally, reached
from demo.scores import Numbers
from demo.server import Server, serving
from demo.training import MODEL, Candidate, Rows

REST, GRPC = "REST, 1 row", "gRPC, 32 rows"
REST_CALLERS = 16
GRPC_CALLERS = 8
ROWS_PER_GRPC_REQUEST = 32
PHASE_SECONDS = 8.0
PATIENCE_SECONDS = 60.0
BEGAN = time.perf_counter()

Callers = tuple[list[tuple[Client, Tally]], dict[str, Tally]]


def say(what: str) -> None:
    """Report progress."""
    print(f"[{time.perf_counter() - BEGAN:5.1f} s] {what}", flush=True)


def callers(server: Server, channel: grpc.aio.Channel, rows: Rows) -> Callers:
    """Make all callers, each starting at another place of the held-out rows."""
    tallies = {REST: Tally(len(rows)), GRPC: Tally(len(rows))}
    bodies = clients.json_bodies(rows)
    requests = clients.predict_requests(rows, MODEL, ROWS_PER_GRPC_REQUEST)
    made: list[tuple[Client, Tally]] = []
    for number in range(REST_CALLERS):
        start = number * len(bodies) // REST_CALLERS
        made.append((clients.RestClient(server.http_port, MODEL, bodies, start), tallies[REST]))
    for number in range(GRPC_CALLERS):
        start = number * len(requests) // GRPC_CALLERS
        client = clients.GrpcClient(channel, requests, ROWS_PER_GRPC_REQUEST, start)
        made.append((client, tallies[GRPC]))
    return made, tallies


async def until(tally: Tally, condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so; give up with what failed meanwhile."""
    try:
        await reached(condition, what, PATIENCE_SECONDS)
    except TimeoutError as error:
        failed = "\n".join(f"{count} × {line}" for line, count in tally.failures.most_common(3))
        raise SystemExit(f"the demonstration {error}\n{failed}") from None


async def phase(tally: Tally, version: int) -> None:
    """Let a version answer for a while, and every held-out row at least once."""
    await asyncio.sleep(PHASE_SECONDS)
    await until(tally, lambda: tally.share(version) == 1.0, f"version {version} to answer every row")


async def replay(
    models: Path, server: Server, candidates: dict[int, Candidate], rows: Rows, liked: Numbers
) -> report.Outcome:
    """Replay the held-out rows, and publish the second version meanwhile."""
    batch_rows = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        made, tallies = callers(server, channel, rows)
        cpu_before = server.cpu_seconds()
        async with Load(made) as load:
            say(f"replaying {len(rows):,} rows: {REST_CALLERS} callers over REST, {GRPC_CALLERS} over gRPC")
            await phase(tallies[GRPC], 1)
            batch_rows[1] = await asyncio.to_thread(server.mean_batch_rows, MODEL, 1)
            renamed = time.perf_counter()
            training.release(models, candidates[2])
            say("published version 2 under the load")
            await until(
                tallies[GRPC], lambda: any(2 in one.requests for one in tallies.values()), "version 2"
            )
            swap_seconds = time.perf_counter() - renamed
            say("version 2 answers")
            await phase(tallies[GRPC], 2)
            batch_rows[2] = await asyncio.to_thread(server.mean_batch_rows, MODEL, 2)
        cpu_seconds = server.cpu_seconds() - cpu_before
    described = {version: candidate.description for version, candidate in candidates.items()}
    return report.Outcome(liked, described, batch_rows, tallies, load.seconds, cpu_seconds, swap_seconds)


def prepare() -> tuple[dict[int, Candidate], Rows, Numbers]:
    """Get the data, make the features, train both versions; give them and the held-out rows."""
    say(f"fetching MovieLens-100k (the package {data.PACKAGE})")
    ratings = data.load(data.fetch(Path(".data/ratings")))
    say(f"{len(ratings.events):,} ratings, {ratings.liked.mean():.0%} liked; making features")
    rows = features.build(ratings)
    say(f"training two models on {rows.shape[1]} features")
    candidates = {1: training.first(rows, ratings.liked), 2: training.second(rows, ratings.liked)}
    # gRPC asks about whole groups of rows, so what is held out is cut to a whole number of them.
    held_out = len(rows) - int(len(rows) * training.TRAINED_SHARE)
    kept = held_out - held_out % ROWS_PER_GRPC_REQUEST
    return candidates, np.ascontiguousarray(rows[-kept:]), ratings.liked[-kept:]


async def run() -> int:
    """Tell the whole story, and leave nothing running."""
    candidates, rows, liked = prepare()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        models = Path(folder) / "models"
        say(f"publishing version 1, a {candidates[1].description}, and starting the server")
        training.release(models, candidates[1])
        async with serving(models, MODEL, Path(folder) / "server.log") as server:
            say(f"ready after {server.ready_seconds:.2f} s on ports {server.http_port}, {server.grpc_port}")
            outcome = await replay(models, server, candidates, rows, liked)
        code = server.process.returncode
        say(f"the server drained and ended with code {code}")
    print(f"\n{report.text(outcome)}\n")
    failed = sum(tally.failures.total() for tally in outcome.tallies.values())
    return 1 if failed or code else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
