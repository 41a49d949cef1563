"""``headrace archive lookup SPACE KEY…``: look keys up; missing keys are queued, as for any caller."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.base.terminal import table
from headrace.cli import common, number_types
from headrace.cli.archive import archive_options
from headrace.config.checks import MINUTE

if TYPE_CHECKING:
    from headrace.archive.lookup.space_reader import Lookup

_SHOWN_NUMBERS, _SHOWN_COLUMNS = 4, 10


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="lookup",
            help="look up keys",
            description="Look up keys in a space or a feature table. A missing key gets the space's "
            "out-of-vocabulary vector, and is queued to be embedded; in a table, it gets the columns' "
            "defaults.",
            examples='examples:\n  headrace archive lookup titles "The Matrix" "Heat"\n'
            "  headrace archive lookup titles Heat --json\n  headrace archive lookup users u1 u2",
            failure="the store does not answer",
            run=run,
        ),
    )
    archive_options.add_space(parser)
    archive_options.add_keys(parser)
    archive_options.add_archive(parser)
    archive_options.add_version(parser)
    parser.add_argument(
        "--timeout-seconds",
        metavar="S",
        type=number_types.seconds("timeout-seconds", most=MINUTE),
        default=5.0,
        help="how long to wait for a remote store (default 5, because this process must connect first; "
        "servers wait for 1)",
    )


def run(options: argparse.Namespace) -> int:
    """Print one line per key."""
    with archive_options.open_archive_of(options) as archive:
        lookup = archive.lookup(
            options.space, options.keys, version=options.version, timeout_seconds=options.timeout_seconds
        )
    if options.json:
        common.print_json(
            {"space": options.space, "version": lookup.version, "keys": _objects(options, lookup)}
        )
    else:
        print(f"{options.space}, version {lookup.version}")
        print(table(list(_rows(options, lookup)), indent="  "))
    if not lookup.version:  # a server would still answer, with OOV vectors
        print("headrace: the store does not answer, so it is not known which keys exist", file=sys.stderr)
        return common.FAILED
    return common.DONE


def _objects(options: argparse.Namespace, lookup: Lookup) -> list[dict[str, object]]:
    found, written = lookup.found.tolist(), lookup.written.tolist()
    rows = _values(lookup)
    return [
        {
            "key": key,
            "found": found[row],
            "written_seconds": written[row] / 1000 or None,
            **({"columns": rows[row]} if rows else {"vector": lookup.vectors[row].tolist()}),
        }
        for row, key in enumerate(options.keys)
    ]


def _rows(options: argparse.Namespace, lookup: Lookup) -> list[tuple[str, str, str, str]]:
    rows, columns = [], _values(lookup)
    for row, (key, written) in enumerate(zip(options.keys, lookup.written.tolist(), strict=True)):
        if columns:
            shown = [f"{name}={value}" for name, value in columns[row].items()]
        else:
            shown = [f"{number:.4g}" for number in lookup.vectors[row].tolist()]
        most = _SHOWN_COLUMNS if columns else _SHOWN_NUMBERS
        values = " ".join(shown[:most]) + (" …" if len(shown) > most else "")
        when = f"{datetime.fromtimestamp(written / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if written else ""
        rows.append((key, "found" if written else "missing", when, values))
    return rows


def _values(lookup: Lookup) -> list[dict[str, object]]:
    """Return the rows of a feature table as values by column; empty for vectors."""
    if not lookup.columns:
        return []
    columns = {
        name: [one.decode(errors="replace") if isinstance(one, bytes) else one for one in values.tolist()]
        for name, values in lookup.values().items()
    }
    return [{name: values[row] for name, values in columns.items()} for row in range(len(lookup.written))]
