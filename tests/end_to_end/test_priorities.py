"""Classes of requests, and Triton's timeout, with real servers: both protocols, REST, gRPC and streams."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.frontends.wire import protos
from tests.model_directories import write
from tests.running_server import RunningServer
from tests.unit.access.keys_of_tests import entry, key_of, written

MODEL = """
import os
import time

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def predict(self, inputs):
        with open("PLACE/order", "a") as file:
            file.writelines(f"{value:g}\\n" for value in inputs["x"])
        while not os.path.exists("PLACE/go"):
            time.sleep(0.01)
        return {"y": inputs["x"]}
"""
SETTINGS = "[batching]\ninstances = 1\nmax_batch_rows = 1\ninline_seconds = 0\n[warm_up]\nenabled = false\n"
FIRST = 1.0
LONG_SECONDS = 120.0
SHORT_MICROSECONDS = 300_000

InferRequest = protos.message("inference.ModelInferRequest")
StreamResponse = protos.message("inference.ModelStreamInferResponse")
PredictRequest = protos.message("tensorflow.serving.PredictRequest")
INFER = "/inference.GRPCInferenceService/"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
SAME = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    504: "DEADLINE_EXCEEDED",
    503: "UNAVAILABLE",
    200: "OK",
}

Headers = Mapping[str, str]
Ask = Callable[["Waiting", float, Headers, Mapping[str, int]], str]
"""Ask for a value with some headers and some parameters of the Open Inference Protocol; how it ends."""


class Waiting:
    """A server whose model computes one request at a time, the first of them until it is told to go on."""

    def __init__(self, server: RunningServer, place: Path) -> None:
        self.server, self._place = server, place
        self._threads = ThreadPoolExecutor(32)

    def ask(self, ask: Ask, value: float, headers: Headers, **parameters: int) -> Future[str]:
        key = {"authorization": f"Bearer {key_of(headers.get('by', 'all')).text}"}
        named = {name: said for name, said in headers.items() if name != "by"}
        return self._threads.submit(ask, self, value, {**key, **named}, parameters)

    def computed(self) -> list[float]:
        """The values that were computed, in their order."""
        file = self._place / "order"
        return [float(line) for line in file.read_text().split()] if file.exists() else []

    def queued(self) -> int:
        """How many rows wait."""
        headers = {"x-api-key": key_of("all").text}
        told = self.server.request("GET", "/metrics", headers=headers)[1].decode()
        return sum(
            round(float(line.rpartition(" ")[2]))
            for line in told.splitlines()
            if line.startswith('headrace_queued_rows{model="m"')
        )

    def hold(self) -> Future[str]:
        """Ask for the one that holds up the others."""
        first = self.ask(tfs_rest, FIRST, {})
        self.server.wait_for(lambda: self.computed() == [FIRST], "the first one to be computed")
        return first

    def go(self) -> None:
        (self._place / "go").touch()

    def close(self) -> None:
        self.go()
        self._threads.shutdown()


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    write(tmp_path / "models", "m", 1, MODEL.replace("PLACE", str(tmp_path)), SETTINGS)
    file = tmp_path / "keys.toml"
    written(file, entry("usual", ["predict"]), entry("all", ["predict", "metrics"]))
    file.write_text(f"{file.read_text('utf-8')}priorities = [1, 2, 3]\n", "utf-8")
    with RunningServer(tmp_path / "models", "--allow-code", "--access-file", str(file)) as server:
        made = Waiting(server, tmp_path)
        try:
            yield made
        finally:
            made.close()


# ---- The doors ----


def tfs_rest(waiting: Waiting, value: float, headers: Headers, parameters: Mapping[str, int]) -> str:
    assert not parameters
    return rest(waiting, "/v1/models/m:predict", {"instances": [value]}, headers)


def oip_rest(waiting: Waiting, value: float, headers: Headers, parameters: Mapping[str, int]) -> str:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [value]}
    return rest(waiting, "/v2/models/m/infer", {"inputs": [tensor], "parameters": parameters}, headers)


def rest(waiting: Waiting, path: str, body: object, headers: Headers) -> str:
    sent = {"content-type": "application/json", **headers}
    return SAME[waiting.server.request("POST", path, json.dumps(body).encode(), sent)[0]]


def tfs_grpc(waiting: Waiting, value: float, headers: Headers, parameters: Mapping[str, int]) -> str:
    assert not parameters
    request = PredictRequest()
    request.model_spec.name = "m"
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].float_val.append(value)
    return unary(waiting, PREDICT, request, headers)


def oip_grpc(waiting: Waiting, value: float, headers: Headers, parameters: Mapping[str, int]) -> str:
    return unary(waiting, f"{INFER}ModelInfer", infer_request(value, parameters), headers)


def oip_stream(waiting: Waiting, value: float, headers: Headers, parameters: Mapping[str, int]) -> str:
    sent: queue.Queue[bytes | None] = queue.Queue()
    sent.put(infer_request(value, parameters).SerializeToString())
    with channel(waiting) as one:
        call = one.stream_stream(f"{INFER}ModelStreamInfer")
        answers = call(iter(sent.get, None), timeout=LONG_SECONDS, metadata=tuple(headers.items()))
        try:
            told = StreamResponse.FromString(next(answers)).error_message
        except grpc.RpcError as error:
            return str(error.code().name)
        finally:
            sent.put(None)
    return told or "OK"


def infer_request(value: float, parameters: Mapping[str, int]) -> Any:
    request = InferRequest(model_name="m", raw_input_contents=[np.float32(value).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    for name, number in parameters.items():
        request.parameters[name].int64_param = number
    return request


def unary(waiting: Waiting, method: str, request: Any, headers: Headers) -> str:
    with channel(waiting) as one:
        call = one.unary_unary(method)
        try:
            call(request.SerializeToString(), timeout=LONG_SECONDS, metadata=tuple(headers.items()))
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


@contextmanager
def channel(waiting: Waiting) -> Iterator[grpc.Channel]:
    target, options = f"127.0.0.1:{waiting.server.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as made:
        yield made


DOORS = (tfs_rest, oip_rest, tfs_grpc, oip_grpc, oip_stream)
OIP_DOORS = (oip_rest, oip_grpc, oip_stream)


# ---- What they ask for ----


def test_classes_are_computed_one_after_the_other_whatever_they_come_by(waiting: Waiting) -> None:
    """A class is a header; the Open Inference Protocol's parameter of that name changes nothing."""
    ended = [waiting.hold()]
    for priority in (3, 2, 1):
        headers = {} if priority == 2 else {"headrace-priority": str(priority)}
        ended += [waiting.ask(door, 10 * priority + number, headers) for number, door in enumerate(DOORS)]
    ended += [waiting.ask(door, 27 + number, {}, priority=1) for number, door in enumerate(OIP_DOORS)]
    waiting.server.wait_for(lambda: waiting.queued() == len(ended) - 1, "all of them to wait")
    waiting.go()
    assert [one.result(LONG_SECONDS) for one in ended] == ["OK"] * len(ended)
    first, *others = waiting.computed()
    assert first == FIRST
    classes = [int(value // 10) for value in others]
    assert classes == [1] * len(DOORS) + [2] * (len(DOORS) + len(OIP_DOORS)) + [3] * len(DOORS), others


@pytest.mark.parametrize("door", DOORS)
def test_a_class_that_is_not_permitted_or_not_known_is_refused(waiting: Waiting, door: Ask) -> None:
    waiting.go()

    def ended(priority: str) -> str:
        headers = {"headrace-priority": priority, "by": "usual"}
        return waiting.ask(door, 5.0, headers).result(LONG_SECONDS)

    for priority, code, said in (
        ("1", "PERMISSION_DENIED", "priorities"),
        ("4", "INVALID_ARGUMENT", "1, 2 or 3"),
    ):
        told = ended(priority)
        assert told == code or said in told, told  # messages of a stream have a text, and no code
    assert waiting.computed() == []
    assert [ended(priority) for priority in ("2", "3")] == ["OK", "OK"]


@pytest.mark.parametrize("door", OIP_DOORS)
def test_tritons_timeout_is_a_deadline_and_what_is_over_is_never_computed(
    waiting: Waiting, door: Ask
) -> None:
    first = waiting.hold()
    late = waiting.ask(door, 5.0, {}, timeout=SHORT_MICROSECONDS)
    told = late.result(LONG_SECONDS)
    assert told == "DEADLINE_EXCEEDED" or "deadline" in told, told
    left = waiting.queued()  # what is over is taken out with the next batch
    patient = waiting.ask(door, 6.0, {}, timeout=round(1e6 * LONG_SECONDS))
    waiting.server.wait_for(lambda: waiting.queued() == left + 1, "the patient one to wait")
    waiting.go()
    assert [first.result(LONG_SECONDS), patient.result(LONG_SECONDS)] == ["OK", "OK"]
    assert waiting.computed() == [FIRST, 6.0]


def test_tritons_timeout_is_no_later_deadline_than_the_calls_own(waiting: Waiting) -> None:
    first = waiting.hold()
    headers = {"x-request-timeout-ms": "300"}
    late = waiting.ask(oip_rest, 5.0, headers, timeout=round(1e6 * LONG_SECONDS))
    assert late.result(LONG_SECONDS) == "DEADLINE_EXCEEDED"
    waiting.go()
    assert first.result(LONG_SECONDS) == "OK"
    assert waiting.computed() == [FIRST]
