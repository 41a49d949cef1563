"""Which versions the operator has named, so that they stay: by pin, hold, label or number, wherever.

The trainer deletes old versions, the server serves those that it is told to. A model's own settings and
control record lie beside its versions, where both see them; a server's ``--config FILE`` is seen by who is
told where it is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from headrace.config import (
    MODEL_CONFIG_FILE,
    ServerConfig,
    Table,
    parse_model_config,
    read_model_config,
    read_server_config,
)
from headrace.errors import ConfigError
from headrace.versions.control import read_control


def read_named_versions(model_directory: Path, server_configs: Iterable[Path] = ()) -> frozenset[int]:
    """Read which versions of a model must stay.

    Args:
        model_directory: Where the model's versions are; it need not exist.
        server_configs: The ``--config`` files of the servers that serve it.

    Raises:
        ConfigError: It cannot be told, because a file cannot be read, is wrong, or is not about this model.
    """
    overrides = [one for file in server_configs for one in server_settings(file, model_directory)]
    try:
        settings = read_model_config(model_directory)
    except OSError as error:
        raise ConfigError(f"{MODEL_CONFIG_FILE} cannot be read: {error.strerror}") from error
    return named_versions(settings, overrides, read_control(model_directory).named_numbers())


def server_settings(file: Path, model_directory: Path) -> list[Table]:
    """Read what a server's settings say of the model in a directory.

    Args:
        file: The server's settings.
        model_directory: Where the model's versions are; it need not exist.

    Raises:
        ConfigError: The file cannot be read, is wrong, or says nothing of this model.
    """
    absolute, real = (Path(find(model_directory)) for find in (os.path.abspath, os.path.realpath))
    found = settings_of(read_server_config(file), real, (absolute.name, real.name))
    if not found:
        raise ConfigError(
            f"server-config: {file} says nothing of the model in {model_directory}; an empty "
            f"[models.{absolute.name}] in it says that this is meant"
        )
    return found


def settings_of(config: ServerConfig, directory: Path, names: Collection[str]) -> list[Table]:
    """Find what a server's settings say of one model.

    Args:
        config: The server's settings.
        directory: The model's directory, without links.
        names: What it is called where it lies in a directory of models.

    Returns:
        The sections that win over the model's own, once for each name that it is served by.
    """
    return [
        entry.overrides
        for name, entry in config.models.items()
        if (name in names if entry.path is None else Path(os.path.realpath(entry.path)) == directory)
    ]


def named_versions(settings: str, overrides: Iterable[Table], decided: Collection[int]) -> frozenset[int]:
    """Decide which versions are named.

    Args:
        settings: The content of the model's own ``headrace.toml``; "" without one.
        overrides: What each server's settings lay over it.
        decided: The numbers that its control record pins or holds.

    Returns:
        The numbers that a label, ``policy = "specific"``, the pin or a hold names, whether or not they are
        there. The model's own settings count beside what one server lays over them: others follow them.

    Raises:
        ConfigError: Settings are wrong.
    """
    policies = [parse_model_config(settings, one).versions for one in ({}, *overrides)]
    named = {number for policy in policies for number in (*policy.labels.values(), *policy.numbers)}
    return frozenset({*named, *decided})
