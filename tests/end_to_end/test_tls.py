"""TLS on both ports, by each server: who asks without it, or without a certificate, gets nothing."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import pytest

from headrace.example import write as write_example
from tests.certificates import Authority
from tests.end_to_end.conftest import PAIRS
from tests.running_server import RunningServer

READY = "/inference.GRPCInferenceService/ServerReady"
SECONDS = 30.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    write_example(directory)
    return directory


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    made.write_server()
    return made


@pytest.fixture(scope="module", params=PAIRS, ids=str)
def mutual(request: pytest.FixtureRequest, models: Path, authority: Authority) -> Iterator[RunningServer]:
    """A server that asks clients for certificates."""
    context = authority.context(as_client=True)
    with RunningServer(models, *PAIRS[request.param], *authority.options(mutual=True), tls=context) as server:
        yield server


def grpc_ready(server: RunningServer, authority: Authority, clients: Authority | None = None) -> bool:
    """Whether a client is told so, with a certificate of an authority of clients, or without one."""
    chain, key = (None, None) if clients is None else (one.read_bytes() for one in clients.client_files())
    credentials = grpc.ssl_channel_credentials(authority.path("ca.pem").read_bytes(), key, chain)
    with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
        answer: bytes = channel.unary_unary(READY)(b"", timeout=SECONDS)
        return answer == b"\x08\x01"


def test_a_client_with_a_certificate_is_answered_on_both_ports(
    mutual: RunningServer, authority: Authority
) -> None:
    assert mutual.post("/v1/models/half_plus_two:predict", {"instances": [1.0]})[1] == {"predictions": [2.5]}
    assert grpc_ready(mutual, authority, authority)


def test_a_client_without_one_or_with_a_strangers_gets_no_answer(
    mutual: RunningServer, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path)
    context = authority.context()
    context.load_cert_chain(*stranger.client_files())
    for asks in (authority.context(), context):
        with pytest.raises(httpx.TransportError), httpx.Client(verify=asks) as client:
            client.get(f"https://127.0.0.1:{mutual.http_port}/v2/health/live")
    with pytest.raises(grpc.RpcError) as caught:
        grpc_ready(mutual, authority)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_nothing_is_answered_without_tls(mutual: RunningServer) -> None:
    with pytest.raises(httpx.TransportError), httpx.Client() as client:
        client.get(f"http://127.0.0.1:{mutual.http_port}/v2/health/live")
    with (
        grpc.insecure_channel(f"127.0.0.1:{mutual.grpc_port}") as channel,
        pytest.raises(grpc.RpcError),
    ):
        channel.unary_unary(READY)(b"", timeout=5)


@pytest.fixture(params=PAIRS, ids=str)
def replaceable(
    request: pytest.FixtureRequest, models: Path, tmp_path: Path
) -> Iterator[tuple[RunningServer, Authority]]:
    """A server of its own, whose files may be replaced."""
    authority = Authority(tmp_path)
    authority.write_server()
    with RunningServer(
        models, *PAIRS[request.param], *authority.options(), tls=authority.context()
    ) as server:
        yield server, authority


def shown(port: int, authority: Authority, name: str | None) -> set[str]:
    """For whom the certificate is made that a new connection gets."""
    context = authority.context()
    context.check_hostname = False
    connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    with connection, context.wrap_socket(connection, server_hostname=name) as encrypted:
        return {value for _, value in encrypted.getpeercert()["subjectAltName"]}


def test_a_new_certificate_is_taken_up_at_sighup_and_a_broken_one_is_not(
    replaceable: tuple[RunningServer, Authority],
) -> None:
    server, authority = replaceable
    names = {"localhost", "127.0.0.1"}
    for port in (server.http_port, server.grpc_port):
        assert shown(port, authority, None) == names
    with httpx.Client(verify=authority.context()) as kept:
        address = f"https://127.0.0.1:{server.http_port}/v2/health/live"
        assert kept.get(address).status_code == 200
        authority.write_server(*names, "new.example")
        server.process.send_signal(signal.SIGHUP)
        for port in (server.http_port, server.grpc_port):
            for asked in (None, "localhost"):  # with and without a name in the first message
                server.wait_for(
                    lambda port=port, asked=asked: "new.example" in shown(port, authority, asked),
                    "the new one",
                )
        assert kept.get(address).status_code == 200
        authority.replace("server.key", b"broken")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for(
            lambda: any("the previous one stays in use" in line for line in server.errors), "the log"
        )
        assert "new.example" in shown(server.http_port, authority, None)
        text = kept.get(f"https://127.0.0.1:{server.http_port}/metrics").text
    for line in ('reloads_total{result="loaded"} 1.0', 'reloads_total{result="failed"} 1.0'):
        assert f"headrace_tls_certificate_{line}" in text


def answered(server: RunningServer, authority: Authority, clients: Authority) -> list[str]:
    """By which protocols a client is answered whose certificate these have signed."""
    context, found = authority.context(), []
    context.load_cert_chain(*clients.client_files())
    with suppress(httpx.TransportError), httpx.Client(verify=context) as client:
        client.get(f"https://127.0.0.1:{server.http_port}/v2/health/live").raise_for_status()
        found.append("REST")
    with suppress(grpc.RpcError):
        assert grpc_ready(server, authority, clients)
        found.append("gRPC")
    return found


@pytest.mark.parametrize("options", PAIRS.values(), ids=PAIRS)
def test_a_new_authority_of_clients_is_taken_up_at_sighup(
    models: Path, tmp_path: Path, authority: Authority, options: tuple[str, ...]
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    clients = tmp_path / "clients.pem"
    context = authority.context()
    context.load_cert_chain(*old.client_files())
    shutil.copy(old.path("ca.pem"), clients)
    options = (*options, *authority.options(), "--tls-client-ca", str(clients))
    with RunningServer(models, *options, tls=context) as server:
        assert (answered(server, authority, old), answered(server, authority, new)) == (["REST", "gRPC"], [])
        new.path("ca.pem").rename(clients)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for(lambda: answered(server, authority, new) == ["REST", "gRPC"], "the new one")
        server.wait_for(lambda: answered(server, authority, old) == [], "the end of the old one")


def test_the_line_of_curl_that_is_printed_works(models: Path, authority: Authority) -> None:
    context = authority.context(as_client=True)
    with RunningServer(models, *authority.options(mutual=True), tls=context) as server:
        server.wait_for(lambda: any("curl" in line for line in server.output), "the line")
        (line,) = [line for line in server.output if "curl" in line]
        chain, key = authority.client_files()
        line = line.replace("CLIENT.pem", str(chain)).replace("CLIENT.key", str(key))
        line = line.replace("CA.pem", str(authority.path("ca.pem")))
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
        assert done.stdout == '{"predictions":[2.5]}'


def test_all_workers_take_up_a_new_certificate_at_one_sighup(models: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.write_server()
    with RunningServer(models, "--workers", "2", *authority.options(), tls=authority.context()) as server:
        authority.write_server("localhost", "127.0.0.1", "new.example")
        server.process.send_signal(signal.SIGHUP)

        def all_new() -> bool:
            return all("new.example" in shown(server.http_port, authority, None) for _ in range(32))

        server.wait_for(all_new, "both workers to show the new one")
        assert server.get("/v2/health/live")[0] == 200
