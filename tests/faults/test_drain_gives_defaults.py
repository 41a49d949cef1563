"""SIGTERM while requests wait for a model that has a default: each gets that, flagged, and none is lost."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from headrace.frontends.wire import protos
from tests.faults.held import held_until
from tests.model_directories import SLOW, write
from tests.running_server import RunningServer

FLAG = "headrace-answered-by"
AFTER_SECONDS = 3.0  # until the default comes; mostly time enough to be told to stop before
HELD = 1.0  # has the model wait for ever; the calls behind it wait in the queue
DRAIN_SECONDS = 300.0  # far longer than anybody waits here
PATIENCE_SECONDS = 140.0
FAST = SLOW.replace("time.sleep(float(seconds.max()))", "pass").replace("[len(seconds)]", "[7]")
BEGIN = "    def predict(self, inputs):\n"
NOTED = (
    BEGIN
    + """\
        if (inputs["seconds"] > 0).any():
            with open({file!r}, "a") as noted:
                noted.write("computed\\n")
"""
)
ONE_BY_ONE = "[batching]\ninstances = 1\nmax_batch_rows = 1\n"
CALLS = 4
DEFAULTS = {"values": (-1, "default"), "another": (7, "default fast/1")}

Answer = tuple[int, str]
Ask = Callable[[RunningServer, str, float], Answer]


def by_rest(server: RunningServer, model: str, seconds: float) -> Answer:
    """What was answered, and who by."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("POST", f"/v1/models/{model}:predict", json.dumps({"instances": [seconds]}))
        response = connection.getresponse()
        flag, answer = response.getheader(FLAG), json.loads(response.read())
        assert response.status == 200, answer
        return answer["predictions"][0], flag or "the model"
    finally:
        connection.close()


def by_grpc(server: RunningServer, model: str, seconds: float) -> Answer:
    message = protos.message("inference.ModelInferRequest")(model_name=model)
    given = message.inputs.add(name="seconds", datatype="FP32", shape=[1])
    given.contents.fp32_contents.append(seconds)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer, call = infer.with_call(
            message.SerializeToString(), timeout=PATIENCE_SECONDS, wait_for_ready=True
        )
    response = protos.message("inference.ModelInferResponse").FromString(answer)
    rows = int(response.outputs[0].contents.int64_contents[0])
    return rows, str(dict(call.trailing_metadata()).get(FLAG, "the model"))


WAYS: dict[str, tuple[Ask, tuple[str, ...]]] = {
    "REST": (by_rest, ()),
    "gRPC": (by_grpc, ()),
    "REST by uvicorn": (by_rest, ("--http-server", "uvicorn")),
    "gRPC by grpcio": (by_grpc, ("--grpc-server", "grpcio")),
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    after = f"{ONE_BY_ONE}[default]\nafter_seconds = {AFTER_SECONDS}\n"
    held = held_until(tmp_path / ".gate").replace(BEGIN, NOTED.format(file=str(tmp_path / ".noted")))
    write(tmp_path, "values", 1, held, after + "values = { rows = -1 }\n")
    write(tmp_path, "another", 1, held, after + 'model = "fast"\n')
    write(tmp_path, "fast", 1, FAST)
    return tmp_path


@pytest.mark.rest
@pytest.mark.parametrize("way", WAYS)
def test_calls_that_wait_for_a_default_get_it_when_the_server_stops(models: Path, way: str) -> None:
    ask, options = WAYS[way]
    with ThreadPoolExecutor(len(DEFAULTS) * CALLS) as callers, _server(models, *options) as server:
        calls = {
            model: [callers.submit(ask, server, model, HELD) for _ in range(CALLS)] for model in DEFAULTS
        }
        _stop_when_all_wait(server, calls)
        for model, default in DEFAULTS.items():
            told = [call.result() for call in calls[model]]
            assert told == [default] * CALLS
        (models / ".gate").touch()
        assert server.wait_until_ended(PATIENCE_SECONDS) == 0
        computed = (models / ".noted").read_text().splitlines()
        assert len(computed) == len(DEFAULTS), "what nobody waits for was computed"


def _server(models: Path, *options: str) -> RunningServer:
    return RunningServer(models, "--allow-code", "--drain-seconds", str(DRAIN_SECONDS), *options)


def _stop_when_all_wait(server: RunningServer, calls: dict[str, list[Future[Answer]]]) -> None:
    """Where some have their answers before all wait, the signal comes once all have them."""

    def waiting() -> bool:
        text = server.get("/metrics")[1].decode()
        return all(
            f'headrace_outstanding_requests{{model="{one}",version="1"}} {CALLS}' in text for one in calls
        ) or all(call.done() for several in calls.values() for call in several)

    server.wait_for(waiting, "all calls to wait")
    server.process.send_signal(signal.SIGTERM)
