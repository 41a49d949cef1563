"""The metrics of an archive and of ``headrace archive feed``, read from their own counters at a scrape."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from headrace.base.clock import unix_milliseconds
from headrace.base.errors import HeadraceError
from headrace.frontends.metrics.metric_types import Metric, family

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from headrace.archive.lookup.archive import Archive
    from headrace.archive.lookup.reports import FillCounts, InputTotals
    from headrace.archive.lookup.space_reader import Counts
    from headrace.archive.windows.feed import Feed
    from headrace.storage.queues.queue import Depth, Queue

CountsT = TypeVar("CountsT")

_log = logging.getLogger(__name__)

# Queue depths measured in the background, for callers that must not wait for the queue.


_GOOD_SECONDS = 1.0
_GONE_SECONDS = 60.0


class Depths:
    """Measures the depth of a queue in a thread, when it is requested and the last result is old."""

    def __init__(self, queue: Queue) -> None:
        """Start the thread and the first measurement.

        Args:
            queue: The queue; close it after this.
        """
        self._queue = queue
        self._last: Depth | None = None
        self._asked = self._answered = time.monotonic()
        self._wanted = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._ask, name="archive-depth", daemon=True)
        self._wanted.set()
        self._thread.start()

    def latest(self) -> Depth | None:
        """Return the last depth, or None if it is over a minute old; request a new one if it is old."""
        now = time.monotonic()
        if now - self._asked > _GOOD_SECONDS:
            self._asked = now
            self._wanted.set()
        return self._last if now - self._answered < _GONE_SECONDS else None

    def close(self) -> None:
        """End the thread, after waiting for a measurement in progress."""
        self._closed = True
        self._wanted.set()
        self._thread.join()

    def _ask(self) -> None:
        while self._wanted.wait() and not self._closed:
            self._wanted.clear()
            try:
                self._last = self._queue.depth()
                self._answered = time.monotonic()
            except HeadraceError as error:
                _log.debug("the queue did not report its depth: %s", error.message)
            except Exception:  # noqa: BLE001 - the boundary of the thread: metrics continue without depths
                _log.exception("the depth of the queue cannot be determined")


_SPACE = ("space",)
LOOKUPS = Metric("headrace_archive_lookups", "counter", "Lookups, or parts of long ones.", _SPACE)
KEYS = Metric("headrace_archive_keys", "counter", "Keys looked up.", _SPACE)
CACHED = Metric("headrace_archive_cached_keys", "counter", "Keys found in memory.", _SPACE)
STORED = Metric("headrace_archive_stored_keys", "counter", "Keys found in the store.", _SPACE)
MISSING = Metric(
    "headrace_archive_missing_keys",
    "counter",
    "Keys answered with the out-of-vocabulary vector.",
    _SPACE,
)
NEW = Metric(
    "headrace_archive_new_keys",
    "counter",
    "Missing keys passed on to the queue, for the first time as far as this process knows.",
    _SPACE,
)
OVER_QUOTA = Metric(
    "headrace_archive_over_quota_keys",
    "counter",
    "Missing keys not queued because the caller exceeded its quota.",
    _SPACE,
)
LATE = Metric(
    "headrace_archive_late_lookups",
    "counter",
    "Lookups that stopped waiting for the store, or did not ask it.",
    _SPACE,
)
DAMAGED = Metric(
    "headrace_archive_damaged_values",
    "counter",
    "Values in the store that are not vectors of their space version.",
    _SPACE,
)
FILLED = Metric(
    "headrace_archive_filled_keys", "counter", "Keys whose vectors this process computed and stored.", _SPACE
)
DEAD = Metric("headrace_archive_dead_keys", "counter", "Keys that this process made dead letters.", _SPACE)
WAITING = Metric("headrace_archive_queued_keys", "gauge", "Keys waiting in the queue, of all spaces.", ())
OLDEST = Metric("headrace_archive_queue_oldest_seconds", "gauge", "Age of the oldest key in the queue.", ())
BREAKER = Metric(
    "headrace_archive_store_breaker_open",
    "gauge",
    "1 while the breaker is open because the store does not answer; 0 for a local store.",
    (),
)

_INPUT = ("model", "input")
INPUT_KEYS = Metric(
    "headrace_archive_input_keys",
    "counter",
    "Keys looked up for an input of a model, in rows that it answered.",
    _INPUT,
)
INPUT_FOUND = Metric(
    "headrace_archive_input_found_keys", "counter", "Keys of an input that got a value.", _INPUT
)
INPUT_TOO_OLD = Metric(
    "headrace_archive_input_too_old_keys",
    "counter",
    "Keys of an input whose value was older than max_age_seconds.",
    _INPUT,
)

METRICS = (
    LOOKUPS, KEYS, CACHED, STORED, MISSING, NEW, OVER_QUOTA, LATE, DAMAGED, FILLED, DEAD, WAITING, OLDEST,
    BREAKER, INPUT_KEYS, INPUT_FOUND, INPUT_TOO_OLD,
)  # fmt: skip

_OF_LOOKUPS: tuple[tuple[Metric, Callable[[Counts], int]], ...] = (
    (LOOKUPS, lambda counts: counts.lookups),
    (KEYS, lambda counts: counts.keys),
    (CACHED, lambda counts: counts.cached),
    (STORED, lambda counts: counts.stored),
    (MISSING, lambda counts: counts.missing),
    (NEW, lambda counts: counts.new),
    (OVER_QUOTA, lambda counts: counts.over_quota),
    (LATE, lambda counts: counts.late),
    (DAMAGED, lambda counts: counts.damaged),
)
_OF_FILLING: tuple[tuple[Metric, Callable[[FillCounts], int]], ...] = (
    (FILLED, lambda counts: counts.filled),
    (DEAD, lambda counts: counts.dead),
)
_OF_INPUTS: tuple[tuple[Metric, Callable[[InputTotals], int]], ...] = (
    (INPUT_KEYS, lambda totals: totals.keys),
    (INPUT_FOUND, lambda totals: totals.found),
    (INPUT_TOO_OLD, lambda totals: totals.too_old),
)


class ArchiveMetrics:
    """A Prometheus collector over an archive's counters."""

    def __init__(self, archive: Archive, depths: Depths) -> None:
        """Store the archive; its counters are read at each scrape.

        Args:
            archive: The archive.
            depths: Measures the depth of its queue.
        """
        self._archive, self._depths = archive, depths

    def collect(self) -> Iterator[Family]:
        """Yield the current metrics."""
        spaces = [([space], counts) for space, counts in self._archive.counts.items()]
        yield from (_counted(metric, value, spaces) for metric, value in _OF_LOOKUPS)
        fills = [([space], counts) for space, counts in dict(self._archive.fills).items()]
        yield from (_counted(metric, value, fills) for metric, value in _OF_FILLING)
        yield from self._queue()
        breaker = family(BREAKER)
        breaker.add_metric([], int(self._archive.is_store_silent))
        yield breaker
        inputs = list(dict(self._archive.of_models).items())
        yield from (_counted(metric, value, inputs) for metric, value in _OF_INPUTS)

    def _queue(self) -> Iterator[Family]:
        waiting, oldest = family(WAITING), family(OLDEST)
        depth = self._depths.latest()
        if depth is not None:
            waiting.add_metric([], depth.messages)
            oldest.add_metric([], depth.oldest_seconds)
        yield from (waiting, oldest)


