"""Options for long-running verbs that serve metrics to Prometheus, and the port that serves them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from headrace.cli import number_types

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_HIGHEST_PORT = 65535


def add_metrics(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options of the metrics port."""
    parser.add_argument(
        "--metrics-port",
        type=number_types.whole("metrics-port", least=0, most=_HIGHEST_PORT),
        metavar="N",
        help="answer Prometheus on this port; 0 = any free one",
    )
    parser.add_argument(
        "--metrics-host",
        metavar="HOST",
        default="127.0.0.1",
        help="the address to listen on (default 127.0.0.1)",
    )


def metrics(options: argparse.Namespace, made: Callable[[], Collector]) -> AbstractContextManager[None]:
    """Return a context manager that serves metrics to Prometheus, if the options ask for it.

    Args:
        options: The verb's options.
        made: Creates the collector of metrics, if they are wanted.

    Raises:
        ConfigError: The port is not available.
    """
    if options.metrics_port is None:
        return nullcontext()
    from headrace.telemetry.metrics_port import answering  # noqa: PLC0415 - only if requested

    return answering(made(), options.metrics_host, options.metrics_port, sys.stderr)
