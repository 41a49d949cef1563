"""``headrace archive forget SPACE KEY…``: remove keys with everything that was kept of them."""

from __future__ import annotations

import argparse

from headrace.cli.archiving import removing

_SAID = {
    "name": "forget",
    "help": "remove keys with everything that was kept of them",
    "description": "Remove keys from all versions of a space with what they were before, from the queue and "
    "from the dead letters. Who looks one up again has it embedded anew, where the space has an embedder; "
    "elsewhere, as in a feature table, it is missing until it is stored again. Other processes may "
    "answer it from memory for a second more (cache.poll_seconds).",
    "examples": 'examples:\n  headrace archive forget titles "The Matrix"\n'
    "  headrace archive forget users 4711 4712 --json",
    "failure": "the store or the queue does not answer; run it again",
}


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    removing.add(words, _SAID, "forgot", lambda archive, options: archive.forget(options.space, options.keys))
