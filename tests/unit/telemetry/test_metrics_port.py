"""The port for scrapes of long-running commands."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from io import StringIO
from urllib.request import urlopen

import pytest
from prometheus_client import Metric

from headrace.telemetry.metrics_port import answering


class Nothing:
    """No metrics but the process's own."""

    def collect(self) -> Iterator[Metric]:
        return iter(())


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here"))],
)
def test_the_address_that_is_told_answers(host: str) -> None:
    told = StringIO()
    with answering(Nothing(), host, 0, told):  # type: ignore[arg-type]  # a collector by duck typing
        address = told.getvalue().removeprefix("headrace: metrics at ").strip()
        with urlopen(address) as answer:
            assert b"process_" in answer.read()
