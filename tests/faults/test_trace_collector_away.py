"""A collector that is down, slow, or full: calls are answered as ever, and it is said once."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from headrace import example
from tests.running_server import RunningServer
from tests.trace_collector import collecting

BODY = {"instances": [1.0]}
PREDICT = "/v1/models/half_plus_two:predict"


def nobody_s_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def count(server: RunningServer, result: str) -> float:
    text = server.get("/metrics")[1].decode()
    line = f'headrace_traced_calls_total{{result="{result}"}} '
    return next(float(one.removeprefix(line)) for one in text.splitlines() if one.startswith(line))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_server_sends_its_calls_and_what_waits_when_it_stops(tmp_path: Path, protocol: str) -> None:
    example.write(tmp_path / "models")
    with collecting(protocol) as collector:
        options = ("--tracing-endpoint", collector.endpoint, "--tracing-protocol", protocol)
        with RunningServer(tmp_path / "models", *options) as server:
            parent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
            status, _ = server.request("POST", PREDICT, json.dumps(BODY).encode(), parent)
            assert status == 200
            server.wait_for(lambda: count(server, "sent") > 0, "spans to be sent")
            server.request("POST", PREDICT, json.dumps(BODY).encode(), {**parent, "x-request-id": "last"})
            assert server.stop() == 0
    names = [span.name for span in collector.spans if span.trace_id == "a" * 32]
    assert sorted(names) == sorted(["POST /v1/models/{model}:predict", "queue", "batch", "compute"] * 2)
    assert "last" in {span.attributes.get("headrace.request_id") for span in collector.spans}
    assert collector.spans[0].resource["service.name"] == "headrace"


@pytest.mark.rest
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_one_that_is_down_is_said_once_and_counted(tmp_path: Path, protocol: str) -> None:
    example.write(tmp_path / "models")
    endpoint = f"http://127.0.0.1:{nobody_s_port()}"
    options = ("--tracing-endpoint", endpoint, "--tracing-protocol", protocol)
    environment = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with RunningServer(tmp_path / "models", *options, environment=_with(environment)) as server:
        for _ in range(2):
            before = count(server, "unsent")
            assert server.post(PREDICT, BODY)[0] == 200
            server.wait_for(lambda before=before: count(server, "unsent") > before, "it to be counted")  # type: ignore[misc]
        assert server.stop() == 0
    assert sum("traces cannot be sent" in one for one in server.errors) == 1
    assert not any("Traceback" in one for one in server.errors)


@pytest.mark.rest
def test_one_that_never_answers_fills_the_queue_and_delays_nothing(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    with collecting("grpc") as collector:
        collector.silent.set()
        environment = {"OTEL_BSP_MAX_QUEUE_SIZE": "20", "OTEL_BSP_SCHEDULE_DELAY": "10"}
        options = ("--tracing-endpoint", collector.endpoint, "--tracing-max-traces-per-second", "100000")
        with RunningServer(tmp_path / "models", *options, environment=_with(environment)) as server:
            server.wait_for(lambda: collector.requests > 0, "the first spans to be sent")
            asked = 0
            while asked < 5000 and not count(server, "dropped"):
                assert server.post(PREDICT, BODY)[0] == 200
                asked += 1
            assert count(server, "dropped")
            assert server.stop() == 0
        assert any("not all traces could be sent" in one for one in server.errors)


def test_one_that_refuses_and_comes_back_is_sent_what_comes_then(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    with collecting("http") as collector:
        collector.refuses = True
        options = ("--tracing-enabled",)
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=sesame",
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_RESOURCE_ATTRIBUTES": "team=ranking",
        }
        with RunningServer(tmp_path / "models", *options, environment=_with(environment)) as server:
            assert server.post(PREDICT, BODY)[0] == 200
            server.wait_for(lambda: count(server, "unsent") > 0, "spans to be refused")
            collector.refuses = False
            server.wait_for(lambda: count(server, "sent") > 0, "spans to be sent again")
            assert server.stop() == 0
    assert sum("traces cannot be sent" in one for one in server.errors) == 1
    assert sum("traces are sent again" in one for one in server.errors) == 1
    assert collector.headers["x-key"] == "sesame"
    resource = collector.spans[0].resource
    assert (resource["service.name"], resource["team"]) == ("mine", "ranking")


def _with(environment: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **environment}
