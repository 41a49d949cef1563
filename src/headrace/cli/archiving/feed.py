"""``headrace archive feed TABLE [FILE]``: count a stream's rows by key over past minutes or hours."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base import logs
from headrace.base.errors import ConfigError, HeadraceError, StreamError
from headrace.base.terminal import Line, counted
from headrace.cli import common, number_types
from headrace.cli.archiving import archive_options
from headrace.cli.metrics_port_option import add_metrics, metrics
from headrace.cli.stream_publish import add_kafka_config
from headrace.cli.train import message
from headrace.config import checks

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.archive.windows.feed import Batches, Feed
    from headrace.training.running.interruptions import Interruptions
    from headrace.training.topic_origin import TopicOrigin

_EXAMPLES = """examples:
  headrace archive feed demand orders.csv            count the rows of a file
  headrace stream generate --rows 100000 | headrace archive feed demand
  headrace archive feed demand kafka://localhost:9092/orders --checkpoint state/demand --resume

docs/windowed-features.md explains what is counted, and when it is written."""

_log = logging.getLogger(__name__)

_CHECKPOINT_SECONDS = 60.0
_TERMINATED = 143
_DOUBTS = (
    ("keyless", "without a key, which only advanced the clock"),
    ("late", "after the end of their bucket, counted from the next boundary on"),
    ("too_late", "after all windows had left their bucket, not counted"),
    ("ahead", "too far ahead of the rows before them, not counted"),
)


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="feed",
            help="count a stream's rows by key over the past minutes or hours",
            description="Count the rows of a stream for the windows of a feature table, and write the "
            "changed values to all versions of the table at the end of each bucket of the rows' own time.",
            examples=_EXAMPLES,
            failure="the stream is cut or corrupt, a row is wrong, or the store does not answer",
            run=run,
        ),
    )
    add = parser.add_argument
    add("table", metavar="TABLE", help="a table of the archive with windows")
    add(
        "input",
        metavar="FILE",
        nargs="?",
        default="-",
        help="Parquet, Arrow or CSV; - for a stream on standard input (default); or a topic, "
        "kafka://HOST:PORT[,HOST:PORT]/TOPIC",
    )
    archive_options.add_archive(parser)
    add_kafka_config(parser)
    add(
        "--skip-message",
        type=message,
        metavar="N:N",
        action="append",
        default=[],
        help="of a topic: skip the message of this partition and offset; may be repeated",
    )
    add("--checkpoint", metavar="DIR", type=Path, help="where to save the state, with the position")
    add(
        "--checkpoint-every-seconds",
        type=number_types.seconds("checkpoint-every-seconds", most=checks.YEAR),
        metavar="S",
        default=_CHECKPOINT_SECONDS,
        help=f"save every S seconds, and at the end; 0 = only at the end (default {_CHECKPOINT_SECONDS:.0f})",
    )
    add_metrics(parser)
    add("--resume", action="store_true", help="continue from the newest checkpoint, if any")
    add(
        "--continued",
        action="store_true",
        help="with --resume: the input begins with the rows after the checkpoint, not with the first ones",
    )


Located = Callable[[StreamError], HeadraceError]
"""Adds the position of the wrong row to an error."""


@dataclass(frozen=True)
class _Asking:
    """The input to read; see ``headrace.training.topic_origin.TopicOptions``."""

    input: str
    kafka_config: Path | None
    skip_messages: frozenset[tuple[int, int]]
    checkpoint: Path | None
    continued: bool


def run(options: argparse.Namespace) -> int:
    """Count rows until the stream ends, or a signal arrives."""
    from headrace.archive.windows.feed import Feed, after  # noqa: PLC0415
    from headrace.frontends.archive.feed_metrics import FeedMetrics  # noqa: PLC0415 - as above
    from headrace.training.running.checkpoint import only_run  # noqa: PLC0415 - as above
    from headrace.training.running.interruptions import Interruptions  # noqa: PLC0415 - as above
    from headrace.training.running.resumption import find_checkpoint, rows_before  # noqa: PLC0415 - as above
    from headrace.training.topic_origin import open_origin  # noqa: PLC0415 - as above

    _check(options)
    logs.set_up("text", "info")
    asking = _Asking(
        options.input,
        options.kafka_config,
        frozenset(options.skip_message),
        options.checkpoint,
        options.continued,
    )
    with ExitStack() as held:
        if options.checkpoint is not None:
            held.enter_context(only_run(options.checkpoint))
        checkpoint = find_checkpoint(options.checkpoint, sys.stderr, resume=options.resume)
        archive = held.enter_context(archive_options.open_archive_of(options))
        interruptions = Interruptions()
        feed = Feed(
            archive,
            options.table,
            lambda: interruptions.number is not None,
            is_saved=options.checkpoint is not None,
        )
        if checkpoint is not None:
            feed.restore(checkpoint.state, checkpoint.meta.get("feed"))
        # Before opening the input, which waits for a stream that may begin much later.
        held.enter_context(metrics(options, lambda: FeedMetrics(feed, options.table)))
        origin = held.enter_context(open_origin(asking, checkpoint))
        (names, batches), located = held.enter_context(_opened(asking, origin, feed.maker.columns))
        feed.maker.check(names)
        skipped = origin.skip_rows if origin else 0 if options.continued else rows_before(checkpoint)
        feed.rows_before = feed.rows - skipped
        going = _Going(feed, interruptions, origin, options)
        going.located = located
        code = going.go(after(batches, skipped) if skipped else batches)
        going.tell_end()
    return code


class _Going:
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
    ) -> None:
        self._feed, self._interruptions, self._origin, self._options = feed, interruptions, origin, options
        self.located: Located | None = None
        self._started = self._saved = time.monotonic()
        self._first_row = feed.rows
        self._line = Line(sys.stderr)

    def go(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Count all batches; the state is also saved if the stream is cut, or a signal arrives.

        Returns:
            The exit code.
        """
        from headrace.training.running.interruptions import Interrupted  # noqa: PLC0415 - as above

        with self._interruptions:
            try:
                self._take_all(batches)
            except Interrupted:
                self._save()
                return _TERMINATED if self._interruptions.terminated else common.INTERRUPTED
            finally:
                self._line.clear()
        return common.DONE

    def tell_end(self) -> None:
        """Print the totals."""
        told, seconds = self._feed.counters.told, time.monotonic() - self._started
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

    def _take_all(self, batches: Iterator[pa.RecordBatch]) -> None:
        try:
            while (batch := self._interruptions.wait_for(lambda: next(batches, None))) is not None:
                self._feed.take(batch)
                if self._line.due:
                    self._line.show(self._told())
                self._save_if_due()
            self._feed.finish()
        except StreamError as error:
            self._save()  # the rows before the error are counted
            raise (error if self.located is None else self.located(error)) from error
        self._save()

    def _save_if_due(self) -> None:
        every = self._options.checkpoint_every_seconds
        if every and time.monotonic() - self._saved >= every:
            self._save()

    def _save(self) -> None:
        from headrace.training.running.checkpoint import save_checkpoint  # noqa: PLC0415 - as above

        if self._options.checkpoint is None:
            return
        arrays, meta = self._feed.state()
        origin = None if self._origin is None else self._origin.position(self._feed.rows)
        position = {"position": {"rows": self._feed.rows}} | ({} if origin is None else {"origin": origin})
        save_checkpoint(self._options.checkpoint, arrays, {**position, "feed": meta})
        if self._origin is not None:
            self._origin.saved()
        self._saved = time.monotonic()
        _log.info("saved: %s", self._told())

    def _told(self) -> str:
        feed = self._feed
        pace = (feed.rows - self._first_row) / max(1e-9, time.monotonic() - self._started)
        keys = len(feed.counters.counted_slots)
        behind = max(0.0, datetime.now(UTC).timestamp() - feed.clock_seconds)
        return f"{feed.rows:,} rows, {pace:,.0f}/s, {keys:,} keys, {behind:,.0f} s behind"


def _check(options: argparse.Namespace) -> None:
    if not options.input.startswith("kafka://") and (options.kafka_config or options.skip_message):
        raise ConfigError("kafka-config, skip-message: these are for kafka://HOST:PORT/TOPIC only")
    if options.continued and not options.resume:
        raise ConfigError("continued: it describes the input after --resume; give both")


@contextmanager
def _opened(
    asking: _Asking, origin: TopicOrigin | None, columns: list[str]
) -> Iterator[tuple[Batches, Located | None]]:
    """Open the input; yield its batches, and a function that adds positions to errors."""
    from headrace.archive.tables.file_readers import ColumnFile  # noqa: PLC0415 - not needed to list the verbs
    from headrace.archive.windows.feed import file_batches, open_stream_batches  # noqa: PLC0415 - as above
    from headrace.training.running.source import opened as opened_input  # noqa: PLC0415 - as above

    if origin is None and asking.input != "-":
        table = ColumnFile(Path(asking.input))
        yield file_batches(table, columns), table.located
        return
    with (
        opened_input(asking.input if origin is None else origin.source) as file,
        open_stream_batches(file) as found,
    ):
        yield found, None if origin is None else origin.source.located
