"""``headrace archive invalidate SPACE KEY…``: remove the vectors of keys, so that they are embedded again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headrace.base.errors import InvalidRequest
from headrace.cli.archive import key_removal

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive

_SAID = {
    "name": "invalidate",
    "help": "remove the vectors of keys, so that they are embedded anew",
    "description": "Remove the vectors of keys from all versions of a space, and their dead letters, for "
    "example after the content behind a key has changed; the next lookup embeds them anew. Rows of a "
    "feature table, and vectors of a space without an embedder, cannot be recreated: there --remove is "
    "required, and the keys are missing until they are stored again. The old values are kept for training "
    "for history_seconds; headrace archive forget removes them, too. Other processes may answer the old "
    "values for another second (cache.poll_seconds).",
    "examples": "examples:\n  headrace archive invalidate photos https://images.example/7.jpg\n"
    "  headrace archive invalidate users u1 --remove",
    "failure": "the store does not answer; run it again",
}


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = key_removal.add(words, _SAID, "invalidated", _invalidate)
    parser.add_argument(
        "--remove",
        action="store_true",
        help="remove them even if nothing recreates them; they are missing then",
    )


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
