"""``headrace archive status``: does the archive pay, and is anything wrong with it?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from headrace.cli import verbs
from headrace.cli.archiving import opened
from headrace.terminal import table

if TYPE_CHECKING:
    from headrace.archive.status import SpaceStatus, Status

_EXAMPLES = """examples:
  headrace archive status
  headrace archive status --json | jq .spaces

Rates are of the last minute, of all processes that look up or fill. An archive pays where keys repeat (many
hits), where a vector is still worth having when it comes (little delay), and where new keys are few."""

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
    """Print a table, and warnings below it."""
    from headrace.archive.status import look  # noqa: PLC0415 - not for the list of verbs

    with opened.open_archive_of(options) as archive:
        status = look(archive)
    if options.json:
        verbs.print_json(msgspec.to_builtins(status))
        return verbs.DONE
    print(table([_HEAD, *(_row(one) for one in status.spaces)], right=range(2, len(_HEAD))))
    print(_queue(status))
    for warning in status.warnings:
        print(f"warning: {warning}")
    for space in status.spaces:
        for warning in space.warnings:
            print(f"warning: {space.space}: {warning}")
    return verbs.DONE


def _queue(status: Status) -> str:
    oldest = f", the oldest for {status.queue_oldest_seconds:,.1f} s" if status.queue_messages else ""
    return f"\nqueue: {status.queue_messages:,} keys wait{oldest}; dead letters: {status.dead_letters:,}"


def _row(space: SpaceStatus) -> tuple[str, ...]:
    versions = str(space.version)
    if len(space.versions) > 1:
        versions += f" of {', '.join(map(str, space.versions))}"
    return (
        space.space,
        versions,
        f"{space.keys_per_second:,.0f}",
        _share(space.hit_rate),
        _share(space.cached_rate),
        _share(space.missing_rate),
        _share(space.new_rate),
        f"{space.new_per_second:,.1f}",
        f"{space.filled_per_second:,.1f}",
        "–" if space.late_seconds is None else f"{space.late_seconds:,.1f} s",
        str(space.processes),
    )


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
