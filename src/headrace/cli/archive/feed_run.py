"""A run of ``headrace archive feed``: its loop, its checkpoints, and its reports."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, StreamError
from headrace.base.terminal import Line, counted
from headrace.cli import common
from headrace.training.running.checkpoint import save_checkpoint
from headrace.training.running.loop import (
    NEVER,
    Every,
    Interrupted,
    Interruptions,
    Mark,
    is_due,
    seconds_until,
)

if TYPE_CHECKING:
    from headrace.archive.windows.feed import Batches, Feed
    from headrace.training.running.source import TopicOrigin

Located = Callable[[StreamError], HeadraceError]
"""Adds the position of the wrong row to an error."""

_log = logging.getLogger(__name__)

_TERMINATED = 143
_DOUBTS = (
    ("keyless", "without a key, which only advanced the clock"),
    ("late", "after the end of their bucket, counted from the next boundary on"),
    ("too_late", "after all windows had left their bucket, not counted"),
    ("ahead", "too far ahead of the rows before them, not counted"),
)


class FeedRun:
    """A running feed: its loop, its reports, and its checkpoints.

    Attributes:
        located: Adds the position of the wrong row to an error; None if its number is enough.
    """

    def __init__(
        self,
        feed: Feed,
        interruptions: Interruptions,
        origin: TopicOrigin | None,
        options: argparse.Namespace,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a run.

        Args:
            feed: Counts the rows.
            interruptions: Signal handlers.
            origin: Topic that the rows come from; None if they come from elsewhere.
            options: Options of the verb.
            now: Clock in seconds.
        """
        self._feed, self._interruptions, self._origin, self._options = feed, interruptions, origin, options
        self.located: Located | None = None
        self._now = now
        self._started = now()
        self._saved = Mark(feed.rows)
        self._first_row = feed.rows
        self._every = NEVER if options.checkpoint is None else Every(0, options.checkpoint_every_seconds)
        self._line = Line(sys.stderr)

    def run(self, found: Batches) -> int:
        """Count all batches; the state is also saved if the stream is cut, or a signal arrives.

        Args:
            found: The source of the rows.

        Returns:
            The exit code.
        """
        with self._interruptions:
            try:
                self._take_all(found)
            except Interrupted:
                self._save()
                return _TERMINATED if self._interruptions.terminated else common.INTERRUPTED
            finally:
                self._line.clear()
        return common.DONE

    def tell_end(self) -> None:
        """Print the totals."""
        told, seconds = self._feed.counters.told, self._now() - self._started
        found = {
            "table": self._options.table,
            "rows": self._feed.rows,
            "stored": self._feed.stored,
            "keys": len(self._feed.counters.counted_slots),
            "keyless": self._feed.maker.keyless,
            "late": told.late,
            "too_late": told.too_late,
            "ahead": told.refused + told.held,
            "seconds": round(seconds, 3),
        }
        if self._options.json:
            common.print_json(found)
            return
        new = self._feed.rows - self._first_row
        print(
            f"counted {counted(new, 'row')} in {seconds:,.1f} s; "
            f"rows of the table written: {self._feed.stored:,}"
        )
        for name, what in _DOUBTS:
            if found[name]:
                print(f"  {what}: {counted(found[name], 'row')}")

    def _take_all(self, found: Batches) -> None:
        due: float | None = None
        try:
            while True:
                if due is not None and not self._interruptions.wait_for(partial(found.wait, due)):
                    due = self._save_as_due()
                    continue
                batch = self._interruptions.wait_for(lambda: next(found.batches, None))
                if batch is None:
                    break
                self._feed.take(batch)
                if self._line.due:
                    self._line.show(self._told())
                due = self._save_as_due()
            self._feed.finish()
        except StreamError as error:
            self._save()  # rows of earlier batches are counted
            raise (error if self.located is None else self.located(error)) from error
        self._save()

    def _save_as_due(self) -> float | None:
        """Save the state if it is time; return the seconds until it is, None if there are no new rows."""
        if is_due(self._every, self._saved, self._mark):
            self._save()
        return seconds_until(self._every, self._saved, self._mark)

    @property
    def _mark(self) -> Mark:
        return Mark(self._feed.rows, self._now() - self._started)

    def _save(self) -> None:
        if self._options.checkpoint is None:
            return
        arrays, meta = self._feed.state()
        origin = None if self._origin is None else self._origin.position(self._feed.rows)
        position = {"position": {"rows": self._feed.rows}} | ({} if origin is None else {"origin": origin})
        save_checkpoint(self._options.checkpoint, arrays, {**position, "feed": meta})
        if self._origin is not None:
            self._origin.saved()
        self._saved = self._mark
        _log.info("saved: %s", self._told())

    def _told(self) -> str:
        feed = self._feed
        pace = (feed.rows - self._first_row) / max(1e-9, self._now() - self._started)
        keys = len(feed.counters.counted_slots)
        behind = max(0.0, datetime.now(UTC).timestamp() - feed.clock_seconds)
        return f"{feed.rows:,} rows, {pace:,.0f}/s, {keys:,} keys, {behind:,.0f} s behind"
