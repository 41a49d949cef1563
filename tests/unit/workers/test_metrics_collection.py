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