def _counted(
    metric: Metric,
    value: Callable[[CountsT], float],
    counts: Iterable[tuple[Sequence[str], CountsT]],
) -> Family:
    """Return a metric's family, with the value of each counts under their labels."""
    counted = family(metric)
    for labels, one in counts:
        counted.add_metric(labels, value(one))
    made: Family = counted
    return made


# --- ``headrace archive feed`` ---

_TABLE = ("table",)
_FEED = "headrace_archive_feed"
_OF_FEED: tuple[tuple[Metric, Callable[[Feed], float]], ...] = (
    (Metric(f"{_FEED}_rows", "counter", "Rows read from the stream.", _TABLE), lambda feed: feed.rows),
    (
        Metric(f"{_FEED}_stored_rows", "counter", "Rows of the table written.", _TABLE),
        lambda feed: feed.stored,
    ),
    (
        Metric(
            f"{_FEED}_keyless_rows", "counter", "Rows without a key, which only advance the clock.", _TABLE
        ),
        lambda feed: feed.maker.keyless,
    ),
    (
        Metric(
            f"{_FEED}_late_rows",
            "counter",
            "Rows that arrived after their bucket had closed, and count from the next boundary on.",
            _TABLE,
        ),
        lambda feed: feed.counters.told.late,
    ),
    (
        Metric(
            f"{_FEED}_too_late_rows",
            "counter",
            "Rows that arrived after every window had left their bucket, and are not counted.",
            _TABLE,
        ),
        lambda feed: feed.counters.told.too_late,
    ),
    (
        Metric(
            f"{_FEED}_ahead_rows",
            "counter",
            "Rows whose time was too far ahead of the rows before, and are not counted.",
            _TABLE,
        ),
        lambda feed: feed.counters.told.refused,
    ),
    (
        Metric(
            f"{_FEED}_held_rows",
            "gauge",
            "Rows whose time is too far ahead, held back until more rows agree.",
            _TABLE,
        ),
        lambda feed: feed.counters.told.held,
    ),
    (
        Metric(f"{_FEED}_keys", "gauge", "Keys with current counts.", _TABLE),
        lambda feed: len(feed.counters.counted_slots),
    ),
)
FEED_BEHIND = Metric(
    f"{_FEED}_behind_seconds",
    "gauge",
    "Lag of the last boundary, in the rows' own time, behind the present: alert on it.",
    _TABLE,
)

FEED_METRICS = (*(metric for metric, _ in _OF_FEED), FEED_BEHIND)


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
        feeds = [([self._table], self._feed)]
        yield from (_counted(metric, value, feeds) for metric, value in _OF_FEED)
        behind = family(FEED_BEHIND)
        if clock := self._feed.clock_seconds:
            behind.add_metric([self._table], max(0.0, unix_milliseconds() / 1000 - clock))
        yield behind
