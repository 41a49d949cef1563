"""Connections end for their age, again and again, in the middle of a load: no request is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.strict_callers import Callers, grpc_unary, http1, http2
from tests.running_server import RunningServer

CALLERS = 8
GENERATIONS = 20
# Who is kept from asking for longer than the lead, by a crowded machine too, may lose a request.
AGE = ("--max-connection-age-seconds", "1", "--drain-lead-seconds", "1.5", "--log-level", "debug")

WAYS = {
    "REST over HTTP/1.1": (http1, ()),
    "REST over HTTP/2": (http2, ()),
    "gRPC": (grpc_unary, ()),
    "gRPC by grpcio": (grpc_unary, ("--grpc-server", "grpcio")),
    "REST over HTTP/1.1, two workers": (http1, ("--workers", "2")),
    "gRPC, two workers": (grpc_unary, ("--workers", "2")),
}


def begun(server: RunningServer) -> int:
    """How many generations have begun."""
    return server.count_in_log("a generation of connections has begun")


@pytest.mark.rest
@pytest.mark.exact
@pytest.mark.parametrize("way", WAYS)
def test_no_request_is_lost_when_connections_end_for_their_age(
    models: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    caller, options = WAYS[way]
    many = 10 if options else GENERATIONS
    with RunningServer(models, *AGE, *options) as server, Callers(caller, server, CALLERS) as tally:
        first = begun(server)
        server.wait_for(lambda: begun(server) >= first + many, "connections to end")
        tally.ended.set()
    with capsys.disabled():
        print(f"\n[{way}: {tally}] ", end="")
    assert not any("h2corn v" in line for line in server.errors), "its banner, each time that it begins"
    assert tally.lost == []
    assert tally.refused == 0 or caller is http2  # whose streams after GOAWAY are told to be asked again
    assert tally.answered > many
    if caller is not grpc_unary:  # which does not show what it was told
        assert tally.told >= many / 2
