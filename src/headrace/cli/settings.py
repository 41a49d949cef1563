"""Every setting of a verb in three places, by one mechanism: an option, a variable, a key of a TOML file.

    --poll-seconds 5      HEADRACE_SERVE_POLL_SECONDS=5      poll_seconds = 5

The option wins over the variable, the variable over the file that ``--config`` names, the file over the
default. A verb declares its options to argparse, and that is all: what they are called elsewhere follows from
the verb's words and the option's ``dest``, and wherever a value comes from, it goes through the option's type
and choices.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cli.verbs import Parser
from headrace.config import Table
from headrace.config.checks import one_of, wrong
from headrace.config.reading import read_table
from headrace.errors import ConfigError

_NOT_IN_FILES = ("config", "json")  # which file, and in which form the caller wants to read the answer
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_NEAR = 0.85


class Settings:
    """A verb's settings.

    Attributes:
        actions: What argparse knows of each, by key.
        parser: The verb's parser.
    """

    def __init__(self, parser: argparse.ArgumentParser, own_keys: Collection[str] = ()) -> None:
        """Take over a verb's options: from here on argparse says what was given, and nothing of defaults.

        Args:
            parser: The verb's parser, with all its options.
            own_keys: The keys of its file that the verb reads itself.
        """
        self.actions = {action.dest: action for action in _options(parser)}
        self.parser, self._own_keys = parser, frozenset(own_keys)
        self._defaults = {key: action.default for key, action in self.actions.items()}
        self._required = [key for key, action in self.actions.items() if action.required]
        if isinstance(parser, Parser):
            parser.wanted = [self.actions[key] for key in self._required]
        for key, action in self.actions.items():
            told = (action.help or "").replace("%(default)s", str(action.default))
            told += " (required)" if action.required else ""
            action.help = f"{told} [{self.variable(key)}]"
            action.default, action.required = argparse.SUPPRESS, False
            if action.nargs == 0:
                _add_opposite(parser, action)

    def variable(self, key: str) -> str:
        """The name of a setting among the environment's variables."""
        words = [*self.parser.prog.split(), *key.split(".")]
        return "_".join(words).replace("-", "_").upper()

    def complete(self, given: argparse.Namespace, environment: Mapping[str, str]) -> argparse.Namespace:
        """Put the values of variables, the file and defaults below those that were given as options.

        Args:
            given: What argparse found.
            environment: The process's variables.

        Returns:
            All settings; ``origins``, where those come from that are no defaults; and ``own_settings``, what
            the verb reads itself of its file.

        Raises:
            ConfigError: A value is wrong, or a key of the file is unknown.
        """
        origins = {key: name for key in self.actions if environment.get(name := self.variable(key))}
        values: dict[str, Any] = {
            key: self._value(key, environment[name], name) for key, name in origins.items()
        }
        config: Path | None = getattr(given, "config", values.get("config"))
        table = {} if config is None else read_table(config, f"config: {config}")
        for key, value in self._of_file(table, f"config: {config}"):
            if key not in values:
                origins[key] = f"config: {config}: {key}"
                values[key] = self._value(key, value, origins[key])
        found = {**self._defaults, **values, **vars(given)}
        missing = [_name(self.actions[key]) for key in self._required if key not in {**values, **vars(given)}]
        if missing:
            self.parser.error(f"the following arguments are required: {', '.join(missing)}")
        origins |= {key: _name(action) for key, action in self.actions.items() if key in vars(given)}
        own = {key: value for key, value in table.items() if key in self._own_keys}
        return argparse.Namespace(**found, origins=origins, own_settings=own)

    def doubts(self, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Find variables that look like settings of this verb, and are none; and what may have been meant."""
        known = {self.variable(key): key for key in self.actions}
        short = {f"HEADRACE_{key.upper()}": name for name, key in known.items()}
        start = self.variable("")
        for name in sorted(environment):
            near = difflib.get_close_matches(name, known, 1, _NEAR) if name.startswith(start) else []
            meant = short.get(name) or next(iter(near), name)
            if name not in known and meant != name:
                yield name, f"{name} is no setting of {self.parser.prog}; did you mean {meant}?"

    def _of_file(self, table: Table, where: str) -> Iterator[tuple[str, object]]:
        known = {key for key in self.actions if key not in _NOT_IN_FILES}
        for key, value in table.items():
            if key in self._own_keys:
                continue
            if key not in known:
                near = difflib.get_close_matches(key, known | self._own_keys, 1)
                names = sorted(known | self._own_keys)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
                raise ConfigError(f"{where}: {key}: unknown setting; {hint}")
            yield key, value

    def _value(self, key: str, value: object, origin: str) -> object:
        action = self.actions[key]
        if action.nargs == 0:
            return _switched(value, origin)
        if not isinstance(action, argparse._AppendAction):
            return _converted(action, value, origin)
        parts = value if isinstance(value, list) else str(value).split(",")
        found = [_converted(action, part, origin) for part in parts]
        if isinstance(action, argparse._ExtendAction):
            return [one for several in found for one in several]
        return found


def parse(
    parser: argparse.ArgumentParser,
    words: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> argparse.Namespace:
    """Find all settings of the verb that a command line names.

    Args:
        parser: All verbs; those with settings have them as their default ``settings``.
        words: The command line, without the program; that of the process if left out.
        environment: The process's variables.

    Raises:
        ConfigError: A value is wrong; the message begins with where it comes from.
    """
    words = sys.argv[1:] if words is None else words
    try:
        given, unknown = parser.parse_known_args(words)
    except ConfigError as error:  # of an option's type, which knows its name without dashes
        option = f"--{error.message.partition(': ')[0]}"
        if not any(word.partition("=")[0] == option for word in words):
            raise
        raise ConfigError(f"--{error.message}") from error
    settings: Settings | None = given.__dict__.pop("settings", None)
    if unknown:
        (parser if settings is None else settings.parser).error(
            f"unrecognized arguments: {' '.join(unknown)}"
        )
    if settings is None:  # a word that wants another one
        return given
    found: argparse.Namespace = settings.complete(given, environment)
    found.doubts = dict(settings.doubts(environment))
    return found


def blamed(message: str, origins: Mapping[str, str]) -> str:
    """An error's message with the name of the option, the variable, or the file that a wrong setting is of.

    Args:
        message: What is wrong, such as ``http_port: expected …`` or ``model: factors: expected …``.
        origins: Where settings come from, by key.
    """
    parts = message.split(": ")
    for place in (1, 0):
        if place < len(parts) - 1:
            origin = origins.get(parts[place].lstrip("-").replace("-", "_"))
            if origin is not None:
                return ": ".join([origin, *parts[place + 1 :]])
    return message


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    none = argparse._HelpAction | argparse._VersionAction  # not by name: a space's --version is a setting
    return [one for one in parser._actions if one.option_strings and not isinstance(one, none)]


def _name(action: argparse.Action) -> str:
    return action.option_strings[-1]


def _add_opposite(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    """Let a switch that a file or a variable has turned on be turned off: ``--no-admin``."""
    parser.add_argument(
        f"--no-{_name(action)[2:]}",
        dest=action.dest,
        action="store_false",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def _switched(value: object, origin: str) -> bool:
    word = str(value).lower()
    if word not in _TRUE + _FALSE:
        raise wrong(origin, "true or false", value)
    return word in _TRUE


def _converted(action: argparse.Action, value: object, origin: str) -> Any:
    if isinstance(value, bool | list | dict):
        raise wrong(origin, "a text or a number", value)
    kind: Any = action.type or str
    try:
        found = kind(str(value))
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error.message.partition(': ')[2]}") from error
    except ValueError:
        raise wrong(origin, f"{action.metavar}, as of {_name(action)}", value) from None
    if action.choices is not None and found not in action.choices:
        one_of(origin, found, tuple(action.choices))
    return found
