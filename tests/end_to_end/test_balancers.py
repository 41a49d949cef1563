"""Real balancers in front of three servers: one freezes, one is killed, one is told to stop, all under load.

They run the very files of ``deploy/``. `python -m benchmarks balancer` prints what each fault costs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from headrace.frontends.wire import protos
from tests.balanced import BALANCERS, CALLERS, Balancer, faults, haproxy, nginx, three_servers
from tests.faults.still_serves import MODEL, predict_request
from tests.model_directories import affine, write
from tests.running_server import RunningServer

PROTOCOLS = ("REST", "gRPC")

MOST_OF_ONE_ADDRESS = 500
ONE, ANOTHER = "127.0.0.1", "127.0.0.2"
BEGUN = f"POST /v1/models/{MODEL}:predict HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n".encode()
"""A request whose body does not come: NGINX counts no connection without a request."""


@pytest.mark.rest
@pytest.mark.parametrize("balancer", BALANCERS.values(), ids=BALANCERS)
def test_a_server_that_fails_behind_a_balancer_costs_no_more_than_what_it_had_in_its_hands(
    tmp_path: Path, balancer: Callable[..., Balancer]
) -> None:
    with three_servers(tmp_path) as servers, balancer(tmp_path, servers) as running:
        expect_streams_to_pass(running)
        costs = {(cost.fault, cost.protocol): cost for cost in faults(running, servers)}
    assert set(costs) == {
        (fault, protocol) for fault in ("freeze", "kill", "drain") for protocol in PROTOCOLS
    }
    for protocol in PROTOCOLS:
        assert costs["drain", protocol].failures == ()
        assert len(costs["kill", protocol].failures) <= CALLERS
        assert len(costs["freeze", protocol].failures) <= CALLERS
        assert all(costs[fault, protocol].requests > 100 for fault in ("freeze", "kill", "drain"))


@pytest.mark.parametrize(("balancer", "held"), [(haproxy, b""), (nginx, BEGUN)], ids=["HAProxy", "NGINX"])
def test_an_address_with_too_many_connections_is_refused_and_another_one_is_not(
    tmp_path: Path, balancer: Callable[..., Balancer], held: bytes
) -> None:
    write(tmp_path / "models", MODEL, 1, affine(1.0, 1.0))
    with RunningServer(tmp_path / "models") as server, ExitStack() as opened:
        running = opened.enter_context(balancer(tmp_path, dict.fromkeys(("one", "two", "three"), server)))
        assert said_to(running, ANOTHER).startswith(b"HTTP/1.1 200")  # by whatever it has counted before

        def is_refused() -> bool:
            """In a crowd of its own: a balancer ends connections that are silent for some seconds."""
            with ExitStack() as crowd:
                for _ in range(MOST_OF_ONE_ADDRESS + 10):
                    with suppress(ConnectionError):
                        connected(running, ONE, crowd).sendall(held)
                one = said_to(running, ONE)[:12] in (b"", b"HTTP/1.1 429")
                assert said_to(running, ANOTHER).startswith(b"HTTP/1.1 200")
            return one

        server.wait_for(is_refused, "a refusal")
        server.wait_for(lambda: said_to(running, ONE).startswith(b"HTTP/1.1 200"), "room for another one")


def connected(balancer: Balancer, address: str, opened: ExitStack) -> socket.socket:
    """A connection of an address of this machine to the port of REST."""
    where = ("127.0.0.1", balancer.http_port)
    return opened.enter_context(socket.create_connection(where, timeout=30, source_address=(address, 0)))


def said_to(balancer: Balancer, address: str) -> bytes:
    """What an address is answered, b"" if its connection is ended."""
    with ExitStack() as opened, suppress(ConnectionError):
        connection = connected(balancer, address, opened)
        connection.sendall(predict_request(MODEL, [1.0]))
        return connection.recv(65536)
    return b""


def expect_streams_to_pass(balancer: Balancer) -> None:
    """They have a section of their own in each file."""
    request = protos.message("grpc.health.v1.HealthCheckRequest")()
    response = protos.message("grpc.health.v1.HealthCheckResponse")
    target = f"127.0.0.1:{balancer.grpc_port}"
    with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(
            request.SerializeToString(), timeout=30, wait_for_ready=True
        )
        assert response.FromString(next(watch)).status == 1  # SERVING
        watch.cancel()
