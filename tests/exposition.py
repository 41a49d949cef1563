"""What a scrape of an engine would read."""

from __future__ import annotations

from headrace.engine import Engine
from headrace.frontends import metrics_text, scraped_protobuf
from headrace.frontends.metrics import families


def as_text(engine: Engine) -> str:
    """The metrics of an engine in Prometheus' text format."""
    return "".join(metrics_text.pieces(families(engine, ready=True)))


def as_protobuf(engine: Engine) -> bytes:
    """The same as protobuf messages."""
    return b"".join(scraped_protobuf.pieces(families(engine, ready=True)))
