"""``headrace archive fill``: embed the keys that lookups missed, until stopped."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.base import logs
from headrace.base.errors import Unavailable
from headrace.base.stop_signals import StopSignals
from headrace.base.terminal import Line, counted
from headrace.cli import common, number_types
from headrace.cli.archive import archive_options
from headrace.cli.metrics_port_option import add_metrics, metrics

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.model.counts import FillCounts

_EXAMPLES = """examples:
  headrace archive fill                    fill all spaces until Ctrl-C or SIGTERM
  headrace archive fill --until-empty      fill the queued keys, and exit
  headrace archive fill --archive ads/archive.toml --threads 4

Any number of fillers may run, on any number of machines if the store and the queue are shared: each key is
embedded by one of them."""

_LOOK_SECONDS = 0.5
_THREADS, _BATCH = 2, 64


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="fill",
            help="embed the keys that were missed",
            description="Take missed keys from the queue, embed them, and store their vectors, until "
            "stopped. A key that cannot be embedded becomes a dead letter. A changed encoder makes a new "
            "version of its space.",
            examples=_EXAMPLES,
            failure="an embedder cannot be loaded",
            run=run,
        ),
    )
    archive_options.add_archive(parser)
    add_threads(parser)
    add_metrics(parser)
    parser.add_argument("--until-empty", action="store_true", help="exit when no more keys are queued")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the options for threads and batches."""
    parser.add_argument(
        "--threads",
        metavar="N",
        type=number_types.whole("threads", least=1, most=256),
        default=_THREADS,
        help=f"how many batches are embedded in parallel (default {_THREADS})",
    )
    parser.add_argument(
        "--batch",
        metavar="N",
        type=number_types.whole("batch", least=1, most=10_000),
        default=_BATCH,
        help=f"how many keys are embedded together (default {_BATCH})",
    )


def run(options: argparse.Namespace) -> int:
    """Fill until a signal arrives, or the queue is empty."""
    from headrace.archive.filling.filler import Filler  # noqa: PLC0415 - not needed to list the verbs

    logs.set_up("text", "info")
    with StopSignals() as stopping, ExitStack() as held:
        archive = held.enter_context(archive_options.open_archive_of(options))
        embedders = archive_options.open_embedders(options, archive, held)
        filler = Filler(archive, embedders, threads=options.threads, batch=options.batch)
        _answer_metrics(options, archive, held)
        started = time.monotonic()
        filler.start()
        held.callback(filler.stop)
        line = Line(sys.stderr)
        while not stopping.event.wait(_LOOK_SECONDS):
            try:
                depth = archive.queue.depth()
            except Unavailable:  # the Filler's threads retry, and log it
                continue
            line.show(_told(filler.counts, time.monotonic() - started, depth.messages))
            if options.until_empty and depth.messages == 0:
                break
        filler.stop()
        line.clear()
        _finish(options, filler.counts, time.monotonic() - started)
    return common.INTERRUPTED if stopping.interrupted else common.DONE


def _answer_metrics(options: argparse.Namespace, archive: Archive, held: ExitStack) -> None:
    """Serve the same archive metrics as a server, if the options ask for it."""
    from headrace.frontends.archive.metrics import ArchiveMetrics, Depths  # noqa: PLC0415 - only if requested

    def made() -> ArchiveMetrics:
        depths = Depths(archive.queue)
        held.callback(depths.close)
        return ArchiveMetrics(archive, depths)

    held.enter_context(metrics(options, made))


def totals(counts: Mapping[str, FillCounts]) -> dict[str, int]:
    """Return the totals over all spaces."""
    return {
        "filled": sum(one.filled for one in counts.values()),
        "there": sum(one.there for one in counts.values()),
        "dead": sum(one.dead for one in counts.values()),
    }


def _told(counts: Mapping[str, FillCounts], seconds: float, waiting: int) -> str:
    total = totals(counts)
    pace = total["filled"] / max(seconds, 1e-9)
    dead = f", {total['dead']:,} dead letters" if total["dead"] else ""
    return f"{total['filled']:,} filled, {pace:,.0f}/s, {waiting:,} wait{dead}"


def _finish(options: argparse.Namespace, counts: Mapping[str, FillCounts], seconds: float) -> None:
    total = totals(counts)
    if options.json:
        common.print_json({**total, "seconds": round(seconds, 3)})
    else:
        print(
            f"filled {counted(total['filled'], 'key')} in {seconds:,.1f} s; already stored: "
            f"{total['there']:,}; dead letters: {total['dead']:,}"
        )
