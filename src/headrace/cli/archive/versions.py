"""``headrace archive versions [SPACE]``: show the spaces and their versions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.base.terminal import counted, table
from headrace.cli import common
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.model.catalog import SpaceRecord

_HEAD = ("space", "version", "", "embedder", "numbers", "dtype", "made", "")


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="versions",
            help="show the versions of the spaces",
            description="Show the versions of all spaces and feature tables, or of one: what made them, the "
            "length of their vectors, their columns, and which one answers lookups that name no version.",
            examples="examples:\n  headrace archive versions\n  headrace archive versions titles --json",
            failure="the store does not answer",
            run=run,
        ),
    )
    parser.add_argument("space", metavar="SPACE", nargs="?", help="a space (default: all)")
    archive_options.add_archive(parser)


def run(options: argparse.Namespace) -> int:
    """Print one line per version."""
    with archive_options.open_archive_of(options) as archive:
        spaces = [options.space] if options.space is not None else list(archive.config.spaces)
        records = {space: stored_record(archive, space) for space in spaces}
    if options.json:
        common.print_json({"spaces": [described_space(space, record) for space, record in records.items()]})
    else:
        print(listed(records))
    return common.DONE


def stored_record(archive: Archive, space: str) -> SpaceRecord:
    """Return a space's record from the store, as this process's cached copy may be empty.

    Raises:
        NotFound: There is no such space.
        Unavailable: The store does not answer.
    """
    archive.record(space)  # raises NotFound, with the existing spaces
    return archive.catalog.read(space)


def listed(records: Mapping[str, SpaceRecord]) -> str:
    """Return a table of the versions of spaces."""
    rows = [row for space, record in records.items() for row in _rows(space, record)]
    return table([_HEAD, *rows], right=(1, 4))


def described_space(space: str, record: SpaceRecord) -> dict[str, object]:
    """Return a space with its versions as an object for JSON."""
    from headrace.archive.model.columns import described  # noqa: PLC0415 - not needed to list the verbs

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
