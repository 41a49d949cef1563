"""Common parts of the verbs that remove data of keys."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.cli import auditing, common
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive

Remove = Callable[["Archive", argparse.Namespace], int]
"""Removes data of the keys in the options; returns the number of keys that had data."""


def add(
    words: argparse._SubParsersAction[argparse.ArgumentParser],
    said: dict[str, str],
    done: str,
    remove: Remove,
) -> argparse.ArgumentParser:
    """Add a verb that removes data of keys in a space to the command line.

    Args:
        words: The subparsers to add it to.
        said: Its ``name``, ``help``, ``description``, ``examples`` and ``failure``.
        done: The verb in the past tense.
        remove: Removes the data.

    Returns:
        The verb's parser, for options of its own.
    """

    def run(options: argparse.Namespace) -> int:
        with (
            archive_options.open_archive_of(options) as archive,
            auditing.audited(options, said["name"], f"{options.space}, keys: {len(set(options.keys))}"),
        ):
            found = remove(archive, options)
        keys = len(set(options.keys))
        if options.json:
            common.print_json({"space": options.space, "keys": keys, "found": found})
        else:
            which = f"{keys - found:,} of which" if found else "which"
            nothing = f", {which} had nothing stored" if found < keys else ""
            print(f"{done} {keys:,} {'key' if keys == 1 else 'keys'} in {options.space}{nothing}")
        return common.DONE

    parser = common.add(words, common.Verb(**said, run=run))
    archive_options.add_space(parser)
    archive_options.add_keys(parser)
    archive_options.add_archive(parser)
    auditing.add_option(parser)
    return parser
