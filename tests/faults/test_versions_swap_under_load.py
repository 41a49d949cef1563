"""Versions are published one after the other under load over REST and gRPC: no request fails."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from headrace.versions.manifest import publish
from tests.faults.held import held_until
from tests.faults.still_serves import Response, does_it_still_serve, grpc_calls, infer, infer_message
from tests.faults.test_client_leaves_mid_batch import Neighbours, counted
from tests.model_directories import affine, write
from tests.running_server import RunningServer
from tests.waiting import seconds_left

SWAPS = 6
BALLAST_BYTES = 4_000_000


class Load:
    """Clients that ask for y = 0 * x + version without a pause, and count who answered."""

    def __init__(self, server: RunningServer) -> None:
        self.answered: dict[str, Counter[float]] = {"REST": Counter(), "gRPC": Counter()}
        self.failed: list[object] = []
        self.latest = 0.0
        self._server = server
        self._ended = threading.Event()
        # Counters are shared by the threads of one protocol, one thread each.
        self._threads = [threading.Thread(target=self._rest), threading.Thread(target=self._grpc)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(120)

    def _rest(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=30)
        body = json.dumps({"instances": [0.0]})

        def ask() -> float:
            connection.request("POST", "/v1/models/m:predict", body)
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise ValueError(response.status, text)
            return float(json.loads(text)["predictions"][0])

        self._until_ended("REST", ask)
        connection.close()

    def _grpc(self) -> None:
        with grpc_calls(self._server) as call:
            self._until_ended("gRPC", lambda: infer(call, "m", 0.0)[0])

    def _until_ended(self, protocol: str, ask: Callable[[], float]) -> None:
        while not self._ended.is_set():
            try:
                self.latest = ask()
                self.answered[protocol][self.latest] += 1
            except (OSError, ValueError, http.client.HTTPException, grpc.RpcError) as error:
                self.failed.append((protocol, error))


FALLBACKS = ("--http-server", "uvicorn", "--grpc-server", "grpcio")


@pytest.mark.exact
@pytest.mark.parametrize(
    ("transition", "options"),
    [("availability", ()), ("availability", FALLBACKS), ("resource", ())],
    ids=["availability by h2corn", "availability by uvicorn and grpcio", "resource by h2corn"],
)
def test_no_request_fails_while_versions_are_swapped(
    models: Path, options: tuple[str, ...], transition: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(models, "m", 1, affine(0.0, 1.0, BALLAST_BYTES), f'[versions]\ntransition = "{transition}"\n')
    with RunningServer(models, *options) as server:
        with Load(server) as load:
            server.wait_for(lambda: load.latest == 1, "version 1")
            for number in range(2, 2 + SWAPS):
                content = affine(0.0, float(number), BALLAST_BYTES)
                publish(
                    lambda path, content=content: (path / "model.onnx").write_bytes(content),
                    models / "m",
                    number,
                )
                server.wait_for(lambda number=number: load.latest == number, f"version {number}")
            server.wait_for(
                lambda: all(answered[1.0 + SWAPS] > 0 for answered in load.answered.values()),
                "the last version, by both protocols",
            )
        versions = range(1, 2 + SWAPS)
        with capsys.disabled():
            print(f"\n[{transition}: {load.answered}] ", end="")
        if transition == "availability":
            assert load.failed == []
            for protocol, answered in load.answered.items():
                assert set(answered) <= {float(number) for number in versions}, protocol
                assert answered[float(versions[-1])] > 0, protocol
            both = load.answered["REST"] + load.answered["gRPC"]
            assert sorted(both) == [float(number) for number in versions], "a version was passed over"
        else:
            # Between the versions there is none: requests are refused, never wrong, never lost.
            assert all("UNAVAILABLE" in repr(one) or "503" in repr(one) for one in load.failed), load.failed
        does_it_still_serve(server)


SECOND = """
class Model:
    inputs = [("seconds", "FP32", [])]
    outputs = [("rows", "INT64", [])]

    def predict(self, inputs):
        return {"rows": [-2] * len(inputs["seconds"])}
"""


@pytest.mark.exact
def test_requests_that_run_or_wait_at_a_swap_are_answered_by_the_version_that_took_them(models: Path) -> None:
    write(models, "slow", 1, held_until(gate := models.parent / "gate"), "[batching]\ninstances = 1\n")
    with RunningServer(models, "--allow-code") as server, grpc_calls(server) as call:
        callers = Neighbours(server)
        callers.ask(1.0)  # held while it runs
        server.wait_for(lambda: counted(server, "outstanding_requests") == 1, "the model to be busy")
        callers.ask(0.0)
        over_grpc = call.future(infer_message("slow", 0.0, name="seconds"))
        server.wait_for(lambda: counted(server, "queued_rows") == 2, "two requests to wait")
        publish(lambda path: (path / "model.py").write_text(SECOND, "utf-8"), models / "slow", 2)
        server.wait_for(
            lambda: server.get("/v2/models/slow/versions/1/ready")[0] != 200, "version 1 to take no more"
        )
        assert server.post("/v1/models/slow:predict", {"instances": [0.0]}) == (200, {"predictions": [-2]})
        gate.touch()
        callers.wait()
        assert [status for status, _ in callers.answers] == [200, 200]
        assert [answer["predictions"] for _, answer in callers.answers] in ([[1], [2]], [[1], [1]])
        output = Response.FromString(over_grpc.result(30)).raw_output_contents[0]
        assert int.from_bytes(output, "little") in (1, 2)
        server.wait_for(lambda: counted(server, "outstanding_requests") == 0, "version 1 to go")
        does_it_still_serve(server)


def test_old_versions_are_unloaded_once_nobody_uses_them(models: Path) -> None:
    write(models, "m", 1, affine(0.0, 1.0))
    with RunningServer(models) as server:
        write(models, "m", 2, affine(0.0, 2.0))
        server.wait_for(
            lambda: (
                server.get("/v2/models/m/versions/2/ready")[0] == 200
                and server.get("/v2/models/m/versions/1/ready")[0] != 200
            ),
            "the old version to go",
        )
        until = time.monotonic() + seconds_left()
        while b'model="m",state="ready",version="1"' in server.get("/monitoring/prometheus/metrics")[1]:
            assert time.monotonic() < until
            time.sleep(0.02)
        does_it_still_serve(server)
