"""``headrace archive fill`` and ``backfill``: embed missed keys, and all keys of an older space version."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.base import logs
from headrace.base.errors import ConfigError, Unavailable
from headrace.base.stop_signals import StopSignals
from headrace.base.terminal import Line, counted
from headrace.cli import auditing, common, number_types
from headrace.cli.archive import archive_options
from headrace.cli.metrics_port_option import add_metrics, metrics

if TYPE_CHECKING:
    from headrace.archive.filling.backfill import Backfill
    from headrace.archive.filling.filler import Filler
    from headrace.archive.filling.pooled_embedder import PooledEmbedder
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.lookup.reports import FillCounts

_FILL_EXAMPLES = """examples:
  headrace archive fill                    fill all spaces until Ctrl-C or SIGTERM
  headrace archive fill --until-empty      fill the queued keys, and exit
  headrace archive fill --archive ads/archive.toml --threads 4

Any number of fillers may run, on any number of machines if the store and the queue are shared: each key is
embedded by one of them."""

_BACKFILL_EXAMPLES = """examples:
  headrace archive backfill titles                   fill the current encoder's version, then answer from it
  headrace archive backfill titles --rate 500        at most 500 keys per second
  headrace archive backfill titles --from-version 1 --to-version 2 --keep-default

A backfill continues where the last one was stopped or killed. Both versions answer meanwhile; lookups that
name no version use the new one once it is full."""

_LOOK_SECONDS = 0.5
_THREADS, _BATCH = 2, 64
_BAR = 30


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs to the command line."""
    _add_fill(words)
    _add_backfill(words)


