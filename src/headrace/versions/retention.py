"""Delete old versions: rename them to hidden names first, so that no reader sees a partial version."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.versions.layout import version_directories
from headrace.versions.manifest import sweep_drafts

_DELETING = ".deleting-"

_log = logging.getLogger(__name__)


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
    """Remove what killed processes have left: partly deleted versions, and abandoned drafts.

    Args:
        model_directory: The directory of the model's versions; must exist.
    """
    with os.scandir(model_directory) as entries:
        hidden = [Path(entry) for entry in entries if entry.name.startswith(_DELETING)]
    for place in hidden:
        with suppress(OSError):
            place.unlink() if place.is_symlink() else shutil.rmtree(place, ignore_errors=True)
    sweep_drafts(model_directory)
