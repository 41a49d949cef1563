"""What all verbs have in common: how their help ends, the codes they end with, and how they print JSON.

The conventions are in CONTRIBUTING.md, and ``tests/unit/cli/test_conventions.py`` holds every verb to them.
"""

from __future__ import annotations

import argparse
import json
import signal
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headrace.errors import ConfigError, HeadraceError, InvalidRequest, NotFound, PlaceTaken

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT
"""The exit codes of all verbs; docs/command-line.md is the table."""

UNREAD = 128 + signal.SIGPIPE
"""Where nobody reads any more what a verb writes, as in ``… | head``: no error, and no success."""

_WRONG = (ConfigError, InvalidRequest, NotFound)
_HELP_COLUMNS = 110


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all errors are, and say where the options are listed.

    Attributes:
        wanted: Options that somebody must give, be it as a variable or in a file: argparse does not ask for
            them, but the usage shows them as such.
    """

    wanted: Sequence[argparse.Action] = ()

    def format_help(self) -> str:
        """The help."""
        with self._asking():
            return super().format_help()

    def format_usage(self) -> str:
        """Its first lines."""
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
        """End with exit code 2, without the usage: it is longer than a screen for some verbs."""
        self.exit(WRONG, f"headrace: {message}; see {self.prog} --help\n")


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb, but for its options.

    Attributes:
        name: The word.
        help: What it does, for the list of verbs.
        description: The same in sentences.
        examples: Lines to run, and what else is to be known, below the options.
        failure: When it ends with code 1.
        run: What does it; returns the exit code.
        own_keys: The keys of its TOML file that it reads itself, besides those that are options.
        own_help: What these are, for the help.
    """

    name: str
    help: str
    description: str
    examples: str
    failure: str
    run: Callable[[argparse.Namespace], int]
    own_keys: Collection[str] = ()
    own_help: str = ""


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser], verb: Verb) -> argparse.ArgumentParser:
    """Add a verb to the command line.

    Args:
        verbs: The verbs so far.
        verb: What it is.

    Returns:
        Its parser, for its own options.
    """
    codes = textwrap.fill(
        f"exit codes: 0 done; 1 {verb.failure}; 2 the command or a setting is wrong, or what it names is "
        "not there; 130 interrupted. See docs/command-line.md.",
        _HELP_COLUMNS,
    )
    parser = verbs.add_parser(
        verb.name,
        help=verb.help,
        description=textwrap.fill(verb.description, _HELP_COLUMNS),
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
        help=f"settings in TOML, by the names of options, with _ for -{verb.own_help}; options win over it",
    )
    parser.set_defaults(run=verb.run, own_keys=verb.own_keys)
    return parser


def all_verbs(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Find the parsers of all verbs below a parser; one with verbs of its own is none itself."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for verb in dict.fromkeys(action.choices.values()):
            yield from all_verbs(verb)


def exit_code(error: HeadraceError) -> int:
    """The exit code for an error: whether the command is to be changed, or was right and the work failed."""
    return WRONG if isinstance(error, _WRONG) and not isinstance(error, PlaceTaken) else FAILED


def names(text: str) -> tuple[str, ...]:
    """The names in an option's text, with commas between them; a type for argparse."""
    return tuple(name for name in text.split(",") if name)


def delimiter(text: str) -> str:
    """What separates columns of CSV, where a shell makes a tab hard to type; a type for argparse."""
    return "\t" if text in ("tab", "\\t") else text


def print_json(said: Mapping[str, object]) -> None:
    """Print a verb's one object, on one line."""
    print(json.dumps(said, allow_nan=False))
