"""Common parts of all verbs: their groups, the end of their help, their exit codes, and their JSON output.

CONTRIBUTING.md has the conventions, and ``tests/unit/cli/test_common.py`` checks all verbs against them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headrace.base.errors import ConfigError, HeadraceError, InvalidRequest, NotFound, PlaceTaken

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT
"""Exit codes of all verbs; docs/command-line.md explains them."""

UNREAD = 128 + signal.SIGPIPE
"""Exit code when the reader of a verb's output has gone, as in ``… | head``: neither error nor success."""

_WRONG = (ConfigError, InvalidRequest, NotFound)
_HELP_COLUMNS = 110


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that points to the help.

    Attributes:
        wanted: Options that must be given, if not on the command line then as a variable or in a file. The
            usage shows them as required, but argparse does not enforce that.
    """

    wanted: Sequence[argparse.Action] = ()

    def format_help(self) -> str:
        """Return the help, with the wanted options as required."""
        with self._asking():
            return super().format_help()

    def format_usage(self) -> str:
        """Return the usage, with the wanted options as required."""
        with self._asking():
            return super().format_usage()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        for action in self.wanted:
            action.required = True
        try:
            yield
        finally:
            for action in self.wanted:
                action.required = False

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, without the usage: for some verbs it is longer than a screen."""
        self.exit(WRONG, f"headrace: {message}; see {self.prog} --help\n")


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb without its options.

    Attributes:
        name: The word on the command line.
        help: One line for the list of verbs.
        description: The description in sentences.
        examples: Example command lines, and further notes, below the options.
        failure: When the verb exits with code 1.
        run: Runs the verb, and returns the exit code.
        own_keys: Keys of its TOML file that the verb reads itself, besides its options.
        own_help: Text about these keys for the help.
        other_codes: Further exit codes, for the help.
    """

    name: str
    help: str
    description: str
    examples: str
    failure: str
    run: Callable[[argparse.Namespace], int]
    own_keys: Collection[str] = ()
    own_help: str = ""
    other_codes: str = ""


def _filled(text: str) -> str:
    """Wrap a paragraph of help; names of options and files are not broken at their hyphens."""
    return textwrap.fill(text, _HELP_COLUMNS, break_on_hyphens=False)


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser], verb: Verb) -> argparse.ArgumentParser:
    """Add a verb to the command line.

    Args:
        verbs: The subparsers to add it to.
        verb: The verb.

    Returns:
        The verb's parser, to which it adds its own options.
    """
    codes = _filled(
        f"exit codes: 0 done; 1 {verb.failure}; 2 the command or a setting is wrong, or a named object does "
        f"not exist; 130 interrupted{verb.other_codes}. See docs/command-line.md."
    )
    parser = verbs.add_parser(
        verb.name,
        help=verb.help,
        description=_filled(verb.description),
        epilog=f"{verb.examples.strip()}\n\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output, and nothing else there"
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help=f"TOML file of settings: keys are names of options, with _ for -{verb.own_help}; options "
        "override it",
    )
    parser.set_defaults(run=verb.run, own_keys=verb.own_keys)
    return parser


def add_verbs(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """Let a command, such as ``headrace`` or ``headrace stream``, take one of several verbs.

    Without a verb, it prints its help and exits with 2.
    """

    def run(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return WRONG

    parser.set_defaults(run=run)
    return parser.add_subparsers(title="verbs", metavar="VERB")


def all_verbs(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all verbs below a parser; a parser with subcommands is not a verb itself."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for verb in dict.fromkeys(action.choices.values()):
            yield from all_verbs(verb)


def exit_code(error: HeadraceError) -> int:
    """Return the exit code for an error: 2 if the command must be changed, 1 if the work failed."""
    return WRONG if isinstance(error, _WRONG) and not isinstance(error, PlaceTaken) else FAILED


def names(text: str) -> tuple[str, ...]:
    """Split comma-separated names; an argparse type."""
    return tuple(name for name in text.split(",") if name)


def delimiter(text: str) -> str:
    """Return a CSV delimiter; the word ``tab`` means a tab, hard to type in a shell. An argparse type."""
    return "\t" if text in ("tab", "\\t") else text


def print_json(said: Mapping[str, object]) -> None:
    """Print a verb's JSON object on one line."""
    print(json.dumps(said, allow_nan=False))
