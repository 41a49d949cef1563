"""Metrics of several processes as those of one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import ProcessCollector

from headrace.workers import metrics
from headrace.workers.messages import Scraped
from headrace.workers.metrics import Family, Scraping, own_families

ROOT = Path(__file__).resolve().parents[3]
COUNTER = """# HELP headrace_requests_total Requests answered.
# TYPE headrace_requests_total counter
headrace_requests_total{model="m",version="1"} %s
"""


def of(*texts: str, kept: dict[str, Family] | None = None, added: dict[str, Family] | None = None) -> str:
    parsed = [metrics.parse(text) for text in texts]
    there = {version for text in parsed for version in metrics.counts_of(text)}
    return metrics.merged(parsed, kept or {}, added or {}, there)


def gauge(name: str, value: str) -> str:
    return f"# HELP {name} It.\n# TYPE {name} gauge\n{name} {value}\n"


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("headrace_queued_rows", ("2.0", "3.0"), "5.0"),
        ("process_resident_memory_bytes", ("1.5e+08", "1e+08"), "250000000.0"),
        ("process_start_time_seconds", ("20.0", "10.0"), "10.0"),
        ("process_max_fds", ("20000.0", "20000.0"), "20000.0"),
        ("headrace_model_age_seconds", ("20.0", "10.0"), "20.0"),
        ("headrace_model_stale", ("0.0", "1.0"), "1.0"),
        ("headrace_load_attempts", ("3.0", "1.0"), "3.0"),
        ("headrace_default_version", ("3.0", "2.0"), "2.0"),
        ("headrace_archive_queued_keys", ("7.0", "8.0"), "8.0"),
        (":tensorflow:serving:request_count", ("7", "8"), "15"),
    ],
)
def test_each_gauge_is_merged_by_its_own_function(name: str, values: tuple[str, str], expected: str) -> None:
    assert of(*(gauge(name, value) for value in values)) == gauge(name, expected)


def test_a_series_of_one_worker_is_kept() -> None:
    other = COUNTER.replace('version="1"', 'version="2"')
    text = of(COUNTER % "4.0", other % "1.0")
    assert text == COUNTER % "4.0" + 'headrace_requests_total{model="m",version="2"} 1.0\n'


def test_counts_of_a_worker_that_has_ended_are_kept_as_long_as_their_version_is_there() -> None:
    kept: dict[str, Family] = {}
    for count in ("4.0", "2.0"):
        metrics.keep(kept, metrics.parse(COUNTER % count + gauge("headrace_queued_rows", "9.0")))
    assert of(COUNTER % "1.0", kept=kept) == COUNTER % "7.0"
    assert of(gauge("headrace_queued_rows", "0.0"), kept=kept).endswith("counter\n"), "no worker has it now"
    metrics.forget(kept, {("m", "1")})
    assert of(COUNTER % "1.0", kept=kept) == COUNTER % "7.0"
    metrics.forget(kept, {("m", "2")})
    assert of(COUNTER % "1.0", kept=kept) == COUNTER % "1.0"


def test_counts_without_a_version_are_never_dropped() -> None:
    text = '# TYPE headrace_model_requests_total counter\nheadrace_model_requests_total{model="m"} 5.0\n'
    kept: dict[str, Family] = {}
    metrics.keep(kept, metrics.parse(text))
    metrics.forget(kept, set())
    assert of(kept=kept) == text


@pytest.mark.parametrize(
    "key",
    [
        'x{model="m",version="1"}',
        'x{le="0.1",model="m",version="1"}',
        'x{model="m",release="full",version="1"}',
        'x{model="m",version="1",state="ready"}',
    ],
)
def test_counts_are_attributed_to_the_version_in_the_labels(key: str) -> None:
    assert metrics.counts_of({"x": Family((), "counter", {key: 7})}) == {("m", "1"): 7}
    assert metrics.counts_of({"x": Family((), "gauge", {key: 7})}) == {("m", "1"): 0}


def test_values_of_the_supervisor_replace_those_of_workers() -> None:
    worker = gauge("headrace_ready", "1.0")
    own = own_families({}, ready=False, workers=2, workers_ready=1, restarts=3)
    text = of(worker, worker, added=own)
    assert text.startswith(gauge("headrace_ready", "0.0"))
    for line in ("headrace_workers 2.0", "headrace_workers_ready 1.0", "headrace_worker_restarts_total 3.0"):
        assert line in text.splitlines()


@pytest.mark.parametrize("value", ["+Inf", "-Inf", "NaN", "3", "2.5", "1e-07"])
def test_numbers_are_written_as_they_were(value: str) -> None:
    assert of(gauge("x", value)) == gauge("x", value)


def test_every_gauge_has_a_merge_function() -> None:
    """The supervisor knows them by name only, so a new one is to be listed; a feed has no workers."""
    sources = [one.read_text("utf-8") for one in (ROOT / "src/headrace").rglob("*.py")]
    declared = re.compile(r'\bMetric\(\s*f?"([\w{}]+)",\s*"gauge"')
    found = {name for source in sources for name in declared.findall(source)}
    gauges = {name for name in found if not name.startswith("{_FEED}")}
    assert gauges < found
    assert {name for name in metrics.GAUGES if not name.startswith("process_")} == gauges
    of_a_process = ProcessCollector(registry=None).collect()
    assert {one.name for one in of_a_process if one.type == "gauge"} <= metrics.GAUGES.keys()


# The metrics of all workers, and what of them is kept.

COUNTED = """# HELP x_total It.
# TYPE x_total counter
x_total %d
"""


def test_a_worker_that_ends_while_its_metrics_are_merged_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> bytes:
        scraping = Scraping(lambda _: ())
        for worker, count in enumerate((1, 10, 100)):
            scraping.told(worker, Scraped(0, (COUNTED % count).encode()))
        scraping.end(0)

        async def in_a_thread(merge: Callable[[], bytes]) -> bytes:
            scraping.end(1)
            return merge()

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "to_thread", in_a_thread)
            first = await scraping.text({})
        assert await scraping.text({}) == first
        return first

    assert asyncio.run(scenario()).decode() == COUNTED % 111


OF_A_VERSION = """# HELP y_total It.
# TYPE y_total counter
%s
"""


def of_versions(**counts: int) -> bytes:
    lines = [f'y_total{{model="m",version="{name[1:]}"}} {count}' for name, count in counts.items()]
    return (OF_A_VERSION % "\n".join(lines)).encode()


async def scraped(scraping: Scraping, *texts: bytes) -> str:
    """Collect the workers' metrics, and return the lines of the sum."""
    for worker, text in enumerate(texts):
        scraping.told(worker, Scraped(0, text))
    return (await scraping.text({})).decode().partition("counter\n")[2].strip()


