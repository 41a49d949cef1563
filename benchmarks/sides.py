"""The servers that are compared: how each is started, asked for a true answer, and loaded."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.load import GRPC_BODIES, HTTP_BODIES, Sample, measure_grpc, measure_http
from benchmarks.models import model_directory
from benchmarks.processes import PEERS_PYTHON, START_SECONDS, Command, Server, http_post, running
from benchmarks.rows import (
    Floats,
    Reference,
    Rows,
    grpc_body,
    grpc_request,
    inference,
    json_body,
    raw_body,
    rows_of_request,
)

Wire = Literal["grpc", "json", "raw"]
TOLERANCE = 1e-6
"""How far an answer may be from ONNX Runtime's in this process: the batch size changes the order of sums."""
JSON_PATH = "/v1/models/ctr:predict"
RAW_PATH = "/inference"
RAW_TYPE = "application/octet-stream"


@dataclass(frozen=True)
class Side:
    """A server and the wire it is asked over.

    Attributes:
        command: What starts it.
        wire: gRPC with raw contents, REST with JSON, or HTTP with raw bytes.
        directory: Of its model; that with `ctr` as it is if None.
    """

    command: Command
    wire: Wire
    directory: Path | None = None

    @property
    def name(self) -> str:
        """What the tables call it."""
        return self.command.name


def model_path(directory: Path | None = None) -> str:
    """The model's file, for servers that take one; that of `ctr` as it is if no directory is given."""
    return str((directory or model_directory()) / "ctr" / "1" / "model.onnx")


def headrace(
    wire: Wire, directory: Path | None = None, name: str = "headrace", options: tuple[str, ...] = ()
) -> Side:
    """Headrace as it comes: the same command and the default settings in every benchmark.

    Args:
        wire: What it is asked over; it speaks both all the time.
        directory: Its model directory; the one with `ctr` alone if not given.
        name: What the tables call it.
        options: Other options of `headrace serve`, where those are what is compared.
    """
    served = str(directory or model_directory())
    ports = ("--http-port", "0", "--grpc-port", "0")
    program = (str(Path(sys.executable).with_name("headrace")), "serve", served, *ports, *options)
    announces = (("http", r"REST\s+https?://\S+:(\d+)"), ("grpc", r"gRPC\s+\S+:(\d+)"))
    return Side(Command(name, program, announces=announces), wire)


def grpcio(threads: int = 10, limit: int = 0, directory: Path | None = None) -> Side:
    """A plain grpcio server with a thread pool, unbatched.

    Args:
        threads: Of the pool.
        limit: Calls at a time, more are refused; 0 for any number.
        directory: As for headrace.
    """
    options: tuple[str, ...] = (
        "--model",
        model_path(directory),
        "--port",
        "{port}",
        "--threads",
        str(threads),
    )
    options += ("--limit", str(limit)) if limit else ()
    program = (str(PEERS_PYTHON), "-m", "benchmarks.peers.grpcio_server", *options)
    limited = f", {limit} calls at most" if limit else ""
    return Side(Command(f"grpcio, {threads} threads{limited}", program), "grpc", directory)


def fastapi(handler: Literal["sync", "async"], directory: Path | None = None) -> Side:
    """FastAPI on uvicorn with pydantic, unbatched.

    Args:
        handler: Whether requests are handled in its thread pool or on the event loop.
        directory: As for headrace.
    """
    options = ("--model", model_path(directory), "--port", "{port}", "--handler", handler)
    program = (str(PEERS_PYTHON), "-m", "benchmarks.peers.fastapi_server", *options)
    return Side(Command(f"FastAPI, {handler} def", program), "json", directory)


def mosec(batch: int, wait_milliseconds: int) -> Side:
    """Mosec with one worker and raw bytes.

    Args:
        batch: How many requests it merges at most.
        wait_milliseconds: How long it waits for them.
    """
    program = (str(PEERS_PYTHON), "-m", "benchmarks.peers.mosec_server", "--port", "{port}")
    settings = {
        "PEER_MODEL": model_path(),
        "PEER_MAX_BATCH_SIZE": str(batch),
        "PEER_MAX_WAIT_MILLISECONDS": str(wait_milliseconds),
    }
    quiet = ("--address", "127.0.0.1", "--log-level", "warning")
    return Side(Command(f"mosec, batch {batch}, {wait_milliseconds} ms", program + quiet, settings), "raw")


