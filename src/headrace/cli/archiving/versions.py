"""``headrace archive versions [SPACE]``: show the spaces and their versions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.cli import verbs
from headrace.cli.archiving import opened
from headrace.terminal import counted, table

if TYPE_CHECKING:
    from headrace.archive.archive import Archive
    from headrace.archive.catalog import SpaceRecord

_HEAD = ("space", "version", "", "embedder", "numbers", "dtype", "made", "")


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="versions",
            help="show the versions of the spaces",
            description="Show the versions of all spaces and feature tables, or of one: what made them, how "
            "long their vectors are, which columns they have, and which one bare lookups are answered from.",
            examples="examples:\n  headrace archive versions\n  headrace archive versions titles --json",
            failure="the store does not answer",
            run=run,
        ),
    )
    parser.add_argument("space", metavar="SPACE", nargs="?", help="a space; all if left out")
    opened.add_archive(parser)


def run(options: argparse.Namespace) -> int:
    """Print a line a version."""
    with opened.open_archive_of(options) as archive:
        spaces = [options.space] if options.space is not None else list(archive.config.spaces)
        records = {space: stored_record(archive, space) for space in spaces}
    if options.json:
        verbs.print_json({"spaces": [described_space(space, record) for space, record in records.items()]})
    else:
        print(listed(records))
    return verbs.DONE


def stored_record(archive: Archive, space: str) -> SpaceRecord:
    """What the store has of a space: what this process has seen of it may be nothing.

    Raises:
        NotFound: There is no such space.
        Unavailable: The store does not answer.
    """
    archive.record(space)  # says which spaces there are
    return archive.catalog.read(space)


def listed(records: Mapping[str, SpaceRecord]) -> str:
    """A table of the versions of spaces."""
    rows = [row for space, record in records.items() for row in _rows(space, record)]
    return table([_HEAD, *rows], right=(1, 4))


def described_space(space: str, record: SpaceRecord) -> dict[str, object]:
    """A space with its versions, as JSON has it."""
    from headrace.archive.columns import described  # noqa: PLC0415 - not for the list of verbs

    return {
        "space": space,
        "default": record.default or None,
        "versions": [
            {
                "version": one.number,
                "embedder": one.embedder or None,
                "fingerprint": one.fingerprint or None,
                "dimension": one.dimension,
                "dtype": one.dtype,
                "created": _when(one.created),
                "is_full": one.is_full,
                "columns": described(one.columns),
            }
            for one in record.versions
        ],
    }


def _rows(space: str, record: SpaceRecord) -> list[tuple[str, ...]]:
    if not record.versions:
        return [(space, "", "", "", "", "", "", "no version yet")]
    return [
        (
            space,
            str(one.number),
            "default" if one.number == record.default else "",
            one.embedder or ("(load)" if one.columns else "(put)"),
            counted(len(one.columns), "column") if one.columns else str(one.dimension),
            one.dtype,
            _when(one.created),
            "" if one.is_full else "not full yet",
        )
        for one in record.versions
    ]


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
