"""The certificate is replaced again and again in the middle of a load: no request is lost."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx

from tests.certificates import Authority
from tests.faults.still_serves import MODEL
from tests.running_server import RunningServer


def test_no_request_is_lost_when_certificates_change(models: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.write_server()
    ended, answered, lost = threading.Event(), Counter[str](), list[str]()
    options = (*authority.options(), "--drain-lead-seconds", "1.5")
    with RunningServer(models, *options, tls=authority.context()) as server:

        def rest() -> None:
            address = f"https://127.0.0.1:{server.http_port}/v1/models/{MODEL}:predict"
            with httpx.Client(verify=authority.context(), timeout=30) as client:
                while not ended.is_set():
                    assert client.post(address, json={"instances": [1.0]}).json() == {"predictions": [2.0]}
                    answered["REST"] += 1

        def over_grpc() -> None:
            credentials = grpc.ssl_channel_credentials(authority.path("ca.pem").read_bytes())
            with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
                ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
                while not ended.is_set():
                    assert ready(b"", timeout=30) == b"\x08\x01"
                    answered["gRPC"] += 1

        def calling(one: Callable[[], None]) -> None:
            try:
                one()
            except (httpx.HTTPError, grpc.RpcError, AssertionError) as error:
                lost.append(repr(error))

        threads = [threading.Thread(target=calling, args=(one,)) for one in (rest, over_grpc) * 3]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 6):
                before = dict(answered)
                authority.write_server("localhost", "127.0.0.1", f"host-{number}.example")
                server.process.send_signal(signal.SIGHUP)
                taken_up = f'headrace_tls_certificate_reloads_total{{result="loaded"}} {number}.0'.encode()
                server.wait_for(lambda said=taken_up: said in server.get("/metrics")[1], "the new one")
                server.wait_for(
                    lambda before=before: (
                        all(answered[door] > before.get(door, 0) + 50 for door in ("REST", "gRPC"))
                        or bool(lost)
                    ),
                    "answers",
                )
        finally:
            ended.set()
            for thread in threads:
                thread.join(120)
    assert lost == []
