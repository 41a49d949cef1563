"""``headrace archive invalidate`` and ``forget``: remove the vectors of keys, or all their data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.errors import InvalidRequest
from headrace.cli import auditing, common
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive

_Remove = Callable[["Archive", argparse.Namespace], int]
"""Removes data of the keys in the options; returns the number of keys that had data."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs to the command line."""
    invalidate = _add(
        words,
        "invalidated",
        _invalidate,
        name="invalidate",
        help="remove the vectors of keys, so that they are embedded anew",
        description="Remove the vectors of keys from all versions of a space, and their dead letters, for "
        "example after the content behind a key has changed; the next lookup embeds them anew. Rows of a "
        "feature table, and vectors of a space without an embedder, cannot be recreated: there --remove is "
        "required, and the keys are missing until they are stored again. The old values are kept for "
        "training for history_seconds; headrace archive forget removes them, too. Other processes may "
        "answer the old values for another second (cache.poll_seconds).",
        examples="examples:\n  headrace archive invalidate photos https://images.example/7.jpg\n"
        "  headrace archive invalidate users u1 --remove",
        failure="the store does not answer; run it again",
    )
    invalidate.add_argument(
        "--remove",
        action="store_true",
        help="remove them even if nothing recreates them; they are missing then",
    )
    _add(
        words,
        "forgot",
        lambda archive, options: archive.forget(options.space, options.keys),
        name="forget",
        help="remove keys and everything stored for them",
        description="Remove keys and their history from all versions of a space, from the queue and from "
        "the dead letters. The next lookup of such a key embeds it anew if the space has an embedder; "
        "otherwise, as in a feature table, the key is missing until it is stored again. Other processes may "
        "answer it from memory for another second (cache.poll_seconds).",
        examples='examples:\n  headrace archive forget titles "The Matrix"\n'
        "  headrace archive forget users 4711 4712 --json",
        failure="the store or the queue does not answer; run it again",
    )


def _add(
    words: argparse._SubParsersAction[argparse.ArgumentParser], done: str, remove: _Remove, **said: str
) -> argparse.ArgumentParser:
    """Add one of the verbs.

    Args:
        words: The subparsers to add it to.
        done: The verb in the past tense.
        remove: Removes the data.
        said: Its ``name``, ``help``, ``description``, ``examples`` and ``failure``.
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

    parser = common.add(words, common.Verb(run=run, **said))
    archive_options.add_space(parser)
    archive_options.add_keys(parser)
    archive_options.add_archive(parser)
    auditing.add_option(parser)
    return parser


def _invalidate(archive: Archive, options: argparse.Namespace) -> int:
    archive.record(options.space)  # raises NotFound, with the existing spaces
    settings = archive.config.spaces[options.space]
    if not settings.embedder and not options.remove:
        what = "rows of a feature table" if settings.is_table else "vectors of a space without an embedder"
        way_out = "load" if settings.is_table else "put"
        raise InvalidRequest(
            f"expected a space with an embedder, got {options.space!r}: nothing recreates {what}. headrace "
            f"archive {way_out} replaces them; --remove leaves them missing; headrace archive forget "
            "removes their history, too",
            field="SPACE",
        )
    return archive.invalidate(options.space, options.keys)
