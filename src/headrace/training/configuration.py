"""Settings of models as TOML, and changes of single ones by their dotted names."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import tomli_w

from headrace.config.reading import convert
from headrace.ctr.settings import ModelSettings
from headrace.errors import ConfigError


def settings_of(values: Mapping[str, object], where: str) -> ModelSettings:
    """Make settings of what a TOML file says.

    Args:
        values: The settings that differ from the defaults.
        where: What to call them in errors.

    Raises:
        ConfigError: One is unknown or wrong.
    """
    return convert(values, ModelSettings, where)


def check_file(values: Mapping[str, object], changes: Mapping[str, object], where: str) -> None:
    """Check settings of a file where those that options make of them are wrong, so that the file is named.

    Args:
        values: The file's settings.
        changes: What options change, as ``changed`` takes them.
        where: What to call the file in errors.

    Raises:
        ConfigError: With the options they are wrong, and so are the file's own.
    """
    try:
        settings_of(changed(values, changes), where)
    except ConfigError:
        settings_of(values, where)  # raises, unless it is an option that is wrong


def changed(values: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Settings with some of them replaced.

    Args:
        values: The settings, as in TOML.
        changes: New values by name; ``embeddings.learning_rate`` names one within a group.
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
    """All settings, as ``--config`` takes them."""
    return tomli_w.dumps(msgspec.to_builtins(settings))
