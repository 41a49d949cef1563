"""What a scrape of an engine would read."""

from __future__ import annotations

from headrace.frontends.metrics.engine_metrics import families
from headrace.frontends.metrics.prometheus_formats import protobuf_pieces, text_pieces
from headrace.serving.engine import Engine


def as_text(engine: Engine) -> str:
    """The metrics of an engine in Prometheus' text format."""
    return "".join(text_pieces(families(engine, ready=True)))


def as_protobuf(engine: Engine) -> bytes:
    """The same as protobuf messages."""
    return b"".join(protobuf_pieces(families(engine, ready=True)))
