"""``headrace archive backfill SPACE``: fill a new space version with the keys of an older one."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.base import logs
from headrace.base.errors import Unavailable
from headrace.base.stop_signals import StopSignals
from headrace.base.terminal import Line, counted
from headrace.cli import auditing, common, number_types
from headrace.cli.archive import archive_options
from headrace.cli.archive.fill import add_threads

if TYPE_CHECKING:
    from headrace.archive.filling.backfill import Backfill
    from headrace.archive.lookup.archive import Archive

_EXAMPLES = """examples:
  headrace archive backfill titles                   fill the current encoder's version, then answer from it
  headrace archive backfill titles --rate 500        at most 500 keys per second
  headrace archive backfill titles --from-version 1 --to-version 2 --keep-default

A backfill continues where the last one was stopped or killed. Both versions answer meanwhile; lookups that
name no version use the new one once it is full."""

_BAR = 30


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="backfill",
            help="fill a new space version with the keys of an older one",
            description="Embed all keys of a space's default version with the space's current encoder, and "
            "then make the encoder's version the default. Running fillers help; this process fills, too.",
            examples=_EXAMPLES,
            failure="the store or the queue does not answer, or another process runs the same backfill",
            run=run,
        ),
    )
    archive_options.add_space(parser)
    archive_options.add_archive(parser)
    auditing.add_option(parser)
    add_threads(parser)
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


def _add_version(parser: argparse.ArgumentParser, name: str, help_: str) -> None:
    whole = number_types.whole(name[2:], least=1, most=2**31)
    parser.add_argument(name, metavar="N", type=whole, help=help_)


def run(options: argparse.Namespace) -> int:
    """Run the backfill, and show its progress."""
    logs.set_up("text", "info")
    with StopSignals() as stopping, ExitStack() as held:
        archive = held.enter_context(archive_options.open_archive_of(options))
        source = options.from_version or archive.record(options.space).default
        target = options.to_version or "of its encoder"
        on = f"{options.space} version {target} from version {source or 'none'}"
        with auditing.audited(options, "backfill", on) as ending:
            is_done = _fill(options, archive, held, stopping.event)
            if not is_done:
                ending.result = "failed: stopped before all keys were filled"
    if is_done:
        return common.DONE
    return common.INTERRUPTED if stopping.interrupted else common.FAILED


def _fill(options: argparse.Namespace, archive: Archive, held: ExitStack, stop: threading.Event) -> bool:
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
        _nothing(options, target)
        return True
    backfill = Backfill(archive, options.space, source, target)
    progress = _Progress(backfill)
    is_done = backfill.run(progress, stop, options.rate or 0.0)
    progress.line.clear()
    if is_done and not options.keep_default:
        backfill.make_default()
    _finish(options, backfill, (source, target), is_done=is_done)
    return is_done


def _start_filler(options: argparse.Namespace, archive: Archive, held: ExitStack) -> int:
    """Start a Filler of all spaces, as the queue may hold keys of any; return the version of this space."""
    from headrace.archive.filling.filler import Filler  # noqa: PLC0415 - not needed to list the verbs

    embedders = archive_options.open_embedders(options, archive, held, options.space)
    filler = Filler(archive, embedders, threads=options.threads, batch=options.batch)
    filler.start()
    held.callback(filler.stop)
    made = filler.versions.get(options.space, 0)
    if not made and options.space in embedders:
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


def _nothing(options: argparse.Namespace, version: int) -> None:
    """Print that no backfill is needed: the encoder's version is already the default."""
    if options.json:
        found = {"space": options.space, "from_version": version, "to_version": version, "keys": 0, "dead": 0}
        common.print_json({**found, "is_done": True, "is_default": True})
        return
    print(f"{options.space}: version {version} is the default, and its encoder is current; nothing to fill")


def _finish(
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
