"""Decide which old versions to delete, and delete them. Versions that an operator has named are kept.

An operator names a version by pin, hold, label or number. The trainer deletes old versions, and the server
serves those that its settings name. A model's own settings and control record lie beside its versions, where
both find them. A server's ``--config FILE`` counts only if its path is given.

Versions are renamed to hidden names before they are deleted, so that no reader sees a partial version.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
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
from headrace.versions.layout import version_directories
from headrace.versions.manifest import sweep_drafts
from headrace.versions.pins_and_holds import read_control

_log = logging.getLogger(__name__)


def read_named_versions(model_directory: Path, server_configs: Iterable[Path] = ()) -> frozenset[int]:
    """Return the versions of a model that must be kept, because an operator has named them.

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


_DELETING = ".deleting-"


def versions_to_delete(versions: Mapping[int, int | None], keep: int, named: Iterable[int]) -> list[int]:
    """Return the versions to delete.

    Args:
        versions: All versions, each with the version that it is a patch of, or None.
        keep: How many of the newest to keep; 0 for all.
        named: Versions to keep regardless of their number: pinned, held, labelled or listed.

    Returns:
        The numbers of the versions that are neither among the newest, nor named, nor the base of a kept one.
    """
    if keep == 0:
        return []
    staying = {*sorted(versions)[-keep:], *named}
    staying |= {base for number in staying if (base := versions.get(number)) is not None}
    return sorted(versions.keys() - staying)


def delete_versions(model_directory: Path, numbers: Iterable[int]) -> list[int]:
    """Delete versions. A server that has mapped one keeps its pages until it unmaps them.

    Args:
        model_directory: The directory of the model's versions.
        numbers: The versions to delete.

    Returns:
        The deleted versions. Missing ones are skipped; for each failure a warning is logged.
    """
    return remove_hidden(hide_versions(model_directory, numbers))


def hide_versions(model_directory: Path, numbers: Iterable[int]) -> dict[int, Path]:
    """Rename versions to hidden names, which is quick, for ``remove_hidden`` to remove later.

    Args:
        model_directory: The directory of the model's versions.
        numbers: The versions to hide.

    Returns:
        The new path of each hidden version. Missing ones are skipped; for each failure a warning is logged.
    """
    there = version_directories(model_directory)
    hidden = {}
    for number in numbers:
        place = model_directory / f"{_DELETING}{number}-{secrets.token_hex(4)}"
        try:
            there[number].rename(place)
        except (KeyError, FileNotFoundError):
            continue  # another process was faster
        except OSError as error:
            _warn(number, error)
        else:
            hidden[number] = place
    return hidden


def remove_hidden(hidden: Mapping[int, Path]) -> list[int]:
    """Remove versions that ``hide_versions`` has hidden.

    Returns:
        The removed versions. Missing ones are skipped; for each failure a warning is logged.
    """
    gone = []
    for number, place in hidden.items():
        try:
            place.unlink() if place.is_symlink() else shutil.rmtree(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            _warn(number, error)
        else:
            gone.append(number)
    return gone


def _warn(number: int, error: OSError) -> None:
    _log.warning("version %d cannot be deleted: %s", number, error.strerror)


def sweep(model_directory: Path) -> None:
    """Remove the remains of killed processes: partly deleted versions, and abandoned drafts.

    Args:
        model_directory: The directory of the model's versions; must exist.
    """
    with os.scandir(model_directory) as entries:
        hidden = [Path(entry) for entry in entries if entry.name.startswith(_DELETING)]
    for place in hidden:
        with suppress(OSError):
            place.unlink() if place.is_symlink() else shutil.rmtree(place, ignore_errors=True)
    sweep_drafts(model_directory)
