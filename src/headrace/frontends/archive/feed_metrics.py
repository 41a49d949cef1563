"""The metrics of ``headrace archive feed``, read from its own counters at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.base.clock import unix_milliseconds
from headrace.frontends.metrics.metric_families import Metric, family

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from headrace.archive.windows.feed import Feed

_TABLE = ("table",)
_PREFIX = "headrace_archive_feed"
ROWS = Metric(f"{_PREFIX}_rows", "counter", "Rows read from the stream.", _TABLE)
STORED = Metric(f"{_PREFIX}_stored_rows", "counter", "Rows of the table written.", _TABLE)
KEYLESS = Metric(
    f"{_PREFIX}_keyless_rows", "counter", "Rows without a key, which only advance the clock.", _TABLE
)
LATE = Metric(
    f"{_PREFIX}_late_rows",
    "counter",
    "Rows that arrived after their bucket had closed, and count from the next boundary on.",
    _TABLE,
)
TOO_LATE = Metric(
    f"{_PREFIX}_too_late_rows",
    "counter",
    "Rows that arrived after every window had left their bucket, and are not counted.",
    _TABLE,
)
AHEAD = Metric(
    f"{_PREFIX}_ahead_rows",
    "counter",
    "Rows whose time was too far ahead of the rows before, and are not counted.",
    _TABLE,
)
HELD = Metric(
    f"{_PREFIX}_held_rows",
    "gauge",
    "Rows whose time is too far ahead, held back until more rows agree.",
    _TABLE,
)
KEYS = Metric(f"{_PREFIX}_keys", "gauge", "Keys with current counts.", _TABLE)
BEHIND = Metric(
    f"{_PREFIX}_behind_seconds",
    "gauge",
    "Lag of the last boundary, in the rows' own time, behind the present: alert on it.",
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
        """Store the feed; its counters are read at each scrape.

        Args:
            feed: The feed.
            table: Name of the feature table that it writes.
        """
        self._feed, self._table = feed, table

    def collect(self) -> Iterator[Family]:
        """Yield the current metrics; the delay behind the present only after the first row."""
        for metric, value in _OF_FEED:
            counted = family(metric)
            counted.add_metric([self._table], value(self._feed))
            yield counted
        behind = family(BEHIND)
        if clock := self._feed.clock_seconds:
            behind.add_metric([self._table], max(0.0, unix_milliseconds() / 1000 - clock))
        yield behind
