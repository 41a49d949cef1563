"""The port for scrapes of long-running commands."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from urllib.request import urlopen

from prometheus_client import Metric

from headrace.base.errors import ConfigError
from headrace.telemetry.metrics_port import answering


class Nothing:
    """No metrics but the process's own."""

    def collect(self) -> Iterator[Metric]:
        return iter(())


def scraped(host: str) -> str:
    """What is told of the address, after a scrape; or of the error, if the machine has no such address."""
    told = StringIO()
    try:
        with (
            answering(Nothing(), host, 0, told),  # type: ignore[arg-type]  # a collector by duck typing
            urlopen(told.getvalue().removeprefix("headrace: metrics at ").strip()) as answer,
        ):
            assert b"process_" in answer.read()
    except ConfigError as error:
        return error.message
    return told.getvalue()


def test_the_announced_address_answers() -> None:
    assert scraped("127.0.0.1").startswith("headrace: metrics at http://127.0.0.1:")


def test_an_address_of_ipv6_is_in_brackets() -> None:
    assert "[::1]:" in scraped("::1")