class Contender:
    """A running side with the requests that it gets, each of which it has answered rightly once.

    Attributes:
        side: What runs.
        server: The running server.
        requests: The distinct requests.
        bodies: The same as they travel.
        answer_bytes: The size of a gRPC answer with its frame.
        ready_at: When the first answer came, on the monotonic clock.
    """

    def __init__(self, side: Side, server: Server, rows: int) -> None:
        """Ask for every distinct request once, and compare the answers with ONNX Runtime's.

        Args:
            side: What runs.
            server: The running server.
            rows: How many rows each request has.

        Raises:
            RuntimeError: An answer is wrong.
        """
        self.side = side
        self.server = server
        count = GRPC_BODIES if side.wire == "grpc" else HTTP_BODIES
        self.requests = [rows_of_request(rows, number) for number in range(count)]
        encode: dict[Wire, Callable[[Rows], bytes]] = {"grpc": grpc_body, "json": json_body, "raw": raw_body}
        self.bodies = [encode[side.wire](request) for request in self.requests]
        self.answer_bytes = 0
        self.ready_at = self._wait_until_ready()
        self._check()

    def _wait_until_ready(self) -> float:
        """When the first answer came, on the monotonic clock: a server may listen without a model."""
        import grpc  # noqa: PLC0415  # A heavy package of the harness alone.

        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.ask(0)
            except (grpc.RpcError, RuntimeError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return time.monotonic()

    def _check(self) -> None:
        reference = Reference(Path(model_path(self.side.directory)))
        for number, request in enumerate(self.requests):
            answer, wanted = self.ask(number), reference.answer(request)
            if answer.shape != wanted.shape or not np.allclose(answer, wanted, rtol=0, atol=TOLERANCE):
                raise RuntimeError(f"{self.side.name} answers {answer[:4]}…, ONNX Runtime {wanted[:4]}…")

    def ask(self, number: int) -> Floats:
        """Send one of the requests by itself.

        Args:
            number: Which.

        Returns:
            The predictions, one a row.
        """
        ask = {"grpc": self._ask_grpc, "json": self._ask_json, "raw": self._ask_raw}[self.side.wire]
        return ask(self.requests[number], self.bodies[number])

    def _ask_grpc(self, rows: Rows, _: bytes) -> Floats:
        import grpc  # noqa: PLC0415  # A heavy package of the harness alone.

        with grpc.insecure_channel(f"127.0.0.1:{self.server.ports['grpc']}") as channel:
            stub = inference()[1].GRPCInferenceServiceStub(channel)
            response = stub.ModelInfer(grpc_request(rows), timeout=20, wait_for_ready=True)
        self.answer_bytes = 5 + response.ByteSize()
        return np.frombuffer(response.raw_output_contents[0], np.float32)

    def _ask_json(self, _: Rows, body: bytes) -> Floats:
        answer = json.loads(http_post(self.server.ports["http"], JSON_PATH, body, "application/json"))
        return np.array(answer["predictions"], np.float32).reshape(-1)

    def _ask_raw(self, _: Rows, body: bytes) -> Floats:
        return np.frombuffer(http_post(self.server.ports["http"], RAW_PATH, body, RAW_TYPE), np.float32)

    def load(self, seconds: float, in_flight: int = 64, per_second: float = 0.0) -> Sample:
        """One round of load.

        Args:
            seconds: About how long.
            in_flight: Requests at a time; over HTTP it is always 64.
            per_second: What the server makes, so that the time can be filled; tried out if 0.
        """
        if self.side.wire != "grpc":
            path, kind = (JSON_PATH, "application/json") if self.side.wire == "json" else (RAW_PATH, RAW_TYPE)
            return measure_http(self.server, path, kind, self.bodies, seconds)
        rate = per_second or self._grpc(1000, in_flight).per_second
        return self._grpc(max(200, round(rate * seconds)), in_flight)

    def _grpc(self, requests: int, in_flight: int) -> Sample:
        return measure_grpc(self.server, self.bodies, self.answer_bytes, requests, in_flight)


@contextmanager
def contenders(sides: list[Side], rows: int) -> Iterator[dict[str, Contender]]:
    """Start all sides at once, each checked and warm; those that are not loaded sit idle.

    Args:
        sides: What to start.
        rows: How many rows each request has.

    Yields:
        The contenders by name.
    """
    with ExitStack() as stack:
        started = {side.name: stack.enter_context(running(side.command)) for side in sides}
        yield {side.name: Contender(side, started[side.name], rows) for side in sides}


def best_of(sides: list[Side], rows: int, seconds: float = 2.0) -> Side:
    """Try settings, one after the other, and take the one that spends the least CPU per request.

    Args:
        sides: The same server with different settings.
        rows: How many rows each request has.
        seconds: How long each is tried.
    """
    tried: dict[str, float] = {}
    for side in sides:
        with contenders([side], rows) as one:
            one[side.name].load(1.0)
            sample = one[side.name].load(seconds)
        spent = tried[side.name] = sample.cpu_microseconds
        print(f"  tried {side.name}: {spent:.1f} µs of CPU, {sample.per_second:.0f} requests/s")
    return min(sides, key=lambda side: tried[side.name])
