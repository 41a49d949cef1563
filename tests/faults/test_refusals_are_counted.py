"""What is refused before any model sees it is counted by protocol and code; callers make up no labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.still_serves import MODEL, connect, grpc_calls, http_request, infer_message, predict_request
from tests.running_server import RunningServer

FALLBACKS = ("--http-server", "uvicorn", "--grpc-server", "grpcio")


def counted(server: RunningServer) -> dict[tuple[str, str], float]:
    status, text = server.get("/metrics")
    assert status == 200
    return {
        (sample.labels["protocol"], sample.labels["code"]): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == "headrace_errors_total"
    }


def ask(server: RunningServer, request: bytes) -> int:
    with connect(server.http_port) as connection:
        connection.sendall(request)
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.exact
@pytest.mark.parametrize("options", [(), FALLBACKS], ids=["h2corn", "uvicorn and grpcio"])
def test_each_refusal_is_counted_by_protocol_and_code(models: Path, options: tuple[str, ...]) -> None:
    predict = f"/v1/models/{MODEL}:predict"
    refused: dict[int, Callable[[int], bytes]] = {
        400: lambda n: predict_request(MODEL, [f"text {n}"]),
        404: lambda n: predict_request(f"invented{n}", [1.0]),
        405: lambda n: http_request(predict, b"", method="GET"),
        413: lambda n: b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n" % predict.encode(),
    }
    with RunningServer(models, *options) as server:
        before = counted(server)
        for status, request in refused.items():
            for number in range(status % 7 + 1):
                assert ask(server, request(number)) == status
        with grpc_calls(server) as call:
            for model, name in ((MODEL, "z"), ("invented", "x"), ("invented2", "x")):
                with pytest.raises(grpc.RpcError):
                    call(infer_message(model, 1.0, name=name), timeout=30, wait_for_ready=True)
        after = counted(server)
        assert after.keys() == before.keys(), "no label may be made up by a caller"
        assert {key: after[key] - before[key] for key in after if after[key] != before[key]} == {
            **{("REST", str(status)): status % 7 + 1 for status in refused},
            ("gRPC", "INVALID_ARGUMENT"): 1,
            ("gRPC", "NOT_FOUND"): 2,
        }
