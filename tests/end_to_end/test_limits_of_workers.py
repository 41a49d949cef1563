"""What a key limits is counted over two workers: calls under way and rows, over gRPC and REST."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from tests.end_to_end.test_keys_of_workers import a_key
from tests.faults.still_serves import MODEL, grpc_calls, infer_message
from tests.faults.worker_processes import connections_of, workers_of
from tests.model_directories import UNPROBED, affine, write
from tests.running_server import RunningServer
from tests.unit.access.keys_of_tests import key_of
from tests.waiting import seconds_left

CHANNELS = 24
"""So many that each worker gets some."""
SECONDS = 90.0
CONCURRENT = 3
BURST, ROWS = 120, 20

# Holds what is asked with a number above zero until a file is there.
HOLDS = """
import os, time

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def predict(self, inputs):
        until = time.monotonic() + 120
        while (inputs["x"] > 0).any() and not os.path.exists({file!r}) and time.monotonic() < until:
            time.sleep(0.01)
        return {{"y": inputs["x"] + 1}}
"""

Call = grpc.UnaryUnaryMultiCallable


@contextmanager
def channels(server: RunningServer) -> Iterator[list[Call]]:
    """gRPC channels with connections of their own, some to each worker."""
    until = time.monotonic() + seconds_left()
    while True:  # new connections go to one worker until both have said that they have loaded their models
        with ExitStack() as held:
            made = [held.enter_context(grpc_calls(server)) for _ in range(CHANNELS)]
            for call in made:
                assert asked(call, "free", 1) is grpc.StatusCode.OK
            found = [connections_of(worker, server, server.grpc_port) for worker in workers_of(server)]
            assert len(found) == 2
            if min(found) > 0:
                yield made
                return
        assert time.monotonic() < until, found


def metadata(key: str) -> tuple[tuple[str, str]]:
    return (("x-api-key", key_of(key).text),)


def asked(call: Call, key: str, rows: int) -> grpc.StatusCode:
    """Ask about some rows; how it ended."""
    message = infer_message(MODEL, *[0.0] * rows)
    try:
        call(message, timeout=SECONDS, metadata=metadata(key), wait_for_ready=True)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_calls_under_way_are_counted_over_workers(tmp_path: Path) -> None:
    models, file, go_on = tmp_path / "models", tmp_path / "keys.toml", tmp_path / "go-on"
    write(models, MODEL, 1, HOLDS.format(file=str(go_on)), UNPROBED)
    a_key(file, "few", f"concurrent_requests = {CONCURRENT}")
    a_key(file, "free")
    options = ("--workers", "2", "--allow-code", "--access-file", str(file))
    with RunningServer(models, *options) as server, channels(server) as calls:
        message = infer_message(MODEL, 1.0)
        sent = [call.future(message, timeout=SECONDS, metadata=metadata("few")) for call in calls]
        # Two workers that let a call in at the same microsecond may count one of the two.
        refused = CHANNELS - CONCURRENT - 1
        server.wait_for(lambda: sum(one.done() for one in sent) >= refused, "refusals")
        server.wait_for(lambda: statuses(server, "few") == {429}, "REST to be refused, by both")
        go_on.touch()
        found = Counter(one.code() for one in sent)
        assert found.keys() == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert CONCURRENT <= found[grpc.StatusCode.OK] <= CONCURRENT + 1, found
        server.wait_for(lambda: statuses(server, "few") == {200}, "the next ones to be let in")


def statuses(server: RunningServer, key: str) -> set[int]:
    """What is answered to a key over REST, on many new connections one after the other."""
    body = json.dumps({"instances": [0.0]}).encode()
    headers = {"x-api-key": key_of(key).text}
    path = f"/v1/models/{MODEL}:predict"
    return {server.request("POST", path, body, headers)[0] for _ in range(CHANNELS)}


def test_rows_are_counted_over_workers_and_protocols(tmp_path: Path) -> None:
    models, file = tmp_path / "models", tmp_path / "keys.toml"
    write(models, MODEL, 1, affine(1.0, 1.0))
    a_key(file, "few", "rows_per_second = 1", f"burst_seconds = {BURST}")
    a_key(file, "free")
    body = json.dumps({"instances": [0.0] * ROWS}).encode()
    with RunningServer(models, "--workers", "2", "--access-file", str(file)) as server:
        with channels(server) as calls:
            began = time.monotonic()
            over_grpc = Counter(asked(call, "few", ROWS) for call in calls[: CHANNELS // 2])
            over_rest = Counter(
                server.request(
                    "POST", f"/v1/models/{MODEL}:predict", body, {"x-api-key": key_of("few").text}
                )[0]
                for _ in range(CHANNELS // 2)
            )
            over_grpc += Counter(asked(call, "few", ROWS) for call in calls[CHANNELS // 2 :])
            earned = time.monotonic() - began
        answered = ROWS * (over_grpc[grpc.StatusCode.OK] + over_rest[200])
        assert over_grpc.keys() <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert over_rest.keys() <= {200, 429}
        # Counted by each alone it would be two bursts. What is larger than what is left is let through once.
        assert BURST <= answered <= BURST + ROWS + earned, (over_grpc, over_rest, earned)
