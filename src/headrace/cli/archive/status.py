"""``headrace archive status``: show whether the archive pays off, and what is wrong with it."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from headrace.base.terminal import counted, table
from headrace.cli import common
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.operations.status import SpaceStatus, Status
    from headrace.storage.queues.queue import Queue
    from headrace.storage.stores.store import Store

_EXAMPLES = """examples:
  headrace archive status
  headrace archive status --json | jq .spaces

Rates cover the last 60 to 70 s (the output says which) of all processes together, including ended ones. An
archive pays if keys repeat (many hits), if a vector is still useful when it arrives (short delay), and if
there are few new keys. Warnings about shares of keys need 1,000 keys, looked up over half a minute. If the
store or the queue does not answer, the rest is shown."""

_HEAD = (
    "space",
    "version",
    "keys/s",
    "hits",
    "in memory",
    "OOV",
    "new",
    "new/s",
    "filled/s",
    "delay",
    "processes",
    "fillers",
)


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="status",
            help="show hits, new keys, delays and the queue",
            description="Show the state of the spaces: the shares of keys that have a vector, that are new, "
            "and that are answered out of vocabulary (OOV), how long vectors take, how many keys are "
            "queued, and which of the conditions under which an archive pays are not met.",
            examples=_EXAMPLES,
            failure="the store or the queue does not answer",
            run=run,
        ),
    )
    archive_options.add_archive(parser)


def run(options: argparse.Namespace) -> int:
    """Print a table and warnings; unanswered parts are reported last, with exit code 1."""
    from headrace.archive.operations.status import look  # noqa: PLC0415 - not needed to list the verbs
    from headrace.storage.opening import open_queue, open_store  # noqa: PLC0415

    config = archive_options.settings_of(options)
    with ExitStack() as held:

        def store() -> Store:
            made = open_store(config.store)
            held.callback(made.close)
            return made

        def queue() -> Queue:
            made = open_queue(config.queue)
            held.callback(made.close)
            return made

        status = look(config, store, queue)
    if options.json:
        common.print_json(msgspec.to_builtins(status))
    else:
        _show(status)
    for one in status.unanswered:
        print(f"headrace: {one.part}: {one.reason}", file=sys.stderr)
    return common.FAILED if status.unanswered else common.DONE


def _show(status: Status) -> None:
    if any(one.part == "store" for one in status.unanswered):
        print(f"spaces: {', '.join(space.space for space in status.spaces)}; their state is not known")
    else:
        print(table([_HEAD, *(_row(one) for one in status.spaces)], right=range(2, len(_HEAD))))
        print(f"rates: of the last {status.seconds:.0f} s, all processes together")
    print(f"\n{_queue(status)}; {_letters(status)}")
    for warning in status.warnings:
        print(f"warning: {warning}")
    for space in status.spaces:
        for warning in space.warnings:
            print(f"warning: {space.space}: {warning}")


def _queue(status: Status) -> str:
    if status.queue_messages is None:
        return "queue: not known"
    wait = "waits" if status.queue_messages == 1 else "wait"
    told = f"queue: {counted(status.queue_messages, 'key')} {wait}"
    if status.queue_messages:
        told += f", the oldest for {status.queue_oldest_seconds or 0:,.1f} s"
    return f"{told}, {status.queue_held:,} of them with fillers" if status.queue_held else told


def _letters(status: Status) -> str:
    if status.dead_letters is None:
        return "dead letters: not known"
    return f"dead letters: {'more than ' if status.are_more_dead_letters else ''}{status.dead_letters:,}"


def _row(space: SpaceStatus) -> tuple[str, ...]:
    versions = str(space.version)
    if len(space.versions) > 1:
        versions += f" of {', '.join(map(str, space.versions))}"
    return (
        space.space,
        versions,
        f"{space.keys_per_second:,.1f}",
        _share(space.hit_rate),
        _share(space.cached_rate),
        _share(space.missing_rate),
        _share(space.new_rate),
        f"{space.new_per_second:,.1f}",
        f"{space.filled_per_second:,.1f}",
        "–" if space.late_seconds is None else f"{space.late_seconds:,.1f} s",
        str(space.processes),
        str(space.fillers),
    )


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
