"""Names of models in all verbs: ``DIR/NAME`` for its newest version, or ``DIR/NAME/N``.

Verbs that take several models take ``DIR[/NAME[/N]]``: all models in a directory, one model, or one version.
A numeric last part is a version, unless that directory itself contains versions or models.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from headrace.base.errors import ConfigError, HeadraceError, NotFound, listed
from headrace.base.files import is_visible, saying
from headrace.versions.layout import (
    MANIFEST_FILE,
    holds_versions,
    model_directories,
    version_directories,
    version_number,
)

DIRECTORY = "DIR"
"""Metavar of a directory of models."""

MODEL = "DIR/NAME"
"""Metavar of a model."""

VERSION = "DIR/NAME[/N]"
"""Metavar of a model or one version of it."""

NUMBERED_VERSION = "DIR/NAME/N"
"""Metavar of one version of a model, by its number."""

ANY = "DIR[/NAME[/N]]"
"""Metavar of a directory of models, one of them, or one version of it."""

_TOLD = 5
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


def find_model(path: Path, *, there: bool = True) -> tuple[Path, int | None]:
    """Find the model that ``DIR/NAME[/N]`` names.

    Args:
        path: The path from the command line.
        there: Whether a named version must exist.

    Returns:
        The model's directory, and the version's number if one was named.

    Raises:
        NotFound: There is no such directory, or no such version in it; the message lists the versions.
        FailedPrecondition: The path cannot be accessed.
        ConfigError: It is a directory of models; the message lists them.
    """
    directory, number = _split(path)
    if not is_directory(directory):
        raise NotFound(f"{VERSION}: {directory} is not a directory")
    held = model_directories(directory)
    if held:
        told = listed((directory / name for name in held), _TOLD)
        raise ConfigError(f"{VERSION}: {directory} is a directory of models; name one of them: {told}")
    if number is not None and there:
        expect_version(directory, number)
    return directory, number


def find_version(path: Path) -> Path:
    """Return the directory of the version that ``DIR/NAME[/N]`` names; the newest if it names none.

    A directory without versions is taken as a version itself, wherever it lies.

    Args:
        path: The path from the command line.

    Raises:
        NotFound: As for ``find_model``.
        FailedPrecondition: As for ``find_model``.
        ConfigError: As for ``find_model``.
    """
    directory, number = find_model(path)
    versions = _versions(directory)
    if number is None and not versions:
        return directory
    return versions[max(versions) if number is None else number]


def find_models(path: Path) -> list[tuple[Path, int | None]]:
    """Find all models that ``DIR[/NAME[/N]]`` names: their directories, and the version if one was named.

    Args:
        path: The path from the command line.

    Raises:
        NotFound: There is no such directory, or no such version in it.
        FailedPrecondition: The path cannot be accessed.
    """
    directory, number = _split(path)
    if number is None and not is_directory(directory):
        raise NotFound(f"{ANY}: {directory} is not a directory")
    if number is None and (model_directories(directory) or not holds_versions(directory)):
        with saying(f"{directory} cannot be listed"):
            return [(one, None) for one in sorted(directory.iterdir()) if one.is_dir() and one.name[0] != "."]
    if number is not None:
        expect_version(directory, number)
    return [(directory, number)]


def expect_version(model: Path, number: int) -> None:
    """Refuse the number of a version that does not exist.

    Raises:
        NotFound: It does not exist; the message lists the versions.
    """
    there = _versions(model)
    if number not in there:
        have = ", ".join(map(str, there)) or "none"
        raise NotFound(f"{VERSION}: {name_of(model)} has no version {number}; it has: {have}")


def expect_no_version(directory: Path) -> None:
    """Refuse the directory of a version where a directory of versions or models is expected.

    Raises:
        ConfigError: It is the directory of a version; the message names the directory of models.
    """
    number, above = _place(directory)
    if version_number(number) is None or holds_versions(directory) or not _holds_model(directory):
        return  # the name mostly decides this, without reading the directory
    if not model_directories(directory):
        name, models = _place(above)
        raise ConfigError(
            f"{DIRECTORY}: {directory} is version {number} of one model, {name}; "
            f"pass the directory of models instead: {models}"
        )


def is_directory(path: Path) -> bool:
    """Return whether a path leads to a directory; False for a name that is too long.

    Raises:
        FailedPrecondition: The path cannot be accessed, for lack of permission.
    """
    with saying(f"{path} cannot be accessed"):
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise


def is_model_file(path: Path) -> bool:
    """Return whether a file's name is one that a runtime recognises, such as ``model.onnx``."""
    return _is_recognised([path.name])


def name_of(model: Path) -> str:
    """Return a model's name, which is its directory's."""
    return _place(model)[0]


def _versions(model: Path) -> dict[int, Path]:
    with saying(f"{model} cannot be listed"):
        return version_directories(model)


def _split(path: Path) -> tuple[Path, int | None]:
    name, above = _place(path)
    number = version_number(name)
    if number is None or not is_directory(above) or holds_versions(path) or model_directories(path):
        return path, None  # the name of a directory of models, or of a model, may be a number, too
    return above, number


def _place(directory: Path) -> tuple[str, Path]:
    """Return a directory's name and its parent, keeping a relative path relative where possible."""
    if directory.name in ("", ".."):
        directory = directory.resolve()
    return directory.name, directory.parent


def _holds_model(directory: Path) -> bool:
    try:
        names = [entry.name for entry in os.scandir(directory) if is_visible(entry.name) and entry.is_file()]
    except OSError:
        return False
    return MANIFEST_FILE in names or _is_recognised(names)


def _is_recognised(names: list[str]) -> bool:
    """Return whether a runtime loads a directory with these files."""
    from headrace.runtimes.registry import find  # noqa: PLC0415 - only when used

    try:
        return bool(find(names))
    except HeadraceError:
        return False
