"""Model settings as TOML, and changes to single settings by their dotted names."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import tomli_w

from headrace.base.errors import ConfigError
from headrace.config.toml_reader import convert
from headrace.ctr.model_settings import ModelSettings


def settings_of(values: Mapping[str, object], where: str) -> ModelSettings:
    """Convert settings read from TOML.

    Args:
        values: Settings that differ from the defaults.
        where: Name of their source in errors.

    Raises:
        ConfigError: A setting is unknown or invalid.
    """
    return convert(values, ModelSettings, where)


def check_file(values: Mapping[str, object], changes: Mapping[str, object], where: str) -> None:
    """Raise an error that names the file if its settings are invalid with and without the options.

    Args:
        values: Settings of the file.
        changes: Changes by command-line options, in the form that ``changed`` takes.
        where: Name of the file in errors.

    Raises:
        ConfigError: The settings are invalid both with the changes and without them.
    """
    try:
        settings_of(changed(values, changes), where)
    except ConfigError:
        settings_of(values, where)  # raises, unless only an option is invalid


def changed(values: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return settings with some of them replaced.

    Args:
        values: The settings, as in TOML.
        changes: New values by name; ``embeddings.learning_rate`` names one within a group. A mapping changes
            only the values of its group that it names.
    """
    made = dict(values)
    for name, value in changes.items():
        group, _, inner = name.partition(".")
        if inner or isinstance(value, Mapping):
            within = made.get(group)
            more = {inner: value} if inner else dict(value) if isinstance(value, Mapping) else {}
            made[group] = changed(within if isinstance(within, Mapping) else {}, more)
        else:
            made[name] = value
    return made


def to_toml(settings: ModelSettings) -> str:
    """Return all settings as TOML, in the form that ``--config`` takes."""
    return tomli_w.dumps(msgspec.to_builtins(settings))
