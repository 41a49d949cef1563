"""Which of three a directory is, where a verb wants another: one of models, a model's, or a version's."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import ConfigError, HeadraceError
from headrace.versions.layout import MANIFEST_FILE, holds_versions, model_directories, version_number

_TOLD = 5


def expect_models(directory: Path) -> None:
    """Refuse the directory of one model, or of a version, where one that holds models is wanted.

    Raises:
        ConfigError: It is none, and the message says which was meant.
    """
    expect_no_version(directory)
    if holds_versions(directory) and not model_directories(directory):
        name, above = _place(directory)
        raise ConfigError(
            f"DIR: {directory} is the directory of one model, {name}; the directory of models is {above}"
        )


def expect_one_model(directory: Path) -> None:
    """Refuse a directory of models where a model, or one of its versions, is wanted.

    Raises:
        ConfigError: It is one, and the message names the models in it.
    """
    models = model_directories(directory)
    if models:
        told = ", ".join(str(directory / name) for name in models[:_TOLD])
        more = f" and {len(models) - _TOLD} more" if len(models) > _TOLD else ""
        raise ConfigError(f"DIR: {directory} is a directory of models; name one of them: {told}{more}")


def expect_no_version(directory: Path) -> None:
    """Refuse the directory of a version where one that holds versions, or models, is wanted.

    Raises:
        ConfigError: It is one, and the message says which was meant.
    """
    number, above = _place(directory)
    if version_number(number) is None or holds_versions(directory) or not _holds_model(directory):
        return  # mostly told by the name: nothing else is read then
    if not model_directories(directory):
        name, models = _place(above)
        raise ConfigError(
            f"DIR: {directory} is version {number} of one model, {name}; the directory of models is {models}"
        )


def _place(directory: Path) -> tuple[str, Path]:
    """Its name, and the directory that it lies in, as relative as it was given."""
    if directory.name in ("", ".."):
        directory = directory.resolve()
    return directory.name, directory.parent


def _holds_model(directory: Path) -> bool:
    from headrace.runtimes.registry import find  # noqa: PLC0415 - only when used

    try:
        names = [entry.name for entry in os.scandir(directory) if entry.is_file()]
        return MANIFEST_FILE in names or bool(find(names))
    except (OSError, HeadraceError):
        return False
