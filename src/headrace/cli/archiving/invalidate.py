"""``headrace archive invalidate SPACE KEY…``: have the vectors of keys made anew."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headrace.cli.archiving import removing
from headrace.errors import InvalidRequest

if TYPE_CHECKING:
    from headrace.archive.archive import Archive

_SAID = {
    "name": "invalidate",
    "help": "remove the vectors of keys, so that they are made anew",
    "description": "Remove the vectors of keys from all versions of a space, as when what a key stands "
    "for has changed, and their dead letters; the next lookup has them embedded anew. Nothing makes the "
    "rows of a feature table anew, or the vectors of a space without an embedder: there it is refused "
    "without --remove, and what is removed is missing until it is stored again. What was there before stays "
    "for training, as long as history_seconds say; headrace archive forget removes that, too. Other "
    "processes may answer the old ones for a second more (cache.poll_seconds).",
    "examples": "examples:\n  headrace archive invalidate photos https://images.example/7.jpg\n"
    "  headrace archive invalidate users u1 --remove",
    "failure": "the store does not answer; run it again",
}


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = removing.add(words, _SAID, "invalidated", _invalidate)
    parser.add_argument(
        "--remove", action="store_true", help="also where nothing makes them anew: they are missing then"
    )


def _invalidate(archive: Archive, options: argparse.Namespace) -> int:
    archive.record(options.space)  # which there is
    settings = archive.config.spaces[options.space]
    if not settings.embedder and not options.remove:
        what = "rows of a feature table" if settings.is_table else "vectors of a space without an embedder"
        way_out = "load" if settings.is_table else "put"
        raise InvalidRequest(
            f"expected a space with an embedder, got {options.space!r}: nothing makes {what} anew. "
            f"headrace archive {way_out} replaces them; --remove has them missing; headrace archive forget "
            "removes what they were, too",
            field="SPACE",
        )
    return archive.invalidate(options.space, options.keys)
