"""The metrics of ``headrace archive feed``: read at a scrape from what it counts anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.clock import unix_milliseconds
from headrace.frontends.metric import Metric
from headrace.frontends.metrics import family

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from headrace.archive.windows.feed import Feed

_TABLE = ("table",)
_PREFIX = "headrace_archive_feed"
ROWS = Metric(f"{_PREFIX}_rows", "counter", "Rows of the stream that were taken.", _TABLE)
STORED = Metric(f"{_PREFIX}_stored_rows", "counter", "Rows of the table that were written.", _TABLE)
KEYLESS = Metric(
    f"{_PREFIX}_keyless_rows", "counter", "Rows that had no key, and only moved the clock.", _TABLE
)
LATE = Metric(
    f"{_PREFIX}_late_rows",
    "counter",
    "Rows that came after their bucket was over, and count since the boundary after that.",
    _TABLE,
)
TOO_LATE = Metric(
    f"{_PREFIX}_too_late_rows",
    "counter",
    "Rows that came after all windows had left their bucket, and count nowhere.",
    _TABLE,
)
AHEAD = Metric(
    f"{_PREFIX}_ahead_rows",
    "counter",
    "Rows that were too far ahead of those before them, and count nowhere.",
    _TABLE,
)
HELD = Metric(
    f"{_PREFIX}_held_rows",
    "gauge",
    "Rows that are too far ahead of those before them, and wait for more that agree.",
    _TABLE,
)
KEYS = Metric(f"{_PREFIX}_keys", "gauge", "Keys that are counted now.", _TABLE)
BEHIND = Metric(
    f"{_PREFIX}_behind_seconds",
    "gauge",
    "How far the last boundary of the rows' own time is behind the present: alert on it.",
    _TABLE,
)

METRICS = (ROWS, STORED, KEYLESS, LATE, TOO_LATE, AHEAD, HELD, KEYS, BEHIND)

_OF_FEED: tuple[tuple[Metric, Callable[[Feed], float]], ...] = (
    (ROWS, lambda feed: feed.rows),
    (STORED, lambda feed: feed.stored),
    (KEYLESS, lambda feed: feed.maker.keyless),
    (LATE, lambda feed: feed.counters.told.late),
    (TOO_LATE, lambda feed: feed.counters.told.too_late),
    (AHEAD, lambda feed: feed.counters.told.refused),
    (HELD, lambda feed: feed.counters.told.held),
    (KEYS, lambda feed: len(feed.counters.counted_slots)),
)


class FeedMetrics:
    """A Prometheus collector over a feed's counters."""

    def __init__(self, feed: Feed, table: str) -> None:
        """Read them when they are asked for.

        Args:
            feed: What is measured.
            table: What it feeds.
        """
        self._feed, self._table = feed, table

    def collect(self) -> Iterator[Family]:
        """All of them, as they are now; how far it is behind from the first row on."""
        for metric, value in _OF_FEED:
            counted = family(metric)
            counted.add_metric([self._table], value(self._feed))
            yield counted
        behind = family(BEHIND)
        if clock := self._feed.clock_seconds:
            behind.add_metric([self._table], max(0.0, unix_milliseconds() / 1000 - clock))
        yield behind
