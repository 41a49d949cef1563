"""One way to name models for every verb: ``DIR/NAME[/N]``, a version, or a model for its newest one.

Verbs that take several have ``DIR[/NAME[/N]]``: every model in a directory, one model, or one version. What a
path is, is seen from what lies there; a name that is a number is a version of what it lies in.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from headrace.disk import is_visible, saying
from headrace.errors import ConfigError, HeadraceError, NotFound, listed
from headrace.versions.layout import (
    MANIFEST_FILE,
    holds_versions,
    model_directories,
    version_directories,
    version_number,
)

DIRECTORY = "DIR"
"""What stands in the help for a directory of models."""

MODEL = "DIR/NAME"
"""For a model."""

VERSION = "DIR/NAME[/N]"
"""For a model or one version of it."""

NUMBERED_VERSION = "DIR/NAME/N"
"""For one version of a model, by its number."""

ANY = "DIR[/NAME[/N]]"
"""For a directory of models, one of them, or one version of it."""

_TOLD = 5
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


def find_model(path: Path, *, there: bool = True) -> tuple[Path, int | None]:
    """Find the model that ``DIR/NAME[/N]`` names.

    Args:
        path: What was given.
        there: Whether a version that is named must be there.

    Returns:
        The model's directory, and the number of the version if one was named.

    Raises:
        NotFound: There is no such directory, or no such version in it; the message says which there are.
        FailedPrecondition: It cannot be looked at.
        ConfigError: It is a directory of models; the message names them.
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
    """Find the directory of the version that ``DIR/NAME[/N]`` names; the newest if it names none.

    A directory without versions is taken for a version itself, wherever it lies.

    Args:
        path: What was given.

    Raises:
        NotFound: As of ``find_model``.
        ConfigError: Likewise.
    """
    directory, number = find_model(path)
    versions = _versions(directory)
    if number is None and not versions:
        return directory
    return versions[max(versions) if number is None else number]


def find_models(path: Path) -> list[tuple[Path, int | None]]:
    """Find all that ``DIR[/NAME[/N]]`` names: each model's directory, and the version if one was named.

    Args:
        path: What was given.

    Raises:
        NotFound: There is no such directory, or no such version in it.
        FailedPrecondition: It cannot be looked at.
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
    """Refuse the number of a version that is not there.

    Raises:
        NotFound: It is not; the message says which are.
    """
    there = _versions(model)
    if number not in there:
        have = ", ".join(map(str, there)) or "none"
        raise NotFound(f"{VERSION}: {name_of(model)} has no version {number}; it has: {have}")


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
            f"{DIRECTORY}: {directory} is version {number} of one model, {name}; "
            f"the directory of models is {models}"
        )


def is_directory(path: Path) -> bool:
    """Whether a path leads to a directory; a name that is longer than names can be leads to none.

    Raises:
        FailedPrecondition: The system does not tell: who runs this may not look there.
    """
    with saying(f"{path} cannot be looked at"):
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise


def name_of(model: Path) -> str:
    """What a model is called: as its directory is."""
    return _place(model)[0]


def _versions(model: Path) -> dict[int, Path]:
    with saying(f"{model} cannot be listed"):
        return version_directories(model)


def _split(path: Path) -> tuple[Path, int | None]:
    name, above = _place(path)
    number = version_number(name)
    if number is None or not is_directory(above) or holds_versions(path) or model_directories(path):
        return path, None  # a directory of models, or a model, may be called by a number, too
    return above, number


def _place(directory: Path) -> tuple[str, Path]:
    """Its name, and the directory that it lies in, as relative as it was given."""
    if directory.name in ("", ".."):
        directory = directory.resolve()
    return directory.name, directory.parent


def _holds_model(directory: Path) -> bool:
    from headrace.runtimes.registry import find  # noqa: PLC0415 - only when used

    try:
        names = [entry.name for entry in os.scandir(directory) if is_visible(entry.name) and entry.is_file()]
        return MANIFEST_FILE in names or bool(find(names))
    except (OSError, HeadraceError):
        return False
