"""What a large message costs a server of each tree: gRPC, a picture of 150 KB a request, 64 in flight.

Whole servers on one core, loaded from the other one by a client that sends frames of 16 KiB (as Go's, .NET's
and most proxies do) or as large as the server takes (as gRPC's C core does, which Python and C++ have).
"""

from __future__ import annotations

import http.client
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from benchmarks import frames
from benchmarks.h2load import METHOD
from benchmarks.models import PICTURE_BYTES, picture_directory
from benchmarks.processes import START_SECONDS, Command, Server, running
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread
from headrace.frontends.wire import protos

IN_FLIGHT = 64
BODIES = 32
FRAMES = {"frames of 16 KiB": 16 * 1024, "frames as large as may be": 2**24 - 1}
_ANNOUNCES = (("http", r"REST\s+https?://\S+:(\d+)"), ("grpc", r"gRPC\s+\S+:(\d+)"))


def run(effort: Effort, trees: Mapping[str, Path]) -> None:
    """Measure all trees in turns.

    Args:
        effort: How much measuring is done.
        trees: The sources of each, by name; the first is compared with the others.
    """
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        folder = Path(directory)
        (folder / "bodies").write_bytes(b"".join(_body(number) for number in range(BODIES)))
        servers = {name: stack.enter_context(running(_command(name, tree))) for name, tree in trees.items()}
        measures = {
            (name, how): _Measure(server, folder, size, effort.seconds)
            for how, size in FRAMES.items()
            for name, server in servers.items()
        }
        for server in servers.values():
            _wait_until_ready(server)
        for measure in measures.values():
            measure(1.0)
        named = {f"{name}, {how}": measure for (name, how), measure in measures.items()}
        measured = interleaved(named, effort.rounds)
    lines = [("gRPC, 150 KB, 64 in flight", "CPU µs/req", "requests/s")]
    for name, rounds in measured.items():
        cpu, speed = zip(*rounds, strict=True)
        lines.append((name, spread(cpu, 1), f"{middle(speed):,.0f}"))
    print_lines(lines)
    this, *others = trees
    for how in FRAMES:
        for other in others:
            cpu = [[one[0] for one in measured[f"{name}, {how}"]] for name in (this, other)]
            print(f"gRPC, 150 KB, {how}, {this} / {other}: {spread(ratios(*cpu), 3)}", flush=True)


def _wait_until_ready(server: Server) -> None:
    """Wait for the model: a server listens before it is loaded."""
    until = time.monotonic() + START_SECONDS
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=START_SECONDS)
        with closing(connection):
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        if time.monotonic() > until:
            raise RuntimeError(f"{server.command.name} is not ready")
        time.sleep(0.05)


class _Measure:
    """Loads a server, and says what it spent on a request in µs, and how many it answered in a second."""

    def __init__(self, server: Server, folder: Path, frame_bytes: int, seconds: float) -> None:
        self._server = server
        self._folder = folder
        self._how = ("--in-flight", str(IN_FLIGHT), "--frame-bytes", str(frame_bytes))
        self._seconds = seconds
        self._answer_bytes = _answer_bytes()

    def __call__(self, seconds: float = 0.0) -> tuple[float, float]:
        before = self._server.counters().cpu_seconds
        port, seconds = self._server.ports["grpc"], seconds or self._seconds
        seen = frames.calls(self._folder, port, METHOD, self._answer_bytes, seconds, self._how)
        if seen.good < len(seen.spent):
            raise RuntimeError(
                f"{len(seen.spent) - seen.good} of {len(seen.spent)} calls were not answered well"
            )
        spent = self._server.counters().cpu_seconds - before
        return spent / seen.good * 1e6, seen.good / seen.seconds


def _body(number: int) -> bytes:
    picture = np.random.default_rng(number).integers(0, 256, (1, PICTURE_BYTES), dtype=np.uint8)
    request = protos.message("inference.ModelInferRequest")(model_name="ctr")
    request.inputs.add(name="picture", datatype="UINT8", shape=picture.shape)
    request.raw_input_contents.append(picture.tobytes())
    message: bytes = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


def _answer_bytes() -> int:
    """The size of a good answer with its frame."""
    response = protos.message("inference.ModelInferResponse")(model_name="ctr", model_version="1")
    response.outputs.add(name="p", datatype="FP32", shape=[1, 1])
    response.raw_output_contents.append(bytes(4))
    size: int = response.ByteSize()
    return 5 + size


def _command(name: str, tree: Path) -> Command:
    ports = ("--http-port", "0", "--grpc-port", "0")
    program = (sys.executable, "-m", "headrace", "serve", str(picture_directory()), *ports)
    return Command(f"{name} pictures", program, {"PYTHONPATH": str(tree.resolve())}, _ANNOUNCES)
