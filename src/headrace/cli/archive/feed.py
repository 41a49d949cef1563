"""``headrace archive feed TABLE [FILE]``: count a stream's rows by key over past minutes or hours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base import logs
from headrace.base.errors import ConfigError
from headrace.cli import common, number_types
from headrace.cli.archive import archive_options
from headrace.cli.metrics_port_option import add_metrics, metrics
from headrace.cli.stream_publish import add_kafka_config
from headrace.cli.train import message
from headrace.config import checks

if TYPE_CHECKING:
    from headrace.archive.windows.feed import Batches
    from headrace.cli.archive.feed_run import Located
    from headrace.training.running.source import TopicOrigin

_EXAMPLES = """examples:
  headrace archive feed demand orders.csv            count the rows of a file
  headrace stream generate --rows 100000 | headrace archive feed demand
  headrace archive feed demand kafka://localhost:9092/orders --checkpoint state/demand --resume

docs/windowed-features.md explains what is counted, and when it is written."""

_CHECKPOINT_SECONDS = 60.0


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


@dataclass(frozen=True)
class _Asking:
    """The input to read; see ``headrace.training.running.source.TopicOptions``."""

    input: str
    kafka_config: Path | None
    skip_messages: frozenset[tuple[int, int]]
    checkpoint: Path | None
    continued: bool


def run(options: argparse.Namespace) -> int:
    """Count rows until the stream ends, or a signal arrives."""
    from headrace.archive.windows.feed import Feed, after  # noqa: PLC0415 - not needed to list the verbs
    from headrace.cli.archive.feed_run import FeedRun  # noqa: PLC0415 - as above
    from headrace.frontends.archive.metrics import FeedMetrics  # noqa: PLC0415 - as above
    from headrace.training.running.checkpoint import (  # noqa: PLC0415 - as above
        find_checkpoint,
        only_run,
        rows_before,
    )
    from headrace.training.running.loop import Interruptions  # noqa: PLC0415 - as above
    from headrace.training.running.source import open_origin  # noqa: PLC0415 - as above

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
        found, located = held.enter_context(_opened(asking, origin, feed.maker.columns))
        feed.maker.check(found.names)
        skipped = origin.skip_rows if origin else 0 if options.continued else rows_before(checkpoint)
        feed.rows_before = feed.rows - skipped
        if skipped:
            found = found._replace(batches=after(found.batches, skipped))
        fed = FeedRun(feed, interruptions, origin, options)
        fed.located = located
        code = fed.run(found)
        fed.tell_end()
    return code


def _check(options: argparse.Namespace) -> None:
    if not options.input.startswith("kafka://") and (options.kafka_config or options.skip_message):
        raise ConfigError("kafka-config, skip-message: these are for kafka://HOST:PORT/TOPIC only")
    if options.continued and not options.resume:
        raise ConfigError("continued: --continued requires --resume; give both")


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