ONE, TWO = (f'y_total{{model="m",version="{version}"}}' for version in (1, 2))


def test_the_sum_of_a_version_goes_when_the_first_worker_unloads_it_and_does_not_fall() -> None:
    async def scenario() -> list[str]:
        scraping = Scraping(lambda _: ())
        both = of_versions(v1=5, v2=1)
        return [
            await scraped(scraping, of_versions(v1=5), of_versions(v1=7)),
            await scraped(scraping, both, of_versions(v1=7)),  # the second one still loads version 2
            await scraped(scraping, both, of_versions(v1=7, v2=3)),
            await scraped(scraping, both, of_versions(v2=3)),
            await scraped(scraping, both, of_versions(v2=4)),
            await scraped(scraping, of_versions(v2=1), of_versions(v2=4)),
            await scraped(scraping, of_versions(v1=0, v2=1), of_versions(v2=4)),  # loaded again
        ]

    assert asyncio.run(scenario()) == [
        f"{ONE} 12",
        f"{ONE} 12\n{TWO} 1",
        f"{ONE} 12\n{TWO} 4",
        f"{TWO} 4",
        f"{TWO} 5",
        f"{TWO} 5",
        f"{ONE} 0\n{TWO} 5",
    ]


def test_a_version_that_a_worker_is_restarted_without_keeps_its_sum() -> None:
    async def scenario() -> list[bytes]:
        scraping = Scraping(lambda _: ())
        for worker, count in enumerate((5, 7)):
            scraping.told(worker, Scraped(0, of_versions(v1=count)))
        before = await scraping.text({})
        scraping.end(0)
        scraping.told(0, Scraped(0, of_versions()))  # its successor still loads
        return [before, await scraping.text({})]

    before, after = asyncio.run(scenario())
    assert before == after == of_versions(v1=12)


def test_a_hidden_sum_stays_hidden_while_a_worker_drains_a_reloaded_version() -> None:
    async def scenario() -> list[str]:
        scraping = Scraping(lambda _: ())
        return [
            await scraped(scraping, of_versions(v1=5), of_versions(v1=7)),
            await scraped(scraping, of_versions(v1=0), of_versions(v1=7)),
            await scraped(scraping, of_versions(v1=9), of_versions(v1=8)),
            await scraped(scraping, of_versions(v1=9), of_versions(v1=1)),
        ]

    assert asyncio.run(scenario()) == [f"{ONE} 12", "", "", f"{ONE} 10"]


def test_a_hidden_sum_stays_hidden_when_a_worker_that_unloaded_it_ends() -> None:
    async def scenario() -> list[str]:
        scraping = Scraping(lambda _: ())
        found = [
            await scraped(scraping, of_versions(v1=5), of_versions(v1=7)),
            await scraped(scraping, of_versions(), of_versions(v1=7)),
        ]
        scraping.end(0)
        found.append(await scraped(scraping))
        scraping.told(0, Scraped(0, of_versions()))
        found.append(await scraped(scraping))
        scraping.end(1)  # with counts of the instance that is left out
        return [*found, await scraped(scraping, of_versions(v1=2), of_versions(v1=1))]

    assert asyncio.run(scenario()) == [f"{ONE} 12", "", "", "", f"{ONE} 3"]
