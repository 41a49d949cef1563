"""What the verbs that remove something of keys have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.cli import verbs
from headrace.cli.archiving import opened

if TYPE_CHECKING:
    from headrace.archive.archive import Archive

Remove = Callable[["Archive", str, Sequence[str]], None]
"""What is done with keys of a space of an archive."""


def add(
    words: argparse._SubParsersAction[argparse.ArgumentParser],
    said: dict[str, str],
    done: str,
    remove: Remove,
) -> None:
    """Add a verb to the command line that works on keys of a space.

    Args:
        words: Where verbs are.
        said: Its ``name``, ``help``, ``description``, ``examples`` and ``failure``.
        done: The verb in the past.
        remove: What it does.
    """

    def run(options: argparse.Namespace) -> int:
        with opened.open_archive_of(options) as archive:
            remove(archive, options.space, options.keys)
        opened.tell(options, done, {"space": options.space, "keys": len(options.keys)})
        return verbs.DONE

    parser = verbs.add(words, verbs.Verb(**said, run=run))
    opened.add_space(parser)
    opened.add_keys(parser)
    opened.add_archive(parser)
