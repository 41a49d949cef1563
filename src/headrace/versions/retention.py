"""Which old versions go, and how: renamed out of sight first, so that none is ever seen half there."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.versions.layout import version_directories
from headrace.versions.manifest import sweep_drafts

_DELETING = ".deleting-"

_log = logging.getLogger(__name__)


def versions_to_delete(versions: Mapping[int, int | None], keep: int, named: Iterable[int]) -> list[int]:
    """Decide which versions go.

    Args:
        versions: All versions, each with the version that it is a patch of, or None.
        keep: How many of the newest stay; 0 for all.
        named: Versions that stay whatever their number: pinned, held, labelled or listed.

    Returns:
        The numbers of those that are neither among the newest, nor named, nor the base of one that stays.
    """
    if keep == 0:
        return []
    staying = {*sorted(versions)[-keep:], *named}
    staying |= {base for number in staying if (base := versions.get(number)) is not None}
    return sorted(versions.keys() - staying)


def delete_versions(model_directory: Path, numbers: Iterable[int]) -> list[int]:
    """Delete versions. A server that has one mapped keeps its pages until it lets go of them.

    Args:
        model_directory: Where the model's versions are.
        numbers: Those that go.

    Returns:
        Those that are gone; what cannot be deleted is warned of and left.
    """
    return remove_hidden(hide_versions(model_directory, numbers))


def hide_versions(model_directory: Path, numbers: Iterable[int]) -> dict[int, Path]:
    """Take versions out of sight, which is quick, to be removed after it: nobody finds them any more.

    Args:
        model_directory: Where the model's versions are.
        numbers: Those that go.

    Returns:
        Where each lies now; what cannot be hidden is warned of and left.
    """
    there = version_directories(model_directory)
    hidden = {}
    for number in numbers:
        place = model_directory / f"{_DELETING}{number}-{secrets.token_hex(4)}"
        try:
            there[number].rename(place)
        except (KeyError, FileNotFoundError):
            continue  # somebody else was quicker
        except OSError as error:
            _warn(number, error)
        else:
            hidden[number] = place
    return hidden


def remove_hidden(hidden: Mapping[int, Path]) -> list[int]:
    """Remove versions that ``hide_versions`` has hidden.

    Returns:
        Those that are gone; what cannot be removed is warned of and left.
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
    """Remove what processes that were killed have left: versions half deleted, and drafts nobody writes to.

    Args:
        model_directory: Where the model's versions are; must exist.
    """
    with os.scandir(model_directory) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        path = model_directory / name
        if name.startswith(_DELETING):
            shutil.rmtree(path, ignore_errors=True)
    sweep_drafts(model_directory)
