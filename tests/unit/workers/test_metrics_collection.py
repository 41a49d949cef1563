"""The metrics of all workers, and what of them is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.workers.messages import Scraped
from headrace.workers.metrics_collection import Scraping

COUNTER = """# HELP x_total It.
# TYPE x_total counter
x_total %d
"""


def test_a_worker_that_ends_while_its_metrics_are_merged_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> bytes:
        scraping = Scraping(lambda _: ())
        for worker, count in enumerate((1, 10, 100)):
            scraping.told(worker, Scraped(0, (COUNTER % count).encode()))
        scraping.end(0)

        async def in_a_thread(merge: Callable[[], bytes]) -> bytes:
            scraping.end(1)
            return merge()

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "to_thread", in_a_thread)
            first = await scraping.text({})
        assert await scraping.text({}) == first
        return first

    assert asyncio.run(scenario()).decode() == COUNTER % 111


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


def test_it_stays_away_while_a_worker_drains_what_others_have_loaded_again() -> None:
    async def scenario() -> list[str]:
        scraping = Scraping(lambda _: ())
        return [
            await scraped(scraping, of_versions(v1=5), of_versions(v1=7)),
            await scraped(scraping, of_versions(v1=0), of_versions(v1=7)),
            await scraped(scraping, of_versions(v1=9), of_versions(v1=8)),
            await scraped(scraping, of_versions(v1=9), of_versions(v1=1)),
        ]

    assert asyncio.run(scenario()) == [f"{ONE} 12", "", "", f"{ONE} 10"]


def test_it_stays_away_when_a_worker_that_has_unloaded_it_ends() -> None:
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
