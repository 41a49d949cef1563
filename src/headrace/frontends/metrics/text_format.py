"""Metrics in Prometheus' text format, written in pieces with requests answered in between.

prometheus_client writes this format too, but in one step and at 20 µs a line. A server of 1,000 models has
200,000 lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.frontends.metrics.metric_families import LatencySeries, latency_series

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.samples import Sample

_PIECE_SAMPLES = 100


def pieces(families: Iterable[Family | None]) -> Iterator[str]:
    """Write families in the text format.

    Args:
        families: Counters, gauges and histograms, as yielded by ``metrics.families``.

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
        for start in range(0, len(family.samples), _PIECE_SAMPLES):
            yield "".join(map(_line, family.samples[start : start + _PIECE_SAMPLES]))
        for series in latency_series(family):
            yield _latencies(family.name, series)


def _line(sample: Sample) -> str:
    labels = f"{{{_labels(sample.labels)}}}" if sample.labels else ""
    return f"{sample.name}{labels} {_number(sample.value)}\n"


def _number(value: float) -> str:
    written = repr(float(value))
    return _SPECIAL.get(written, written)


_SPECIAL = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join([f'{name}="{escaped(labels[name])}"' for name in sorted(labels)])


def escaped(value: str) -> str:
    """Return the value of a label, escaped for use between quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _latencies(name: str, series: LatencySeries) -> str:
    labels, below = _labels(series.labels), series.below()
    buckets = [
        f'{name}_bucket{{le="{bound}",{labels}}} {count}.0\n'
        for bound, count in zip(series.bounds, below, strict=True)
    ]
    count, total = f"{name}_count{{{labels}}} {below[-1]}.0\n", _number(series.total_seconds)
    return f"{''.join(buckets)}{count}{name}_sum{{{labels}}} {total}\n"
