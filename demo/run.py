"""The demonstration: `make demo`, or `python -m demo.run`.

Real ratings stream in, a click model learns from them, its versions appear, and a server answers from the
newest one all the while. Every page is asked about before it is learnt from. Exits 1 if a single request
failed, or a process did not end well.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

from demo import data, features, plot, report
from demo.clients import GrpcClient, RestClient
from demo.features import Page
from demo.replay import FROZEN, Record, Replay
from demo.server import Server, serving
from demo.trainer import Trainer, training

MODEL = "films"
FOLDER = Path(".data")
SETTINGS = Path(__file__).with_name("model.toml")
EVERY_ROWS = 10_000
REPLAY_SECONDS = 25.0
REST_CALLERS = 4
PATIENCE_SECONDS = 180.0
BEGAN = time.perf_counter()


def say(what: str) -> None:
    """Report progress."""
    print(f"[{time.perf_counter() - BEGAN:5.1f} s] {what}", flush=True)


def prepare() -> Iterator[Page]:
    """Get the data, and begin to make pages."""
    say(f"fetching MovieLens-100k (the package {data.PACKAGE})")
    ratings = data.load(data.fetch(FOLDER / "ratings"))
    say(f"{len(ratings.ratings):,} ratings of films in order of time; starting headrace train")
    return features.pages(ratings)


def beginning(pages: Iterator[Page], rows: int) -> list[Page]:
    """Take pages with so many rows together."""
    taken = []
    for page in pages:
        taken.append(page)
        if page.first_row + len(page.liked) >= rows:
            break
    return taken


async def first_version(trainer: Trainer, versions: Path) -> None:
    """Wait until the trainer has published something."""
    deadline = time.perf_counter() + PATIENCE_SECONDS
    while not (versions / "1").exists():
        if trainer.process.poll() is not None or time.perf_counter() > deadline:
            raise SystemExit("the trainer has published no version in time")
        await asyncio.sleep(0.05)


async def replay(
    pages: Sequence[Page], record: Record, server: Server, trainer: Trainer, versions: Path, seconds: float
) -> None:
    """Ask about pages and learn from them, until none are left."""
    rest = [RestClient(server.http_port, MODEL) for _ in range(REST_CALLERS)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        callers = Replay(rest, GrpcClient(channel, MODEL), versions)
        await callers.run(record, pages, trainer, seconds)
    for client in rest:
        await client.close()


async def run(pages: Iterator[Page], every_rows: int, seconds: float, picture: Path) -> int:
    """Tell the whole story, and leave nothing running.

    Args:
        pages: What happens, in order.
        every_rows: After how many rows a version is published; the first ones are not asked about.
        seconds: How long the rest shall take.
        picture: Where to draw how good the answers were.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as made:
        folder = Path(made)
        versions = folder / "models" / MODEL
        versions.mkdir(parents=True)
        (versions / "headrace.toml").write_text(f"[versions]\nlabels = {{ {FROZEN} = 1 }}\n")
        async with training(SETTINGS, versions, every_rows, folder / "trainer.log") as trainer:
            first = beginning(pages, every_rows)
            await trainer.learn(first)
            # The other pages are made while the trainer learns; on a new machine, it compiles first.
            rest = await asyncio.to_thread(list, pages)
            record = Record.of([*first, *rest])
            await first_version(trainer, versions)
            say(f"headrace train has published version 1 after {every_rows:,} rows; starting headrace serve")
            async with serving(folder / "models", MODEL, folder / "server.log") as server:
                say(f"ready on ports {server.http_port}, {server.grpc_port}; each page: ask, then learn")
                cpu_seconds = -server.cpu_seconds()
                await replay(rest, record, server, trainer, versions, seconds)
                cpu_seconds += server.cpu_seconds()
                await trainer.finish()
                say(f"the trainer has ended with code {trainer.process.returncode}")
            say(f"the server has drained and ended with code {server.process.returncode}")
    if not record.versions:
        raise SystemExit(f"no version answered: {record.failures.most_common(3)}")
    print(f"\n{report.text(record, trainer.summary, cpu_seconds)}\n")
    print(f"  plot: {plot.draw(record, picture)}\n")
    return 1 if record.failures or trainer.process.returncode or server.process.returncode else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(prepare(), EVERY_ROWS, REPLAY_SECONDS, FOLDER / "demo" / "demo.png")))
