"""Both formats: a scraper reads nearly the true p99 from them, and the text is prometheus_client's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, core, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.batching.latencies import Latencies
from headrace.frontends.metrics.metric_types import add_latencies, latency_series
from headrace.frontends.metrics.prometheus_formats import prefers_protobuf, protobuf_pieces, text_pieces
from headrace.frontends.metrics.tensorflow_names import TensorFlowMetrics
from headrace.frontends.service import Service
from headrace.frontends.wire import protos
from headrace.serving.engine import Engine
from tests.exposition import as_protobuf, as_text
from tests.models import Doubling

Read = dict[tuple[str, tuple[tuple[str, str], ...]], float]
RANDOM = np.random.default_rng(11)
DISTRIBUTIONS = {
    "all the same": np.full(2000, 0.0101),
    "exponential": RANDOM.exponential(0.004, 20_000),
    "lognormal": RANDOM.lognormal(math.log(0.0003), 0.7, 20_000),
    "one in fifty is slow": np.where(RANDOM.random(20_000) < 0.02, 0.9, 0.0007),
}
by_distribution = pytest.mark.parametrize("latencies", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())


def exposed(latencies: np.ndarray) -> tuple[str, bytes]:
    """A scrape of a model that has answered with these latencies, in both formats."""

    async def scenario() -> tuple[str, bytes]:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            statistics = engine.loaded("m").batcher.statistics
            for seconds in latencies.tolist():
                statistics.latencies.add(seconds)
                statistics.requests += 1
                statistics.request_seconds += seconds
            text = as_text(engine)
            return text, as_protobuf(engine)

    return asyncio.run(asyncio.wait_for(scenario(), 120))


def families(data: bytes) -> Iterator[protos.Message]:
    kind = protos.message("io.prometheus.client.MetricFamily")
    start = 0
    while start < len(data):
        size = shift = 0
        while True:
            byte = data[start]
            start += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield kind.FromString(data[start : start + size])
        start += size


def quantile_of_buckets(buckets: list[tuple[float, float]], share: float) -> float:
    """What Prometheus' ``histogram_quantile`` makes of cumulative buckets."""
    rank = share * buckets[-1][1]
    start, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            return start + (bound - start) * (rank - below) / (count - below)
        start, below = bound, count
    raise AssertionError(buckets)


def true_p99(latencies: np.ndarray) -> float:
    return float(np.quantile(latencies, 0.99, method="inverted_cdf"))


@by_distribution
def test_the_p99_of_the_classic_buckets_is_within_ten_percent(latencies: np.ndarray) -> None:
    text, _ = exposed(latencies)
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "headrace_model_request_seconds_bucket"
    ]
    assert buckets[-1] == (math.inf, len(latencies))
    assert quantile_of_buckets(buckets, 0.99) == pytest.approx(true_p99(latencies), rel=0.095)


@by_distribution
@pytest.mark.parametrize("name", ["headrace_model_request_seconds", "headrace_request_seconds"])
def test_the_p99_of_the_native_histogram_is_within_ten_percent(latencies: np.ndarray, name: str) -> None:
    _, data = exposed(latencies)
    (family,) = [one for one in families(data) if one.name == name]
    histogram = family.metric[0].histogram
    assert histogram.sample_count == len(latencies)
    assert histogram.sample_sum == pytest.approx(float(latencies.sum()))
    buckets, place, count, total = [], 0, 0, histogram.zero_count
    deltas = iter(histogram.positive_delta)
    for span in histogram.positive_span:
        place += span.offset
        for _ in range(span.length):
            count += next(deltas)
            total += count
            buckets += [(2.0 ** ((place - 1) / 8), total - count), (2.0 ** (place / 8), total)]
            place += 1
    assert total == len(latencies)
    assert quantile_of_buckets(buckets, 0.99) == pytest.approx(true_p99(latencies), rel=0.095)


def test_both_formats_tell_of_the_same_series() -> None:
    text, data = exposed(np.array([0.001, 0.002]))
    in_text = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    in_protobuf = set[str]()
    for family in families(data):
        suffixes = ("_bucket", "_count", "_sum") if family.type == 4 else ("",)
        in_protobuf |= {family.name + suffix for suffix in suffixes}
    assert in_protobuf == in_text


@pytest.mark.parametrize(
    ("accept", "protobuf"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", False),
        # What Prometheus 2.42 sends with --enable-feature=native-histograms.
        (
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
            "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        (
            "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; "
            "q=0.2, text/plain;q=0.9",
            False,
        ),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text", False),
        ("application/vnd.google.protobuf;proto=other;encoding=delimited", False),
        ("application/vnd.google.protobuf;q=" * 100_000, False),
    ],
)
def test_protobuf_is_for_those_who_would_rather_have_it(accept: str, protobuf: bool) -> None:
    assert prefers_protobuf(accept.encode()) is protobuf


