"""A greedy caller beside a modest one: what does he cost the other's p99, in one queue and in turns?"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np

from benchmarks.processes import cores, on_core
from benchmarks.rounds import Effort, middle, print_lines, spread, verdict
from headrace.access.keys import NEW_FILE, KeyEntry, draw, with_key
from headrace.frontends.wire import protos

GREEDY_AT_ONCE = 128
MODEST_EVERY_SECONDS = 0.015
METHOD = "/inference.GRPCInferenceService/ModelInfer"


class Model(NamedTuple):
    """What is asked for. Together all its instances answer some hundred rows a second: it is what is short.

    Attributes:
        name: For people.
        call_seconds: What a batch takes, whatever its rows.
        row_seconds: What each row adds.
        instances: How many batches run side by side.
        most_rows: The largest batch.
    """

    name: str
    call_seconds: float
    row_seconds: float
    instances: int
    most_rows: int


MODELS = (
    Model("12.5 ms a batch, 1 instance", 0.0125, 0.0, 1, 8),
    Model("12.5 ms a batch, 2 instances", 0.0125, 0.0, 2, 4),
    Model("12.5 ms a batch, 4 instances", 0.0125, 0.0, 4, 2),
    Model("1 ms a row, 1 instance", 0.0005, 0.001, 1, 256),
)
SOURCE = """
import random, time
class Model:
    inputs = [("x", "FP32", [4])]
    outputs = [("y", "FP32", [4])]
    def predict(self, inputs):
        # As a processor that computes beside this one does. No two take the same time: instances that did
        # would begin and end together for ever, and a newcomer wait for all of them.
        seconds = {model.call_seconds} + {model.row_seconds} * len(inputs["x"])
        time.sleep(seconds * random.uniform(0.8, 1.2))
        return {{"y": inputs["x"]}}
"""


def _message() -> bytes:
    request = protos.message("inference.ModelInferRequest")(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(np.zeros((1, 4), np.float32).tobytes())
    written: bytes = request.SerializeToString()
    return written


@contextmanager
def _serving(place: Path, what: Model) -> Iterator[tuple[int, dict[str, str]]]:
    model = place / "models/m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(SOURCE.format(model=what))
    (model / "headrace.toml").write_text(
        f"[batching]\nmax_batch_rows = {what.most_rows}\ninstances = {what.instances}\n"
    )
    keys, text = {}, NEW_FILE
    for name in ("greedy", "modest"):
        key = draw()
        keys[name] = key.text
        entry = KeyEntry(name=name, id=key.id, digest=key.digest, verbs=("predict",), models=("*",))
        text = with_key(text, entry, "keys.toml")
    (place / "keys.toml").write_text(text)
    command = [sys.executable, "-m", "headrace", "serve", str(place / "models"), "--allow-code"]
    command += ["--http-port", "0", "--grpc-port", "0", "--drain-lead-seconds", "0"]
    command += ["--access-file", str(place / "keys.toml")]
    with subprocess.Popen(
        on_core(cores()[0], command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"gRPC  .*:(\d+)", line):
                    port = int(found[1])
                if "try it" in line:
                    break
            yield port, keys
        finally:
            process.terminate()


async def _greedily(port: int, key: str, seconds: float) -> int:
    """How many requests are answered, so many at once."""
    message, clock, answered = _message(), asyncio.get_running_loop().time, 0
    until = clock() + seconds
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary(METHOD)

        async def again() -> None:
            nonlocal answered
            while clock() < until:
                await ask(message, metadata=(("x-api-key", key),))
                answered += 1

        await asyncio.gather(*(again() for _ in range(GREEDY_AT_ONCE)))
    return answered


def _modestly(port: int, key: str, seconds: float) -> list[float]:
    """Milliseconds that each request takes, one at a time."""
    message, waited = _message(), []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask, until = channel.unary_unary(METHOD), time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            ask(message, metadata=(("x-api-key", key),))
            waited.append(1000 * (time.monotonic() - began))
            time.sleep(MODEST_EVERY_SECONDS)
    return waited


def _waits(port: int, modest_key: str, greedy_key: str, seconds: float) -> tuple[list[float], int]:
    """What the modest caller waits, beside a process that asks greedily if it has a key; its answers."""
    if not greedy_key:
        return _modestly(port, modest_key, seconds), 0
    program = "import sys, asyncio; from benchmarks.fairness import _greedily as g; "
    program += "print(asyncio.run(g(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))))"
    command = ["nice", "-n", "10", sys.executable, "-c", program, str(port), greedy_key, str(seconds + 3)]
    with subprocess.Popen(on_core(cores()[1], command), stdout=subprocess.PIPE, text=True) as greedy:
        time.sleep(2.0)  # it has begun, and has filled the queue
        waited = _modestly(port, modest_key, seconds)
        answered, _ = greedy.communicate(timeout=60)
    return waited, int(answered)


def run(effort: Effort) -> None:
    """Measure the modest caller alone, with a key of the greedy one (one queue), and with his own (turns)."""
    lines = [["model", "p50 alone", "p99 alone", "p99, one queue", "p99, turns", "of alone", "greedy/s"]]
    shares = {}
    for model in MODELS:
        found: dict[str, list[float]] = {"alone": [], "queue": [], "turns": [], "p50": []}
        rate = 0.0
        with tempfile.TemporaryDirectory() as place, _serving(Path(place), model) as (port, keys):
            for _ in range(effort.rounds):
                for side, me, other in (
                    ("alone", keys["modest"], ""),
                    ("queue", keys["greedy"], keys["greedy"]),
                    ("turns", keys["modest"], keys["greedy"]),
                ):
                    waited, answered = _waits(port, me, other, effort.seconds)
                    found[side].append(float(np.percentile(waited, 99)))
                    rate = answered / (effort.seconds + 3)
                    if side == "alone":
                        found["p50"].append(float(np.percentile(waited, 50)))
        shares[model.name] = [
            turns / alone for turns, alone in zip(found["turns"], found["alone"], strict=True)
        ]
        numbers = [f"{middle(found[side]):.1f} ms" for side in ("p50", "alone", "queue", "turns")]
        lines.append([model.name, *numbers, f"{spread(shares[model.name])}×", f"{rate:,.0f}"])
    print_lines(lines)
    for name, share in shares.items():
        verdict(
            f"p99 of a modest caller beside a greedy one, {name}: at most 1.5 of alone",
            middle(share) <= 1.5,
            f"{spread(share)} of it",
        )
