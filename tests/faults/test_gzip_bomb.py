"""A compressed body that opens to very much: refused after little of it, over each door."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from tests.faults.neighbours import Connection
from tests.faults.still_serves import MODEL, does_it_still_serve, http_request
from tests.running_server import RunningServer

INFER = "/inference.GRPCInferenceService/ModelInfer"
OPENED_BYTES = 80 * 2**20
MOST_GROWTH_BYTES = 60 * 2**20
TIMES = 2
PAIRS = {"h2corn": (), "uvicorn and grpcio": ("--http-server", "uvicorn", "--grpc-server", "grpcio")}
PATHS = (f"/v1/models/{MODEL}:predict", f"/v2/models/{MODEL}/infer")


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_it_is_refused_over_rest_and_grpc(models: Path, pair: tuple[str, ...]) -> None:
    growth_of_refusals(models, pair)


@pytest.mark.timing
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_refusals_take_little_memory(models: Path, pair: tuple[str, ...]) -> None:
    assert growth_of_refusals(models, pair) < MOST_GROWTH_BYTES


def growth_of_refusals(models: Path, pair: tuple[str, ...]) -> int:
    """Send bombs, which are refused; by how many bytes the server has grown."""
    bomb = gzip.compress(b" " * OPENED_BYTES, 1)
    twice = gzip.compress(gzip.compress(b" " * OPENED_BYTES, 9), 9)
    with RunningServer(models, *pair) as server, closing(Connection(server.http_port)) as caller:
        address, options = f"127.0.0.1:{server.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]
        before = server.rss_bytes()
        with grpc.insecure_channel(address, options) as channel:
            for _ in range(TIMES):
                for path in PATHS:
                    assert caller.send(http_request(path, bomb, "content-encoding: gzip")) == 413
                    # What comes out of one opening is not opened again, and is no JSON.
                    assert caller.send(http_request(path, twice, "content-encoding: gzip")) == 400
                with pytest.raises(grpc.RpcError) as refused:
                    channel.unary_unary(INFER)(
                        bytes(OPENED_BYTES), compression=grpc.Compression.Gzip, timeout=60
                    )
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        growth = server.rss_bytes() - before
        good = gzip.compress(json.dumps({"instances": [1.0]}).encode())
        assert caller.send(http_request(PATHS[0], good, "content-encoding: gzip")) == 200
        does_it_still_serve(server)
        return growth
