"""Settings of models as TOML, and changes of single ones by their dotted names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.ctr.settings import ModelSettings
from headrace.errors import ConfigError


def read_toml(file: Path, option: str) -> dict[str, object]:
    """Read a TOML file.

    Args:
        file: The file.
        option: The option that named it, for errors.

    Raises:
        ConfigError: It cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{option}: {file} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{option}: {file} is not TOML: {error}") from error


def settings_of(values: Mapping[str, object], where: str) -> ModelSettings:
    """Make settings of what a TOML file says.

    Args:
        values: The settings that differ from the defaults.
        where: What to call them in errors.

    Raises:
        ConfigError: One is unknown or wrong.
    """
    try:
        return msgspec.convert(values, ModelSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error


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
    plain: dict[str, object] = msgspec.to_builtins(settings)
    lines = [f"{name} = {_written(value)}" for name, value in plain.items() if not isinstance(value, dict)]
    for group, values in plain.items():
        if isinstance(values, dict):
            lines += ["", f"[{group}]", *(f"{name} = {_written(value)}" for name, value in values.items())]
    return "\n".join(lines) + "\n"


def _written(value: object) -> str:
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()  # JSON's escapes are TOML's, too
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_written(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_written(one) for one in value) + "]"
    return repr(value).lower() if isinstance(value, bool) else repr(value)
