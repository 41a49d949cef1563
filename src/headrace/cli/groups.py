"""Commands that want one more word, ``headrace`` and ``headrace stream``, and what they say without it."""

from __future__ import annotations

import argparse
import sys

from headrace.cli.verbs import WRONG


def add_words(
    parser: argparse.ArgumentParser, title: str, metavar: str
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """Let a command take one of several words; alone it prints its help, and ends as wrong usage does.

    Args:
        parser: The command.
        title: What the words are called in its help.
        metavar: What stands for one of them.
    """

    def run(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return WRONG

    parser.set_defaults(run=run)
    return parser.add_subparsers(title=title, metavar=metavar)
