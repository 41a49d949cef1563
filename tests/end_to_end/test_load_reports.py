"""Load reports of real servers, read by those who are to read them: clients of gRPC, and Envoy."""

from __future__ import annotations

import http.client
import json
import re
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests import orca
from tests.balanced import envoy
from tests.faults.still_serves import MODEL, Response, infer_message
from tests.model_directories import affine, write
from tests.running_server import RunningServer
from tests.waiting import seconds_left

pytestmark = pytest.mark.rest

BALANCERS_PAGE = Path(__file__).resolve().parents[2] / "docs/balancers.md"
INFER = "/inference.GRPCInferenceService/ModelInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
PREDICT = f"/v1/models/{MODEL}:predict"
SLOW, FAST = 1.0, 2.0
"""What the models answer: so it is seen which server was asked."""

MODELS = """
import time

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def predict(self, inputs):
        time.sleep({seconds} * len(inputs["x"]))
        return {{"y": inputs["x"] + {answer}}}
"""
SETTINGS = "[batching]\ninstances = 1\nmax_batch_rows = 4\n"
REQUESTS = 100
OPTIONS = {
    "h2corn": (),
    "grpcio and uvicorn": ("--grpc-server", "grpcio", "--http-server", "uvicorn"),
    "workers": ("--workers", "2"),
}


def headers_of(server: RunningServer) -> dict[str, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)) as connection:
        connection.request("POST", PREDICT, b'{"instances": [1.0]}')
        answer = connection.getresponse()
        answer.read()
        assert answer.status == http.client.OK
        return {name.lower(): value for name, value in answer.getheaders()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_answers_of_both_protocols_have_a_report(tmp_path: Path, options: tuple[str, ...]) -> None:
    write(tmp_path, MODEL, 1, affine(1.0, 1.0))
    with RunningServer(tmp_path, "--load-reports", *options) as server:
        last = dict[str, float]()

        def is_known() -> bool:
            """With the rate of the requests that this makes."""
            nonlocal last
            said = headers_of(server).get("endpoint-load-metrics", "JSON {}")
            last = json.loads(said.removeprefix("JSON "))
            return last.get("rps_fractional", 0.0) > 0.0

        server.wait_for(is_known, "a report")
        assert last["application_utilization"] > 0.0
        assert last["eps"] == 0.0
        trailed = orca.trailed(server.grpc_port, LIVE)
        assert trailed is not None
        assert trailed.keys() == {"application_utilization", "rps_fractional"}


def test_a_server_says_nothing_unless_it_is_told_to(tmp_path: Path) -> None:
    write(tmp_path, MODEL, 1, affine(1.0, 1.0))
    with RunningServer(tmp_path) as server:
        server.wait_for(lambda: b"\nheadrace_load " in server.get("/metrics")[1], "a load")
        assert "endpoint-load-metrics" not in headers_of(server)
        assert orca.trailed(server.grpc_port, LIVE) is None


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunningServer]]:
    """One that can answer fifty requests a second, and one that can answer many more."""
    folder = tmp_path_factory.mktemp("models")
    with ExitStack() as stack:
        made = []
        for seconds, answer in ((0.02, SLOW), (0.0, FAST)):
            models = folder / str(answer)
            write(models, MODEL, 1, MODELS.format(seconds=seconds, answer=answer), SETTINGS)
            made.append(RunningServer(models, "--allow-code", "--load-reports"))
        slow, fast = (stack.enter_context(one) for one in made)
        yield slow, fast


def expect_less_for_the_slow_one(ask: Callable[[], float]) -> None:
    """Ask one request after the other until the slow server gets less than half as many as the other one."""
    until = time.monotonic() + seconds_left()
    while True:
        answered = Counter(ask() for _ in range(REQUESTS))
        if 2 * answered[SLOW] < answered[FAST]:
            return
        assert time.monotonic() < until, f"still balanced as if both were alike: {answered}"


@contextmanager
def grpc_asking(target: str, *options: tuple[str, object]) -> Iterator[Callable[[], float]]:
    message = infer_message(MODEL, 0.0)
    with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1), *options]) as channel:
        call = channel.unary_unary(INFER)

        def ask() -> float:
            answer = Response.FromString(call(message, timeout=30, wait_for_ready=True))
            return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])

        yield ask


@contextmanager
def rest_asking(port: int) -> Iterator[Callable[[], float]]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:

        def ask() -> float:
            connection.request("POST", PREDICT, b'{"instances": [0.0]}')
            answer = connection.getresponse()
            return float(json.loads(answer.read())["predictions"][0])

        yield ask


def test_a_client_of_grpc_weighs_servers_by_their_reports(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    """Its policy reads the binary report in the trailers."""
    addresses = ",".join(f"127.0.0.1:{one.grpc_port}" for one in servers)
    policy = {"weighted_round_robin": {"blackoutPeriod": "0s", "weightUpdatePeriod": "0.1s"}}
    options = (
        ("grpc.service_config", json.dumps({"loadBalancingConfig": [policy]})),
        ("grpc.default_authority", "headrace"),  # else all addresses together, which are no host
    )
    with grpc_asking(f"ipv4:{addresses}", *options) as ask:
        expect_less_for_the_slow_one(ask)


def test_envoy_weighs_servers_by_their_reports(
    tmp_path: Path, servers: tuple[RunningServer, RunningServer]
) -> None:
    """With the policy of docs/balancers.md, which here begins at once."""
    slow, fast = servers
    page = BALANCERS_PAGE.read_text("utf-8").partition("### By load\n")[2]
    (policy, *_) = re.findall(r"```yaml\n(load_balancing_policy:.*?)\n```", page, re.DOTALL)
    assert "blackout_period: 10s" in policy
    policy = policy.replace("blackout_period: 10s", "blackout_period: 0.1s")
    policy = textwrap.indent(policy, " " * 6).strip()
    named = {"one": slow, "two": slow, "three": fast}
    with envoy(tmp_path, named, {r"lb_policy: LEAST_REQUEST": policy}) as balancer:
        with rest_asking(balancer.http_port) as ask:
            expect_less_for_the_slow_one(ask)
        with grpc_asking(f"127.0.0.1:{balancer.grpc_port}") as ask:
            expect_less_for_the_slow_one(ask)
