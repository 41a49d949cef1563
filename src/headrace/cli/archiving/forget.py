"""``headrace archive forget SPACE KEY…``: remove keys with everything that was kept of them."""

from __future__ import annotations

import argparse

from headrace.cli import verbs
from headrace.cli.archiving import opened


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="forget",
            help="remove keys with everything that was kept of them",
            description="Remove keys from all versions of a space, from the queue and from the dead letters. "
            "Whoever looks one up again has it embedded anew. Other processes may answer it from memory for "
            "a second more (cache.poll_seconds).",
            examples='examples:\n  headrace archive forget titles "The Matrix"\n'
            "  headrace archive forget users 4711 4712 --json",
            failure="the store or the queue does not answer; run it again",
            run=run,
        ),
    )
    opened.add_space(parser)
    opened.add_keys(parser)
    opened.add_archive(parser)


def run(options: argparse.Namespace) -> int:
    """Forget them."""
    with opened.open_archive_of(options) as archive:
        archive.forget(options.space, options.keys)
    opened.tell(options, "forgot", {"space": options.space, "keys": len(options.keys)})
    return verbs.DONE
