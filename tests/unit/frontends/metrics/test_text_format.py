"""The text format is written as prometheus_client writes it, in pieces between which others go on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, core, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.batching.latencies import Latencies
from headrace.frontends.metrics import text_format
from headrace.frontends.metrics.metric_families import add_latencies, latency_series
from headrace.frontends.service import Service
from headrace.serving.engine import Engine
from tests.models import Doubling

Read = dict[tuple[str, tuple[tuple[str, str], ...]], float]


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
    theirs, ours = generate_latest(registry).decode(), "".join(text_format.pieces(_Odd().collect()))
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
    ours, theirs = ("".join(text_format.pieces([one])) for one in (family, library))
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
