"""Find the versions that must stay because an operator has named them: by pin, hold, label or number.

The trainer deletes old versions, and the server serves those that its settings name. A model's own settings
and control record lie beside its versions, where both find them. A server's ``--config FILE`` counts only if
its path is given.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.config import (
    MODEL_CONFIG_FILE,
    ServerConfig,
    Table,
    parse_model_config,
    read_model_config,
    read_server_config,
)
from headrace.versions.pins_and_holds import read_control


def read_named_versions(model_directory: Path, server_configs: Iterable[Path] = ()) -> frozenset[int]:
    """Read which versions of a model must stay.

    Args:
        model_directory: The directory of the model's versions; it need not exist.
        server_configs: The ``--config`` files of the servers that serve the model.

    Raises:
        ConfigError: A file cannot be read, is invalid, or does not mention this model.
    """
    overrides = [one for file in server_configs for one in server_settings(file, model_directory)]
    try:
        settings = read_model_config(model_directory)
    except OSError as error:
        raise ConfigError(f"{MODEL_CONFIG_FILE} cannot be read: {error.strerror}") from error
    return named_versions(settings, overrides, read_control(model_directory).named_numbers())


def server_settings(file: Path, model_directory: Path) -> list[Table]:
    """Read the sections of a server's settings for the model in a directory.

    Args:
        file: The server's settings.
        model_directory: The directory of the model's versions; it need not exist.

    Raises:
        ConfigError: The file cannot be read, is invalid, or does not mention this model.
    """
    absolute, real = (Path(find(model_directory)) for find in (os.path.abspath, os.path.realpath))
    found = settings_of(read_server_config(file), real, (absolute.name, real.name))
    if not found:
        raise ConfigError(
            f"server-config: {file} does not mention the model in {model_directory}; if that is intended, "
            f"add an empty [models.{absolute.name}] to it"
        )
    return found


def settings_of(config: ServerConfig, directory: Path, names: Collection[str]) -> list[Table]:
    """Return the sections of a server's settings for one model.

    Args:
        config: The server's settings.
        directory: The model's directory, with links resolved.
        names: The model's names in a directory of models.

    Returns:
        The sections that override the model's own settings, one for each name that it is served under.
    """
    return [
        entry.overrides
        for name, entry in config.models.items()
        if (name in names if entry.path is None else Path(os.path.realpath(entry.path)) == directory)
    ]


def named_versions(settings: str, overrides: Iterable[Table], decided: Collection[int]) -> frozenset[int]:
    """Return the versions that are named.

    Args:
        settings: The content of the model's own ``headrace.toml``; "" without one.
        overrides: The overriding section of each server's settings.
        decided: The numbers that the control record pins or holds.

    Returns:
        The numbers named by a label, ``policy = "specific"``, the pin or a hold, whether or not they exist.
        The model's own settings count even where a server overrides them: other servers follow them.

    Raises:
        ConfigError: Settings are invalid.
    """
    policies = [parse_model_config(settings, one).versions for one in ({}, *overrides)]
    named = {number for policy in policies for number in (*policy.labels.values(), *policy.numbers)}
    return frozenset({*named, *decided})