def test_tensorflow_metrics_go_into_protobuf_by_the_same_names() -> None:
    measured = TensorFlowMetrics(lambda _: True)
    for seconds in (5e-6, 1e9):
        measured._count("m", "Predict", "GRPC", "OK", seconds)
    count, latency = families(b"".join(protobuf_pieces(measured.families())))
    (counted,) = count.metric
    labels = {label.name: label.value for label in counted.label}
    assert count.name == ":tensorflow:serving:request_count"
    assert (counted.untyped.value, labels) == (2, {"model_name": "m", "status": "OK"})
    assert latency.name == ":tensorflow:serving:request_latency"
    histogram = latency.metric[0].histogram
    assert (histogram.sample_count, histogram.sample_sum) == (2, 10**15 + 5)
    assert [bucket.cumulative_count for bucket in histogram.bucket] == [1] * 33 + [2]
    assert [bucket.upper_bound for bucket in histogram.bucket][:2] == [10.0, 18.0]


def test_others_may_go_on_while_many_numbers_are_written_as_protobuf() -> None:
    measured = TensorFlowMetrics(lambda _: True)
    for model in range(200):
        measured._count(f"m{model}", "Predict", "GRPC", "OK", 1.0)
    written = list(protobuf_pieces(measured.families()))
    assert len(list(filter(None, written))) == 2, "one message a family that has numbers"
    assert written.count(b"") >= 200 + 200 * 36 // 100


class _Odd:
    """Families with everything that has to be written in some special way."""

    def collect(self) -> Iterator[core.Metric]:
        counter = core.CounterMetricFamily("calls", "Two\nlines, and a \\.", labels=["z", "a"])
        counter.add_metric(['a "quoted" one', "b\\c\nd"], 3)
        counter.add_metric(["ä", ""], 1e9)
        gauge = core.GaugeMetricFamily("temperature", "Some.", labels=["where"])
        for number, value in enumerate((math.inf, -math.inf, math.nan, 0.1, -2.5, 12345678.9, 1e-9)):
            gauge.add_metric([str(number)], value)
        sizes = core.HistogramMetricFamily("sizes", "Others.", labels=["model"])
        sizes.add_metric(["m"], [("1", 2), ("+Inf", 5)], 17.5)
        yield from (counter, core.GaugeMetricFamily("none", "Empty."), gauge, sizes)
        yield core.GaugeMetricFamily("plain", "Without labels.", value=4)


def _read(text: str) -> Read:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_it_says_what_prometheus_client_says() -> None:
    registry = CollectorRegistry()
    registry.register(_Odd())
    theirs, ours = generate_latest(registry).decode(), "".join(text_pieces(_Odd().collect()))
    told, expected = _read(ours), _read(theirs)
    assert told.pop(("temperature", (("where", "2"),))) != expected.pop(("temperature", (("where", "2"),)))
    assert told == expected
    assert [line for line in ours.splitlines() if line[0] == "#"] == [
        line for line in theirs.splitlines() if line[0] == "#"
    ]


def test_latencies_are_a_histogram_like_others() -> None:
    family = core.HistogramMetricFamily("seconds", "How long.", labels=["model"])
    library = core.HistogramMetricFamily("seconds", "How long.", labels=["model"])
    latencies = Latencies()
    for seconds in (1e-6, 0.001, 0.002, 0.002, 100.0):
        latencies.add(seconds)
    add_latencies(family, {"model": 'm"'}, latencies, 100.005, fine=True)
    (series,) = latency_series(family)
    library.add_metric(['m"'], list(zip(series.bounds, series.below(), strict=True)), 100.005)
    ours, theirs = ("".join(text_pieces([one])) for one in (family, library))
    assert _read(ours) == _read(theirs)
    assert ours == theirs


def test_requests_are_answered_between_the_pieces_of_a_scrape() -> None:
    async def scenario() -> tuple[int, int]:
        async with Engine.from_objects({f"m{number}": Doubling() for number in range(200)}) as engine:
            service = Service(engine)
            turns = []
            for scrape in (service.metrics(), service.metrics_as_protobuf()):
                task, count = asyncio.ensure_future(scrape), 0
                while not task.done():
                    await asyncio.sleep(0)
                    count += 1
                assert len(await task) > 200 * 1000
                turns.append(count)
            return turns[0], turns[1]

    # In one go it would be two or three; a slice is a millisecond, or the piece that is longer.
    assert min(asyncio.run(asyncio.wait_for(scenario(), 120))) > 20
