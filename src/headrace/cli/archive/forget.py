"""``headrace archive forget SPACE KEY…``: remove keys with all data stored for them."""

from __future__ import annotations

import argparse

from headrace.cli.archive import key_removal

_SAID = {
    "name": "forget",
    "help": "remove keys and everything stored for them",
    "description": "Remove keys and their history from all versions of a space, from the queue and from the "
    "dead letters. The next lookup of such a key embeds it anew if the space has an embedder; otherwise, as "
    "in a feature table, the key is missing until it is stored again. Other processes may answer it from "
    "memory for another second (cache.poll_seconds).",
    "examples": 'examples:\n  headrace archive forget titles "The Matrix"\n'
    "  headrace archive forget users 4711 4712 --json",
    "failure": "the store or the queue does not answer; run it again",
}


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    key_removal.add(
        words, _SAID, "forgot", lambda archive, options: archive.forget(options.space, options.keys)
    )
