"""Metrics in Prometheus' formats: text, and protobuf, the only one in which it reads native histograms.

Both are written in pieces with requests answered in between. prometheus_client writes the text format too,
but in one step and at 20 µs a line. A server of 1,000 models has 200,000 lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.batching.latencies import BOUNDS_SECONDS, FIRST_INDEX, SCHEMA
from headrace.frontends.metrics.metric_types import LatencySeries, latency_series
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_fields import varint

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.samples import Sample

TEXT_CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
PROTOBUF_CONTENT_TYPE = (
    b"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)

_ASKED = re.compile(
    r"application/vnd\.google\.protobuf\s*;(?=[^,]*proto=io\.prometheus\.client\.MetricFamily)"
    r"(?=[^,]*encoding=delimited)[^,]*"
)
_WEIGHT = re.compile(r";\s*q=([01](?:\.\d{0,3})?)\s*(?:;|,|$)")
_TEXT = re.compile(r"text/plain[^,]*")
_MOST_HEADER_BYTES = 4096
_COUNTER, _GAUGE, _UNTYPED, _HISTOGRAM = 0, 1, 3, 4
_STEP_SAMPLES = 100  # a few tenths of a millisecond


# --- text ---


def text_pieces(families: Iterable[Family | None]) -> Iterator[str]:
    """Write families in the text format.

    Args:
        families: Counters, gauges and histograms, as yielded by ``engine_metrics.families``.

    Yields:
        The text, in pieces that take a few tenths of a millisecond each; "" where other work may run.
    """
    for family in families:
        if family is None:
            yield ""
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        said = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {name} {said}\n# TYPE {name} {family.type}\n"
        for start in range(0, len(family.samples), _STEP_SAMPLES):
            yield "".join(map(_line, family.samples[start : start + _STEP_SAMPLES]))
        for series in latency_series(family):
            yield _latency_lines(family.name, series)


def _line(sample: Sample) -> str:
    labels = f"{{{_label_list(sample.labels)}}}" if sample.labels else ""
    return f"{sample.name}{labels} {_number(sample.value)}\n"


def _number(value: float) -> str:
    written = repr(float(value))
    return _SPECIAL.get(written, written)


_SPECIAL = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def _label_list(labels: Mapping[str, str]) -> str:
    return ",".join([f'{name}="{escaped(labels[name])}"' for name in sorted(labels)])


def escaped(value: str) -> str:
    """Return the value of a label, escaped for use between quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _latency_lines(name: str, series: LatencySeries) -> str:
    labels, below = _label_list(series.labels), series.below()
    buckets = [
        f'{name}_bucket{{le="{bound}",{labels}}} {count}.0\n'
        for bound, count in zip(series.bounds, below, strict=True)
    ]
    count, total = f"{name}_count{{{labels}}} {below[-1]}.0\n", _number(series.total_seconds)
    return f"{''.join(buckets)}{count}{name}_sum{{{labels}}} {total}\n"


# --- protobuf ---


def prefers_protobuf(accept: bytes) -> bool:
    """Return whether a scraper prefers protobuf to text, or takes both alike.

    Args:
        accept: The header ``Accept``.
    """
    said = accept[:_MOST_HEADER_BYTES].decode("latin-1")
    asked = _ASKED.search(said)
    if asked is None:
        return False
    text = _TEXT.search(said)
    return text is None or _weight(asked[0]) >= _weight(text[0])


def _weight(media_range: str) -> float:
    found = _WEIGHT.search(media_range)
    return float(found[1]) if found else 1.0


def protobuf_pieces(families: Iterable[Family | None]) -> Iterator[bytes]:
    """Serialize each family as a message with its length in front.

    Args:
        families: Families, as yielded by ``engine_metrics.families``.

    Yields:
        The messages, with ``b""`` where other work may run.
    """
    for family in families:
        for message in _messages(family) if family is not None else (None,):
            if message is None:
                yield b""
            else:
                data = message.SerializeToString()
                yield varint(len(data)) + data


def _messages(family: Family) -> Iterator[protos.Message | None]:
    """Yield the messages of a family, with None where other work may run."""
    if series := latency_series(family):
        made = _family(family.name, family.documentation, _HISTOGRAM)
        for one in series:
            _put_latencies(made.metric.add(), one)
            yield None
        yield made
    elif family.type == "histogram":
        if family.samples:
            yield from _histograms(family)
    else:
        yield from _numbers(family)


def _numbers(family: Family) -> Iterator[protos.Message | None]:
    kind, field = {"counter": (_COUNTER, "counter"), "gauge": (_GAUGE, "gauge")}.get(
        family.type, (_UNTYPED, "untyped")
    )
    by_name: dict[str, protos.Message] = {}
    for index, sample in enumerate(family.samples, 1):
        if sample.name not in by_name:
            by_name[sample.name] = _family(sample.name, family.documentation, kind)
        metric = by_name[sample.name].metric.add()
        _put_labels(metric, sample.labels)
        getattr(metric, field).value = sample.value
        if index % _STEP_SAMPLES == 0:
            yield None
    yield from by_name.values()


def _put_latencies(metric: protos.Message, series: LatencySeries) -> None:
    _put_labels(metric, series.labels)
    histogram = metric.histogram
    for bound, count in zip(series.bounds, series.below(), strict=True):
        histogram.bucket.add(cumulative_count=count, upper_bound=float(bound))
    _fill_native(histogram, series)


def _fill_native(message: protos.Message, series: LatencySeries) -> None:
    """Write a series into a ``Histogram`` message as a native histogram.

    Latencies up to the first bound are its zero bucket; those above the last bound have one more bucket.
    """
    message.sample_count = sum(series.counts)
    message.sample_sum = series.total_seconds
    message.schema = SCHEMA
    message.zero_threshold = BOUNDS_SECONDS[0]
    message.zero_count = series.counts[0]
    before, end = 0, 0
    for place, count in enumerate(series.counts[1:], FIRST_INDEX + 1):
        if not count:
            continue
        if message.positive_span and place == end:
            message.positive_span[-1].length += 1
        else:
            message.positive_span.add(offset=place - end, length=1)
        end = place + 1
        message.positive_delta.append(count - before)
        before = count


def _family(name: str, documentation: str, kind: int) -> protos.Message:
    return protos.message("io.prometheus.client.MetricFamily")(name=name, help=documentation, type=kind)


def _put_labels(metric: protos.Message, labels: Mapping[str, str]) -> None:
    for name, value in sorted(labels.items()):
        metric.label.add(name=name, value=value)


def _histograms(family: Family) -> Iterator[protos.Message | None]:
    made = _family(family.name, family.documentation, _HISTOGRAM)
    metrics: dict[tuple[tuple[str, str], ...], protos.Message] = {}
    for index, sample in enumerate(family.samples, 1):
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(sorted(labels.items()))
        if key not in metrics:
            metrics[key] = made.metric.add()
            _put_labels(metrics[key], labels)
        _put(metrics[key].histogram, sample, family.name)
        if index % _STEP_SAMPLES == 0:
            yield None
    yield made


def _put(histogram: protos.Message, sample: Sample, name: str) -> None:
    part = sample.name.removeprefix(name)
    if part == "_bucket":
        histogram.bucket.add(cumulative_count=int(sample.value), upper_bound=float(sample.labels["le"]))
    elif part == "_count":
        histogram.sample_count = int(sample.value)
    elif part == "_sum":
        histogram.sample_sum = sample.value
