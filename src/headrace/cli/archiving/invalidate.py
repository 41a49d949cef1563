"""``headrace archive invalidate SPACE KEY…``: have the vectors of keys made anew."""

from __future__ import annotations

import argparse

from headrace.cli.archiving import removing

_SAID = {
    "name": "invalidate",
    "help": "remove the vectors of keys, so that they are made anew",
    "description": "Remove the vectors of keys from all versions of a space, as when what a key stands "
    "for has changed, and their dead letters; the next lookup has them embedded anew. Other processes may "
    "answer the old ones for a second more (cache.poll_seconds).",
    "examples": "examples:\n  headrace archive invalidate photos https://images.example/7.jpg",
    "failure": "the store does not answer; run it again",
}


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    removing.add(words, _SAID, "invalidated", lambda archive, space, keys: archive.invalidate(space, keys))
