"""SIGTERM while requests wait for a model that has a default: each gets that, flagged, and none is lost."""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from headrace.frontends.wire import protos
from tests.model_directories import SLOW, write
from tests.running_server import RunningServer

FLAG = "headrace-answered-by"
AFTER_SECONDS = 1.0  # until the default comes; time enough to be told to stop before
SLOWLY = 2.0  # how long the model takes then; the calls behind it wait in the queue
DRAIN_SECONDS = 10.0
PATIENCE_SECONDS = 20.0
FAST = SLOW.replace("time.sleep(float(seconds.max()))", "pass").replace("[len(seconds)]", "[7]")
ONE_BY_ONE = "[batching]\ninstances = 1\nmax_batch_rows = 1\n"
CALLS = 4
TRIES = 4
DEFAULTS = {"values": (-1, "default"), "another": (7, "default fast/1")}

Told = tuple[int, str]
Ask = Callable[[RunningServer, str, float], Told]


def by_rest(server: RunningServer, model: str, seconds: float) -> Told:
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


def by_grpc(server: RunningServer, model: str, seconds: float) -> Told:
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
    write(tmp_path, "values", 1, SLOW, after + "values = { rows = -1 }\n")
    write(tmp_path, "another", 1, SLOW, after + 'model = "fast"\n')
    write(tmp_path, "fast", 1, FAST)
    return tmp_path


@pytest.mark.parametrize("way", WAYS)
def test_who_waits_for_a_default_when_the_server_is_told_to_stop_gets_it(models: Path, way: str) -> None:
    """On a crowded machine the default may come before all have asked: then a server of its own is tried."""
    ask, options = WAYS[way]
    for _ in range(TRIES):
        with ThreadPoolExecutor(len(DEFAULTS) * CALLS) as callers, _server(models, *options) as server:
            began = time.monotonic()
            calls = {
                model: [callers.submit(ask, server, model, SLOWLY) for _ in range(CALLS)]
                for model in DEFAULTS
            }
            if not _come_to_wait(server, calls):
                continue
            server.process.send_signal(signal.SIGTERM)
            for model, default in DEFAULTS.items():
                told = [call.result() for call in calls[model]]
                assert told == [default] * CALLS
            assert server.wait_until_ended() == 0
            assert time.monotonic() - began < DRAIN_SECONDS, "it does not wait for what nobody waits for"
            return
    pytest.fail(f"in {TRIES} tries not all calls waited at a time")


def _server(models: Path, *options: str) -> RunningServer:
    return RunningServer(models, "--allow-code", "--drain-seconds", str(DRAIN_SECONDS), *options)


def _come_to_wait(server: RunningServer, calls: dict[str, list[Future[Told]]]) -> bool:
    """Whether all calls wait at a time, before the first of them has been answered."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not any(call.done() for several in calls.values() for call in several):
        text = server.get("/metrics")[1].decode()
        if all(
            f'headrace_outstanding_requests{{model="{one}",version="1"}} {CALLS}' in text for one in calls
        ):
            return True
        assert time.monotonic() < until, "calls are not answered"
        time.sleep(0.01)
    return False
