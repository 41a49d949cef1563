"""``headrace archive feed``: killed and resumed it writes what an undisturbed one does, to the byte."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.archive.operations.open_archive import open_archive_file
from headrace.stream.schema import METADATA_KEY
from tests.streams import schema_of
from tests.waiting import seconds_left
from tools.services.kafka_server import Kafka

HEADRACE = [sys.executable, "-m", "headrace"]
EACH_TIME = 1e-6
ROWS, BATCH, MINUTES = 10_000, 200, 100
START = 1_767_225_600  # 2026-01-01, so that it lies on a boundary
LAST = START + (MINUTES + 60) * 60
"""When a last row without a key comes, after all windows are over."""

SETTINGS = """
[tables.demand]
history_seconds = 1e9
[tables.demand.feed]
key = "item"
[tables.demand.windows]
orders = { count = true, seconds = 1800 }
open = { sum = "change", seconds = 3000 }
"""

pytestmark = pytest.mark.rest


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders out of order, in batches; then a row without a key."""
    draw = np.random.default_rng(3)
    late = draw.exponential(20, ROWS)
    seconds = START + np.sort(draw.uniform(0, MINUTES * 60, ROWS)) - late
    schema = schema_of(
        item={"text": True},
        timestamp={"role": "timestamp"},
        change={"role": "dense"},
        label={"role": "label"},
    )
    table = pa.table(
        {
            "item": pa.array([*(f"item {one}" for one in draw.integers(0, 50, ROWS)), None]),
            "timestamp": pa.array(
                [*(seconds * 1e6).astype(np.int64).tolist(), LAST * 10**6], pa.timestamp("us", "UTC")
            ),
            "change": pa.array([*draw.choice([-1.0, 0.1, 1.0], ROWS), 0.0], pa.float32()),
            "label": pa.array([1] * (ROWS + 1), pa.int8()),
        }
    ).replace_schema_metadata({METADATA_KEY: schema.encode()})
    file = tmp_path_factory.mktemp("stream") / "orders.arrows"
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, BATCH)
    return file


def archive_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "archive.toml").write_text(SETTINGS)
    return folder / "archive.toml"


def run(*words: object, stdin: Path | None = None, code: int = 0) -> dict[str, Any]:
    with open(stdin or "/dev/null", "rb") as file:
        done = subprocess.run(
            [*HEADRACE, *map(str, words)],
            stdin=file,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if "--json" in words else {}
    return found


@contextmanager
def feeding(*words: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [*HEADRACE, "archive", "feed", "demand", *map(str, words)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def wait_for(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + seconds_left()
    while not condition():
        assert time.monotonic() < until, f"waited for {what}"
        time.sleep(0.02)


def checkpoints(place: Path) -> list[Path]:
    """Those that are there: two at the most, and the first ones are there for milliseconds."""
    return list(place.glob("[0-9]*"))


def written_until(settings: Path) -> int:
    """Until when the feed has noted that all is written, in seconds of Unix time."""
    with open_archive_file(settings) as archive:
        noted = archive.store.read("feed/demand")
    return int(json.loads(noted)["written"]["1"]) // 1000 if noted else 0


def everything(settings: Path) -> dict[str, object]:
    """All values with their times, as they lie in the store, and what they were at some times."""
    with open_archive_file(settings) as archive:
        keys = [key.decode() for key in archive.store.scan("demand_v1", limit=10_000).keys]
        stored = archive.store.get_many("demand_v1", [key.encode() for key in keys])
        then = {}
        for minute in range(0, MINUTES, 7):
            times = np.full(len(keys), (START + 60 * minute) * 1000, np.uint64)
            found = archive.as_of("demand", keys, times)
            then[minute] = dict(
                zip(keys, zip(found.written.tolist(), map(bytes, found.vectors), strict=True), strict=True)
            )
    return {"now": dict(zip(keys, stored, strict=True)), "then": then}


@pytest.fixture(scope="module")
def wanted(stream: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    settings = archive_in(tmp_path_factory.mktemp("whole") / "archive")
    told = run("archive", "feed", "demand", stream, "--archive", settings, "--json")
    assert (told["rows"], told["keys"], told["keyless"]) == (ROWS + 1, 0, 1)
    assert told["late"] > 500
    return everything(settings)


def test_killed_and_resumed_it_writes_the_same(stream: Path, wanted: object, tmp_path: Path) -> None:
    settings, content = archive_in(tmp_path / "archive"), stream.read_bytes()
    words = ["--archive", settings, "--checkpoint", tmp_path / "c"]
    with feeding(*words, "--checkpoint-every-seconds", EACH_TIME) as process:
        assert process.stdin is not None
        process.stdin.write(content[: len(content) // 3])
        process.stdin.flush()
        wait_for(lambda: checkpoints(tmp_path / "c"), "a checkpoint")
        process.stdin.write(content[len(content) // 3 : len(content) * 2 // 3])
        process.stdin.flush()
        wait_for(lambda: written_until(settings) > START + MINUTES * 60 // 2, "what comes after it")
        process.kill()
    told = run("archive", "feed", "demand", "-", *words, "--resume", "--json", stdin=stream)
    assert told["rows"] == ROWS + 1
    assert everything(settings) == wanted
    run("archive", "feed", "demand", stream, *words, code=2)  # it must be said that it goes on


def test_a_topic_is_gone_on_with_where_it_was(
    kafka_server: Kafka, stream: Path, wanted: object, tmp_path: Path
) -> None:
    settings, topic = archive_in(tmp_path / "archive"), f"kafka://{kafka_server.address}/orders"
    with pa.ipc.open_stream(stream) as reader:
        table = reader.read_all()
    for name, part in (("first", table.slice(0, ROWS // 2)), ("second", table.slice(ROWS // 2))):
        with pa.ipc.new_stream(tmp_path / name, table.schema) as writer:
            writer.write_table(part, BATCH)
    run("stream", "publish", tmp_path / "first", topic, "--partitions", 1, "--batch-rows", BATCH)
    words = [
        topic,
        "--archive",
        settings,
        "--checkpoint",
        tmp_path / "c",
        "--checkpoint-every-seconds",
        EACH_TIME,
    ]
    with feeding(*words) as process:
        wait_for(lambda: checkpoints(tmp_path / "c"), "a checkpoint")
        process.kill()
    run("stream", "publish", tmp_path / "second", topic)
    with feeding(*words, "--resume", "--json") as process:
        wait_for(lambda: written_until(settings) > START + MINUTES * 60, "the last row")
        process.terminate()
        assert process.wait() == 143
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["rows"] == ROWS + 1
    assert everything(settings) == wanted
