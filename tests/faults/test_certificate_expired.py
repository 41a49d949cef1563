"""The certificate has expired: the server says so and goes on, clients refuse it, a new one is taken up."""

from __future__ import annotations

import signal
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import httpx
import pytest

from tests.certificates import Authority
from tests.faults.still_serves import MODEL
from tests.running_server import RunningServer

SECONDS = 30.0


def over_rest(server: RunningServer, authority: Authority) -> object:
    address = f"https://127.0.0.1:{server.http_port}/v1/models/{MODEL}:predict"
    with httpx.Client(verify=authority.context(), timeout=SECONDS) as client:
        return client.post(address, json={"instances": [1.0]}).json()


def over_grpc(server: RunningServer, authority: Authority) -> bytes:
    credentials = grpc.ssl_channel_credentials(authority.path("ca.pem").read_bytes())
    with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
        ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
        answer: bytes = ready(b"", timeout=SECONDS)
        return answer


def test_it_is_served_and_told_clients_refuse_it_and_a_new_one_is_taken_up(
    models: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.write_server(expires=datetime.now(UTC) - timedelta(days=1))
    careless = ssl._create_unverified_context()
    with RunningServer(models, *authority.options(), tls=careless) as server:
        server.wait_for(
            lambda: any(" error " in line and "expired on" in line for line in server.errors), "the error"
        )
        with pytest.raises(httpx.ConnectError, match="certificate has expired"):
            over_rest(server, authority)
        with pytest.raises(grpc.RpcError) as caught:
            over_grpc(server, authority)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        authority.write_server()
        server.process.send_signal(signal.SIGHUP)
        reloaded = b'headrace_tls_certificate_reloads_total{result="loaded"} 1.0'
        server.wait_for(lambda: reloaded in server.get("/metrics")[1], "the new one")
        assert over_rest(server, authority) == {"predictions": [2.0]}
        assert over_grpc(server, authority) == b"\x08\x01"