def _add_fill(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = common.add(
        words,
        common.Verb(
            name="fill",
            help="embed the keys that were missed",
            description="Take missed keys from the queue, embed them, and store their vectors, until "
            "stopped. A key that cannot be embedded becomes a dead letter. A changed encoder makes a new "
            "version of its space.",
            examples=_FILL_EXAMPLES,
            failure="an embedder cannot be loaded",
            run=run_fill,
        ),
    )
    archive_options.add_archive(parser)
    _add_threads(parser)
    add_metrics(parser)
    parser.add_argument("--until-empty", action="store_true", help="exit when no more keys are queued")


def _add_backfill(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = common.add(
        words,
        common.Verb(
            name="backfill",
            help="fill a new space version with the keys of an older one",
            description="Embed all keys of a space's default version with the space's current encoder, and "
            "then make the encoder's version the default. Running fillers help; this process fills, too.",
            examples=_BACKFILL_EXAMPLES,
            failure="the store or the queue does not answer, or another process runs the same backfill",
            run=run_backfill,
        ),
    )
    archive_options.add_space(parser)
    archive_options.add_archive(parser)
    auditing.add_option(parser)
    _add_threads(parser)
    _add_version(
        parser, "--from-version", "the version whose keys are embedded (default: the default version)"
    )
    _add_version(parser, "--to-version", "the version to fill (default: the current encoder's)")
    parser.add_argument(
        "--rate",
        metavar="R",
        type=number_types.above_zero("rate", most=1e9),
        help="maximum keys per second (default: no limit)",
    )
    parser.add_argument("--no-fill", action="store_true", help="leave the work to fillers that run elsewhere")
    parser.add_argument("--keep-default", action="store_true", help="do not make the new version the default")


def _add_threads(parser: argparse.ArgumentParser) -> None:
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


def _add_version(parser: argparse.ArgumentParser, name: str, help_: str) -> None:
    whole = number_types.whole(name[2:], least=1, most=2**31)
    parser.add_argument(name, metavar="N", type=whole, help=help_)


def run_fill(options: argparse.Namespace) -> int:
    """Fill until a signal arrives, or the queue is empty."""
    logs.set_up("text", "info")
    with StopSignals() as stopping, ExitStack() as held:
        archive = held.enter_context(archive_options.open_archive_of(options))
        filler = _filler(options, archive, held)
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
        _tell_fill(options, filler.counts, time.monotonic() - started)
    return common.INTERRUPTED if stopping.interrupted else common.DONE


def run_backfill(options: argparse.Namespace) -> int:
    """Run the backfill, and show its progress."""
    logs.set_up("text", "info")
    with StopSignals() as stopping, ExitStack() as held:
        archive = held.enter_context(archive_options.open_archive_of(options))
        source = options.from_version or archive.record(options.space).default
        target = options.to_version or "of its encoder"
        on = f"{options.space} version {target} from version {source or 'none'}"
        with auditing.audited(options, "backfill", on) as ending:
            is_done = _backfill(options, archive, held, stopping.event)
            if not is_done:
                ending.result = "failed: stopped before all keys were filled"
    if is_done:
        return common.DONE
    return common.INTERRUPTED if stopping.interrupted else common.FAILED


def _answer_metrics(options: argparse.Namespace, archive: Archive, held: ExitStack) -> None:
    """Serve the same archive metrics as a server, if the options ask for it."""
    from headrace.frontends.archive.metrics import ArchiveMetrics, Depths  # noqa: PLC0415 - only if requested

    def made() -> ArchiveMetrics:
        depths = Depths(archive.queue)
        held.callback(depths.close)
        return ArchiveMetrics(archive, depths)

    held.enter_context(metrics(options, made))


def _totals(counts: Mapping[str, FillCounts]) -> dict[str, int]:
    """Return the totals over all spaces."""
    return {
        "filled": sum(one.filled for one in counts.values()),
        "there": sum(one.there for one in counts.values()),
        "dead": sum(one.dead for one in counts.values()),
    }


def _told(counts: Mapping[str, FillCounts], seconds: float, waiting: int) -> str:
    total = _totals(counts)
    pace = total["filled"] / max(seconds, 1e-9)
    dead = f", {total['dead']:,} dead letters" if total["dead"] else ""
    return f"{total['filled']:,} filled, {pace:,.0f}/s, {waiting:,} wait{dead}"


def _tell_fill(options: argparse.Namespace, counts: Mapping[str, FillCounts], seconds: float) -> None:
    total = _totals(counts)
    if options.json:
        common.print_json({**total, "seconds": round(seconds, 3)})
    else:
        print(
            f"filled {counted(total['filled'], 'key')} in {seconds:,.1f} s; already stored: "
            f"{total['there']:,}; dead letters: {total['dead']:,}"
        )


def _backfill(options: argparse.Namespace, archive: Archive, held: ExitStack, stop: threading.Event) -> bool:
    """Fill until the backfill is complete or stopped, and print the result.

    Returns:
        Whether the backfill is complete.
    """
    from headrace.archive.filling.backfill import Backfill  # noqa: PLC0415 - not needed to list the verbs

    default = archive.record(options.space).default
    made = 0 if options.no_fill else _start_filler(options, archive, held)
    newest = max((one.number for one in archive.record(options.space).versions), default=0)
    target = options.to_version or made or newest
    source = options.from_version or default
    if not (source and target):
        raise Unavailable(
            f"{options.space}: no version is known yet; the store has not answered, or is empty"
        )
    if source == target and not (options.from_version or options.to_version):
        _tell_nothing(options, target)
        return True
    backfill = Backfill(archive, options.space, source, target)
    progress = _Progress(backfill)
    is_done = backfill.run(progress, stop, options.rate or 0.0)
    progress.line.clear()
    if is_done and not options.keep_default:
        backfill.make_default()
    _tell_backfill(options, backfill, (source, target), is_done=is_done)
    return is_done


def _start_filler(options: argparse.Namespace, archive: Archive, held: ExitStack) -> int:
    """Start a Filler, and return the version of the backfill's space that it makes; 0 if it makes none."""
    filler = _filler(options, archive, held, options.space)
    filler.start()
    held.callback(filler.stop)
    made = filler.versions.get(options.space, 0)
    if not made and archive.config.spaces[options.space].embedder:
        raise Unavailable(f"{options.space}: the store does not record which version its encoder makes")
    return made


class _Progress:
    """A progress bar with the rate and the remaining time."""

    def __init__(self, backfill: Backfill) -> None:
        self.line = Line(sys.stderr)
        self.line.show("counting keys")
        self._total = max(1, backfill.count())
        self._started, self._before = time.monotonic(), backfill.position.keys

    def __call__(self, done: int) -> None:
        if not self.line.due:
            return
        pace = (done - self._before) / max(time.monotonic() - self._started, 1e-9)
        share = min(1.0, done / self._total)
        left = f"{(self._total - done) / pace:,.0f} s left" if pace else "waiting for the first keys"
        bar = "#" * round(_BAR * share)
        self.line.show(
            f"[{bar:<{_BAR}}] {share:4.0%}  {done:,} of {self._total:,} keys, {pace:,.0f}/s, {left}"
        )


def _tell_nothing(options: argparse.Namespace, version: int) -> None:
    """Print that no backfill is needed: the encoder's version is already the default."""
    if options.json:
        found = {"space": options.space, "from_version": version, "to_version": version, "keys": 0, "dead": 0}
        common.print_json({**found, "is_done": True, "is_default": True})
        return
    print(f"{options.space}: version {version} is the default, and its encoder is current; nothing to fill")


def _tell_backfill(
    options: argparse.Namespace, backfill: Backfill, versions: tuple[int, int], *, is_done: bool
) -> None:
    source, target = versions
    is_default = is_done and not options.keep_default
    if options.json:
        common.print_json(
            {
                "space": options.space,
                "from_version": source,
                "to_version": target,
                "keys": backfill.position.keys,
                "dead": backfill.failed,
                "is_done": is_done,
                "is_default": is_default,
            }
        )
        return
    dead = f"; {backfill.failed:,} became dead letters" if backfill.failed else ""
    end = f"version {target} answers now" if is_default else f"version {source} still answers"
    goes_on = "" if is_done else "; run the same command again to continue"
    are = "is" if backfill.position.keys == 1 else "are"
    keys = f"{counted(backfill.position.keys, 'key')} of version {source} {are} in {target}"
    print(f"{options.space}: {keys}{dead}; {end}{goes_on}")


def _filler(options: argparse.Namespace, archive: Archive, held: ExitStack, needed: str = "") -> Filler:
    """Return a Filler of all spaces, as the queue may hold keys of any; the caller starts it.

    Args:
        options: The verb's options.
        archive: The archive.
        held: Closes the embedders.
        needed: A space whose embedder must be open; "" for none.
    """
    from headrace.archive.filling.filler import Filler  # noqa: PLC0415 - not needed to list the verbs

    embedders = _open_embedders(options, archive, held, needed)
    return Filler(archive, embedders, threads=options.threads, batch=options.batch)


def _open_embedders(
    options: argparse.Namespace, archive: Archive, held: ExitStack, needed: str
) -> dict[str, list[PooledEmbedder]]:
    """Open the embedders of an archive's spaces; a remote one that is down is opened later.

    Args:
        options: The verb's options.
        archive: The archive whose settings name them.
        held: Closes the embedders.
        needed: A space whose embedder must be open; "" for none.

    Returns:
        The embedders by space; spaces without one are left out.

    Raises:
        ConfigError: An embedder cannot be opened with these settings, or there is none.
        LoadError: A model cannot be loaded.
        Unavailable: The needed embedder does not answer.
    """
    from headrace.archive.operations.open_archive import open_pooled_embedders, pooled_embedders_of  # noqa: PLC0415 - not needed to list the verbs

    config = archive.config
    known = pooled_embedders_of(config, archive_options.base_of(options))
    for pooled in known.values():
        held.callback(pooled.close)
    by_space = {
        name: [known[settings.embedder]] for name, settings in config.spaces.items() if settings.embedder
    }
    if not by_space:
        raise ConfigError(_no_embedder(archive, needed))
    for pooled in by_space.get(needed, ()):
        pooled.lend(None)
    open_pooled_embedders(config, known.values())
    return by_space


def _no_embedder(archive: Archive, space: str) -> str:
    """Return the error message for an archive in which nothing can be embedded, with the fix."""
    tables = [name for name, one in archive.config.spaces.items() if one.is_table]
    if space in tables or (not space and len(tables) == len(archive.config.spaces)):
        what = f"{space!r} is a feature table" if space else "the archive has feature tables only"
        return f"{what}; feature tables are not embedded: headrace archive load fills them from files"
    which = f"the space {space!r} has" if space else "the spaces have"
    return (
        f'{which} no embedder; set one, as in embedder = "minilm", or store your own vectors with headrace '
        "archive put"
    )
