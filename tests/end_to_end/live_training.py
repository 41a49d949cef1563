"""``headrace train`` beside ``headrace serve``: processes that learn, and clients that never stop asking."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np

from headrace.frontends.wire import protos
from tests.running_server import RunningServer
from tests.waiting import seconds_left

HEADRACE = (sys.executable, "-m", "headrace")
PAUSE_SECONDS = 0.005
_INFER = "/inference.GRPCInferenceService/ModelInfer"

CONTEXT = np.array([[9, 1, 2, 22]], np.uint32)
CONTEXT_DENSE = np.array([[0.5, -0.25]], np.float32)
CANDIDATES = np.array([[3, 4], [7, 8], [1, 2]], np.uint32)
"""A request for three candidates, in the fields of the generator's small shape."""


class LiveTrainer:
    """``headrace train`` that reads what it is given on standard input, and publishes into a directory."""

    def __init__(self, directory: Path, *options: object, source: tuple[object, ...] = ()) -> None:
        """Start it; use it as a context manager.

        Args:
            directory: The model's.
            options: More options of ``headrace train``.
            source: Options of the ``headrace stream generate`` to learn from; without, write to ``stdin``.
        """
        self._source = None
        if source:
            words = [*HEADRACE, "stream", "generate", "--shape", "small", *map(str, source)]
            self._source = subprocess.Popen(words, stdout=subprocess.PIPE)
        learn = [*HEADRACE, "train", "--publish", str(directory), *map(str, options)]
        self.process = subprocess.Popen(
            learn,
            stdin=subprocess.PIPE if self._source is None else self._source.stdout,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.summary: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End both processes, whatever state they are in."""
        for process in (self._source, self.process):
            if process is not None and process.poll() is None:
                process.kill()
            if process is not None:
                process.wait()
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()

    def end(self) -> int:
        """Ask it to end, as an operator would; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        output, errors = self.process.communicate()
        lines = output.splitlines()
        assert lines, errors.decode()
        self.summary = json.loads(lines[-1])
        return self.process.returncode


class Feed(threading.Thread):
    """Writes a stream to a trainer piece by piece, as a source that is live, until it is ended."""

    def __init__(self, trainer: LiveTrainer, content: bytes, bytes_a_second: float) -> None:
        super().__init__()
        self._trainer, self._content, self._pace = trainer, content, bytes_a_second
        self.ended = threading.Event()

    def run(self) -> None:
        """Write; what is left when it is ended is not written."""
        stdin = self._trainer.process.stdin
        assert stdin is not None
        piece = int(self._pace / 10)
        for start in range(0, len(self._content), piece):
            if self.ended.wait(0.1):
                return
            stdin.write(self._content[start : start + piece])
            stdin.flush()


class Callers:
    """Clients that ask models in turn, over REST and over gRPC, and note who answered."""

    def __init__(self, server: RunningServer, models: tuple[str, ...]) -> None:
        self.versions: dict[tuple[str, str], list[int]] = {
            (protocol, model): [] for protocol in ("REST", "gRPC") for model in models
        }
        self.failed: list[object] = []
        self.answers = 0
        self._server, self._models = server, models
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._rest), threading.Thread(target=self._grpc)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(120)

    def seen(self, model: str) -> int:
        """How many versions of a model have answered over both protocols."""
        return min(len(self.versions[protocol, model]) for protocol in ("REST", "gRPC"))

    def _rest(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=30)
        body = json.dumps(_as_json()).encode()

        def ask(model: str) -> tuple[int, list[float]]:
            connection.request("POST", f"/v2/models/{model}/infer", body)
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise ValueError(response.status, text)
            answer = json.loads(text)
            return int(answer["model_version"]), answer["outputs"][0]["data"]

        self._until_ended("REST", ask)
        connection.close()

    def _grpc(self) -> None:
        kinds = [protos.message(f"inference.ModelInfer{one}") for one in ("Request", "Response")]
        request = kinds[0]()
        request.parameters["signature_name"].string_param = "rows"
        for name, (datatype, array) in _inputs().items():
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        with grpc.insecure_channel(f"127.0.0.1:{self._server.grpc_port}") as channel:
            call = channel.unary_unary(_INFER)

            def ask(model: str) -> tuple[int, list[float]]:
                request.model_name = model
                answer = kinds[1].FromString(
                    call(request.SerializeToString(), timeout=30, wait_for_ready=True)
                )
                values = np.frombuffer(answer.raw_output_contents[0], np.float32)
                return int(answer.model_version), values.tolist()

            self._until_ended("gRPC", ask)

    def _until_ended(self, protocol: str, ask: Callable[[str], tuple[int, list[float]]]) -> None:
        turn = 0
        while not self._ended.wait(PAUSE_SECONDS):
            model = self._models[turn % len(self._models)]
            turn += 1
            try:
                version, answers = ask(model)
            except (OSError, ValueError, http.client.HTTPException, grpc.RpcError) as error:
                self.failed.append((protocol, model, error))
                continue
            if len(answers) != len(CANDIDATES) or not all(0 < one < 1 for one in answers):
                self.failed.append((protocol, model, answers))
            self.answers += 1
            known = self.versions[protocol, model]
            if not known or version != known[-1]:
                known.append(version)


def wait_for_version(directory: Path, trainer: LiveTrainer) -> None:
    """Wait until a trainer has published something."""
    deadline = time.monotonic() + seconds_left()
    while not (directory.is_dir() and any(path.name.isdigit() for path in directory.iterdir())):
        assert trainer.process.poll() is None, "the trainer has ended"
        assert time.monotonic() < deadline, "no version came"
        time.sleep(0.05)


def metric(server: RunningServer, name: str, model: str) -> dict[str, float]:
    """A metric's values of a model, by version ("" where it has no such label)."""
    status, text = server.get("/monitoring/prometheus/metrics")
    assert status == 200
    found = {}
    for line in text.decode().splitlines():
        match = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match.group(1))) if match else {}
        if match and labels.get("model") == model:
            found[labels.get("version", "")] = float(match.group(2))
    return found


def _inputs() -> dict[str, tuple[str, np.ndarray]]:
    return {
        "context": ("UINT32", CONTEXT),
        "context_dense": ("FP32", CONTEXT_DENSE),
        "candidate": ("UINT32", CANDIDATES),
    }


def _as_json() -> dict[str, object]:
    tensors = [
        {"name": name, "datatype": datatype, "shape": array.shape, "data": array.tolist()}
        for name, (datatype, array) in _inputs().items()
    ]
    return {"inputs": tensors, "parameters": {"signature_name": "rows"}}
