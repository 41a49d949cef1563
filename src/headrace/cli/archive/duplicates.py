"""``headrace archive duplicates SPACE``: show groups of keys with nearly the same vector."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from headrace.base.files import saying
from headrace.base.terminal import counted, table
from headrace.cli import common, number_types
from headrace.cli.archive import archive_options, whole_space

if TYPE_CHECKING:
    from headrace.archive.operations.space_versions import Whole
    from headrace.similarity.duplicates import Duplicates, Group

_SHOWN_GROUPS = 20
_SHOWN_KEYS = 5
_JSON_KEYS = 1000
_SHEET_GROUPS = 200

_EXAMPLES = """examples:
  headrace archive duplicates titles
  headrace archive duplicates images --threshold 0.97 --sheet duplicates.html
  headrace archive duplicates titles --exact --json

A group holds the keys that similar pairs connect, directly or through others; its first key is the most
central one. docs/similarity.md explains what may be missed without --exact, and how that is measured."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="duplicates",
            help="find keys with nearly the same vector",
            description="Find keys whose vectors are nearly the same, and show them in groups, the largest "
            "first: as a table, as JSON, or images as a contact sheet.",
            examples=_EXAMPLES,
            failure="the store does not answer, or the sheet cannot be written",
            run=run,
        ),
    )
    archive_options.add_space(parser)
    _add_search(parser)
    parser.add_argument(
        "--groups",
        metavar="N",
        type=number_types.whole("groups", least=1, most=1_000_000),
        default=1000,
        help="maximum number of groups to show, the largest first (default 1000)",
    )
    parser.add_argument(
        "--sheet",
        metavar="FILE",
        type=Path,
        help="write an HTML page with the groups' images: contents that are URLs are linked, files that the "
        "embedder may read are included",
    )
    archive_options.add_archive(parser)
    archive_options.add_version(parser)
    whole_space.add_most_bytes(parser)


def _add_search(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--threshold",
        metavar="D",
        type=number_types.above_zero("threshold", most=whole_space.LARGEST_SIMILARITY),
        default=0.95,
        help="the least cosine, or with l2 the largest distance, of near-duplicates (default 0.95)",
    )
    add(
        "--metric",
        choices=("cosine", "l2"),
        default="cosine",
        help="how to compare: by the angle, or by the distance (default cosine)",
    )
    add("--exact", action="store_true", help="compare all pairs; otherwise a few may be missed")
    add(
        "--probes",
        metavar="N",
        type=number_types.whole("probes", least=1, most=1000),
        default=4,
        help="how many cells each vector is compared with; more cells find more pairs, and take longer "
        "(default 4)",
    )
    add(
        "--most-comparisons",
        metavar="N",
        type=number_types.whole("most-comparisons", least=1, most=2**62),
        default=10**12,
        help="maximum number of comparisons; a larger run is refused at once (default 1000000000000)",
    )


def run(options: argparse.Namespace) -> int:
    """Print one line per group, or one JSON object."""
    from headrace.similarity import duplicates  # noqa: PLC0415 - not needed to list the verbs

    if options.metric == "cosine" and options.threshold > 1:
        raise ConfigError(f"--threshold: expected a cosine, up to 1, got {options.threshold:g}")
    effort = duplicates.Effort(
        exact=True if options.exact else None,
        probes=options.probes,
        most_groups=options.groups,
        most_comparisons=options.most_comparisons,
    )
    with whole_space.progress_line() as progress:
        read = whole_space.read(options, progress)
        rows = whole_space.rows_of(read, options.metric)
        found = duplicates.duplicates(rows, options.threshold, effort, progress)
    if options.sheet is not None:
        _write_sheet(options, read, found)
    if options.json:
        common.print_json(_object(options, read, found))
        return common.DONE
    for line in _told(options, read, found):
        print(line)
    if found.groups:
        print(table(list(_lines(read, found)), right=(0, 1), indent="  "))
    if more := found.group_count - len(found.groups[:_SHOWN_GROUPS]):
        way = "--json" if len(found.groups) == found.group_count else f"--json --groups {found.group_count}"
        print(f"  … {more:,} more groups; {way} lists them")
    if options.sheet is not None:
        print(f"wrote {options.sheet}")
    return common.DONE


def _told(options: argparse.Namespace, read: Whole, found: Duplicates) -> Iterator[str]:
    yield f"{options.space}, version {read.version}: {counted(len(read.keys), 'key')}, {_condition(options)}"
    yield (
        f"  {counted(found.group_count, 'group')}; {counted(found.extra_rows, 'key')} beyond one of each "
        f"group, {found.equal_rows:,} of them with an equal vector; {counted(found.pair_count, 'pair')}"
    )
    if found.recall is not None and found.recall < 1:
        missed = f"{1 - found.recall:.1%} of the pairs of a sample were missed"
        yield f"  {missed}; --probes {2 * options.probes} finds more"


def _condition(options: argparse.Namespace) -> str:
    if options.metric == "cosine":
        return f"cosine {options.threshold:g} or more"
    return f"distance {options.threshold:g} or less"


def _lines(read: Whole, found: Duplicates) -> Iterator[tuple[str, str, str]]:
    yield "keys", "least", "which"
    for group in found.groups[:_SHOWN_GROUPS]:
        names = [read.keys[row] for row in group.rows[:_SHOWN_KEYS].tolist()]
        more = len(group.rows) - len(names)
        yield (
            str(len(group.rows)),
            f"{_farthest(group):.4f}",
            " · ".join(names) + (f" · and {more:,} more" if more else ""),
        )


def _farthest(group: Group) -> float:
    return float(group.similarities[-1])


def _object(options: argparse.Namespace, read: Whole, found: Duplicates) -> dict[str, object]:
    groups = [
        {
            "size": len(group.rows),
            "keys": [
                {"key": read.keys[row], "similarity": similar}
                for row, similar in zip(
                    group.rows[:_JSON_KEYS].tolist(), group.similarities[:_JSON_KEYS].tolist(), strict=True
                )
            ],
        }
        for group in found.groups
    ]
    return {
        "space": options.space,
        "version": read.version,
        "metric": options.metric,
        "threshold": options.threshold,
        "key_count": found.row_count,
        "group_count": found.group_count,
        "extra_keys": found.extra_rows,
        "equal_keys": found.equal_rows,
        "pair_count": found.pair_count,
        "recall": None if found.recall is None or math.isnan(found.recall) else found.recall,
        "groups": groups,
    }


def _write_sheet(options: argparse.Namespace, read: Whole, found: Duplicates) -> None:
    from headrace.cli.archive.contact_sheet import Tile, contact_sheet, images  # noqa: PLC0415 - as above

    groups = [
        [
            Tile(read.keys[row], similar)
            for row, similar in zip(group.rows.tolist(), group.similarities.tolist(), strict=True)
        ]
        for group in found.groups[:_SHEET_GROUPS]
    ]
    page = contact_sheet(
        groups,
        images(archive_options.settings_of(options), archive_options.base_of(options), options.space),
        title=f"Near-duplicates in {options.space}, version {read.version}",
        subtitle=(
            f"{counted(found.group_count, 'group')} among {counted(len(read.keys), 'key')}; "
            f"{_condition(options)}"
        ),
        measure="cosine" if options.metric == "cosine" else "distance",
    )
    with saying(f"--sheet: {options.sheet} cannot be written"):
        options.sheet.write_text(page, "utf-8", errors="replace")
