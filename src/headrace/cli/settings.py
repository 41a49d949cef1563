"""Settings of a verb from three places, by one mechanism: options, variables, and keys of a TOML file.

    --poll-seconds 5      HEADRACE_SERVE_POLL_SECONDS=5      poll_seconds = 5

Options override variables, variables override the file that ``--config`` names, and the file overrides the
defaults. A verb only declares its options to argparse. The names of variables and keys follow from the verb's
words and the option's ``dest``. All values pass through the option's type and choices, wherever they come
from.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import ConfigError
from headrace.cli.common import Parser
from headrace.config import Table
from headrace.config.checks import one_of, wrong
from headrace.config.toml_reader import read_table

_NOT_IN_FILES = ("config", "json")  # they name the file and the output format, per call
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_NEAR = 0.85


class Settings:
    """A verb's settings.

    Attributes:
        actions: The argparse action of each setting, by key.
        parser: The verb's parser.
    """

    def __init__(self, parser: argparse.ArgumentParser, own_keys: Collection[str] = ()) -> None:
        """Take over a verb's options; from then on argparse returns only given options, without defaults.

        Args:
            parser: The verb's parser, with all its options.
            own_keys: Keys of its file that the verb reads itself.
        """
        self.actions = {action.dest: action for action in _options(parser)}
        self.parser, self._own_keys = parser, frozenset(own_keys)
        self._defaults = {key: action.default for key, action in self.actions.items()}
        self._required = [key for key, action in self.actions.items() if action.required]
        if isinstance(parser, Parser):
            parser.wanted = [self.actions[key] for key in self._required]
        for key, action in self.actions.items():
            told = (action.help or "").replace("%(default)s", str(action.default))
            if action.required:
                told += " (required)"
            elif action.nargs != 0 and not action.default and "default" not in told:
                told += " (default none)"
            action.help = f"{told} [{self.variable(key)}]"
            action.default, action.required = argparse.SUPPRESS, False
            if action.nargs == 0:
                _add_opposite(parser, action)

    def variable(self, key: str) -> str:
        """Return the name of a setting's environment variable."""
        words = [*self.parser.prog.split(), *key.split(".")]
        return "_".join(words).replace("-", "_").upper()

    def complete(self, given: argparse.Namespace, environment: Mapping[str, str]) -> argparse.Namespace:
        """Complete the given options with values from variables, the file and the defaults.

        Args:
            given: The options that argparse found.
            environment: The process's environment variables.

        Returns:
            All settings; ``origins``, the origins of all values that are not defaults; and ``own_settings``,
            the part of the file that the verb reads itself.

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
        """Yield unknown variables that look like settings of this verb, each with a suggestion."""
        known = {self.variable(key): key for key in self.actions}
        short = {f"HEADRACE_{key.upper()}": name for name, key in known.items()}
        start = self.variable("")
        for name in sorted(environment):
            near = difflib.get_close_matches(name, known, 1, _NEAR) if name.startswith(start) else []
            meant = short.get(name) or next(iter(near), name)
            if name not in known and meant != name:
                yield name, f"{name} is not a setting of {self.parser.prog}; did you mean {meant}?"

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
    """Return all settings of the verb that a command line names.

    Args:
        parser: The parser of all verbs; those with settings have them as their default ``settings``.
        words: The command line without the program; the process's own if None.
        environment: The process's environment variables.

    Raises:
        ConfigError: A value is wrong; the message begins with its origin.
    """
    words = sys.argv[1:] if words is None else words
    try:
        given, unknown = parser.parse_known_args(words)
    except ConfigError as error:  # raised by an option's type, which knows the name without dashes
        option = f"--{error.message.partition(': ')[0]}"
        if not any(word.partition("=")[0] == option for word in words):
            raise
        raise ConfigError(f"--{error.message}") from error
    settings: Settings | None = given.__dict__.pop("settings", None)
    if unknown:
        (parser if settings is None else settings.parser).error(
            f"unrecognized arguments: {' '.join(unknown)}"
        )
    if settings is None:  # a command that needs a subcommand
        return given
    found: argparse.Namespace = settings.complete(given, environment)
    found.doubts = dict(settings.doubts(environment))
    return found


def blamed(message: str, origins: Mapping[str, str]) -> str:
    """Return an error's message with the option, variable or file key that the wrong setting came from.

    Args:
        message: An error message, such as ``http_port: expected …`` or ``model: factors: expected …``.
        origins: The origins of settings, by key.
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
    """Add the switch's opposite, such as ``--no-admin``, to override a file or a variable."""
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
        expected = action.metavar or f"one of {', '.join(map(str, action.choices or ()))}"
        raise wrong(origin, f"{expected} (see {_name(action)})", value) from None
    if action.choices is not None and found not in action.choices:
        one_of(origin, found, tuple(action.choices))
    return found
