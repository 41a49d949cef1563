"""Commands with subcommands, such as ``headrace`` and ``headrace stream``, and their output without one."""

from __future__ import annotations

import argparse
import sys

from headrace.cli.common import WRONG


def add_words(
    parser: argparse.ArgumentParser, title: str, metavar: str
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """Let a command take one of several subcommands; without one, it prints its help and exits with 2.

    Args:
        parser: The command.
        title: Title of the subcommands in the help.
        metavar: Placeholder of a subcommand in the usage.
    """

    def run(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return WRONG

    parser.set_defaults(run=run)
    return parser.add_subparsers(title=title, metavar=metavar)
