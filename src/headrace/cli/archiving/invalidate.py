"""``headrace archive invalidate SPACE KEY…``: have the vectors of keys made anew."""

from __future__ import annotations

import argparse

from headrace.cli import verbs
from headrace.cli.archiving import opened


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="invalidate",
            help="remove the vectors of keys, so that they are made anew",
            description="Remove the vectors of keys from all versions of a space, as when what a key stands "
            "for has changed; the next lookup has them embedded anew. Other processes may answer the old "
            "ones for a second more (cache.poll_seconds).",
            examples="examples:\n  headrace archive invalidate photos https://images.example/7.jpg",
            failure="the store does not answer; run it again",
            run=run,
        ),
    )
    opened.add_space(parser)
    opened.add_keys(parser)
    opened.add_archive(parser)


def run(options: argparse.Namespace) -> int:
    """Invalidate them."""
    with opened.open_archive_of(options) as archive:
        archive.invalidate(options.space, options.keys)
    opened.tell(options, "invalidated", {"space": options.space, "keys": len(options.keys)})
    return verbs.DONE
