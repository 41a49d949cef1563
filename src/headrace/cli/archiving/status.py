"""``headrace archive status``: does the archive pay, and is anything wrong with it?"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from headrace.cli import verbs
from headrace.cli.archiving import opened
from headrace.terminal import counted, table

if TYPE_CHECKING:
    from headrace.archive.status import SpaceStatus, Status
    from headrace.queues.queue import Queue
    from headrace.stores.store import Store

_EXAMPLES = """examples:
  headrace archive status
  headrace archive status --json | jq .spaces

Rates are of the last 60 to 70 s (the output says which) of all processes together, ended ones included. An
archive pays where keys repeat (many hits), where a vector is still worth having when it comes (little delay),
and where new keys are few. Warnings about shares of keys need 1,000 keys, looked up over half a minute. Where
the store or the queue does not answer, the rest is shown."""

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
    parser = verbs.add(
        words,
        verbs.Verb(
            name="status",
            help="show hits, new keys, delays and what waits",
            description="Show how the spaces fare: the share of keys that have a vector, that are new, and "
            "that are answered out of vocabulary (OOV), how late vectors come, what waits in the queue, and "
            "which of the assumptions under which an archive pays does not hold.",
            examples=_EXAMPLES,
            failure="the store or the queue does not answer",
            run=run,
        ),
    )
    opened.add_archive(parser)


def run(options: argparse.Namespace) -> int:
    """Print a table, and warnings below it; what did not answer is an error, after all that is known."""
    from headrace.archive.status import look  # noqa: PLC0415 - not for the list of verbs
    from headrace.queues.opening import open_queue  # noqa: PLC0415 - as above
    from headrace.stores.opening import open_store  # noqa: PLC0415 - as above

    config = opened.settings_of(options)
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
        verbs.print_json(msgspec.to_builtins(status))
    else:
        _show(status)
    for one in status.unanswered:
        print(f"headrace: {one.part}: {one.reason}", file=sys.stderr)
    return verbs.FAILED if status.unanswered else verbs.DONE


def _show(status: Status) -> None:
    if any(one.part == "store" for one in status.unanswered):
        print(f"spaces: {', '.join(space.space for space in status.spaces)}; how they fare is not known")
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
