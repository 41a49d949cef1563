"""List the model directories on disk, with their versions, settings and control records.

Names sent by clients are never used here; only the operator's directories are read. Symbolic links are
followed. A link inside a version that leaves it is refused at load time (``headrace.versions.file_trust``).

The contents of files are cached between scans, while their metadata is unchanged (``Recall``).
"""

from __future__ import annotations

import math
import os
import random
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from errno import ENOENT
from pathlib import Path
from typing import Any, TypeVar

from headrace.base.errors import ConfigError, listed
from headrace.base.files import is_directory, is_visible
from headrace.config import A_MODEL_NAME, LARGEST_VERSION, MODEL_CONFIG_FILE, MODEL_NAME, read_model_config
from headrace.versions.layout import (
    CONTROL_FILE,
    MANIFEST_FILE,
    PIN_FILE,
    version_directories,
    version_names,
    version_number,
)
from headrace.versions.pins_and_holds import PinnedTo, find_pin, read_control

# A file is taken to be unchanged while ``stat`` reports the same inode, size and times. File times are
# coarse, from some milliseconds up to two seconds, so two writes within one tick may leave them equal.
# Content is therefore kept only if the metadata had been unchanged for longer than a tick before the file was
# read: a later change then has a later time. This process's clock measures that time, because other machines
# may have set the file times. Files are read again from time to time all the same, because a network file
# system may report stale metadata.

SETTLED_SECONDS = 3.0
"""Time for which metadata must be unchanged before content is kept; FAT's file times have 2 s resolution."""

RENEWED_SECONDS = 10.0
"""Shortest time to keep content; randomly up to twice as long, so not all expires in the same scan."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Kept:
    """Cached content and the metadata that it belongs to.

    Attributes:
        looks: The metadata.
        since: Time at which this metadata was first seen, on the monotonic clock.
        value: Content read after the metadata had been unchanged for long enough.
        until: Expiry time of ``value``; negative infinity before it was read.
    """

    looks: Hashable
    since: float
    value: Any = None
    until: float = -math.inf


class Recall:
    """Cache of file contents by model and part.

    Scans may use it concurrently: one that resumes after hanging runs beside a newer one.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        """Create an empty cache.

        Args:
            now: Monotonic clock; with real files it must be the real one.
            chance: Returns a random number from 0 to 1.
        """
        self._now = now
        self._chance = chance
        self._kept: dict[str, dict[str, _Kept]] = {}

    def read(
        self,
        model: str,
        part: str,
        looks: Hashable,
        read: Callable[[], _T],
        keep: Callable[[_T], bool] = lambda _: True,
    ) -> _T:
        """Return cached content if the metadata is unchanged; otherwise read it.

        Args:
            model: The model that the content belongs to.
            part: Name of the content within the model.
            looks: Current metadata, obtained before reading.
            read: Reads the content; its exceptions propagate and are not cached.
            keep: Returns whether the content may be cached.
        """
        parts, now = self._kept.setdefault(model, {}), self._now()
        kept = parts.get(part)
        if kept is None or kept.looks != looks:
            parts[part] = _Kept(looks, now)
            return read()
        if now < kept.until:
            value: _T = kept.value
            return value
        value = read()
        if now - kept.since >= SETTLED_SECONDS and keep(value):
            kept.value, kept.until = value, now + RENEWED_SECONDS * (1 + self._chance())
        return value

    def forget_but(self, models: Collection[str]) -> None:
        """Drop the content of all models except these."""
        for name in {*self._kept.copy()}.difference(models):
            self._kept.pop(name, None)


def looks_of(file: str | Path) -> Hashable:
    """Return the metadata of a file, following links, or the error number; it changes with the content."""
    try:
        status = os.stat(file)
    except OSError as error:
        return error.errno
    return (
        status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )  # fmt: skip


_ONLY_ITS_PLACE = getattr(os, "O_PATH", os.O_RDONLY)  # Linux
_OWN = frozenset({MODEL_CONFIG_FILE, CONTROL_FILE, PIN_FILE})
_EMPTY = "no version in it: expected directories named 1, 2, … with the model's files"
_FLAT = f"{_EMPTY}; move its files into a subdirectory named 1"
NO_VERSION = f"versions are whole numbers up to {LARGEST_VERSION}; rename the directory"
"""Advice on directories whose names look like versions but are not valid ones."""

_LIKE_A_VERSION = re.compile(r"[vV]?\d")
_MOST_TOLD = 5
_BAD_NAME = f"not a model's name: expected {A_MODEL_NAME}; rename its directory"


@dataclass(frozen=True, slots=True)
class ModelListing:
    """Contents of one model's directory.

    Attributes:
        versions: Version directories, by number.
        settings: Content of ``headrace.toml``; "" without one.
        pin: The model's pin; None if it is not pinned.
        revision: Revision number of its control record; 0 without one.
        undecided: Why the control record cannot be read, which makes ``pin`` and ``revision`` meaningless; or
            "".
        problem: Why the settings cannot be read, or "".
        empty: Why it has no version, with advice; "" if there is one.
        passed_over: Names of directories beside the versions that look like versions but are not valid ones.
    """

    versions: Mapping[int, Path]
    settings: str = ""
    pin: PinnedTo | None = None
    revision: int = 0
    undecided: str = ""
    problem: str = ""
    empty: str = ""
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """Contents of all model directories.

    Attributes:
        models: Listings by model name, including models without versions.
        unreadable: Models whose directory cannot be listed, with the reasons.
        details: For some of those, details for the operator only.
        skipped: Names in the served directory that are not models, with the reasons.
        problem: Why the served directory cannot be listed, or "".
    """

    models: Mapping[str, ModelListing] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """Metadata of one version directory.

    Attributes:
        fingerprint: Value that changes when a file in it changes, or when it is a link with a new target.
        has_manifest: Whether it has a manifest, which lists its files.
    """

    fingerprint: Hashable
    has_manifest: bool


def list_models(
    root: Path | None,
    elsewhere: Mapping[str, Path],
    may_touch: Callable[[str], bool] = lambda _: True,
    recall: Recall | None = None,
) -> Listing:
    """List all models.

    Args:
        root: The served directory, of models or of one model's versions; None for none.
        elsewhere: Directories of models outside ``root``, by name.
        may_touch: Called with each model's name before its directory is accessed, which may hang; returns
            whether it may be accessed.
        recall: Cache of earlier scans; empty by default.
    """
    recall = recall or Recall()
    directories, skipped, problem = dict[str, Path](), dict[str, str](), ""
    if root is not None:
        try:
            directories, skipped = _model_directories(root, may_touch)
        except OSError as error:
            problem = f"the model directory cannot be listed: {error.strerror}"
    models, unreadable, details = dict[str, ModelListing](), dict[str, str](), dict[str, str]()
    for name, directory in {**directories, **elsewhere}.items():
        if not may_touch(name):
            unreadable[name] = "its directory does not answer"
            continue
        try:
            models[name] = _list_model(name, directory, recall)
        except FileNotFoundError as error:
            unreadable[name] = f"its directory cannot be listed: {error.strerror}"
            if name in elsewhere:
                unreadable[name] += f"; correct the path in [models.{name}], or put the model there"
        except OSError as error:
            unreadable[name] = f"its directory cannot be listed: {error.strerror}"
        except Exception as error:  # noqa: BLE001  # one model's files must not affect others
            unreadable[name] = "its directory cannot be listed; the server's log says more"
            details[name] = f"{type(error).__name__}: {error}"
    if not problem:
        recall.forget_but({*directories, *elsewhere})
    return Listing(models, unreadable, details, skipped, problem)


def look(version_directory: Path, moved: Callable[[], object] = lambda: None) -> Look:
    """Read the names, sizes and times of a version directory's files, but not their content.

    Args:
        version_directory: The directory.
        moved: Called after each file to report progress: many files may take long without a hang.
    """
    path = _real_path(version_directory)
    files = []
    for file in _files_in(path):
        try:
            status = os.stat(file)
        except OSError:  # deleted meanwhile, or a dangling link: part of the fingerprint as well
            files.append((file, -1, -1))
        else:
            files.append((file, status.st_size, status.st_mtime_ns))
        moved()
    manifest = os.path.join(path, MANIFEST_FILE)
    has_manifest = any(file == manifest and size >= 0 for file, size, _ in files)
    return Look(hash((path, *sorted(files))), has_manifest)


def _real_path(directory: Path) -> str:
    """Resolve a directory's links, with one look-up in `/proc` instead of one per part of its path."""
    try:
        descriptor = os.open(directory, _ONLY_ITS_PLACE | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(directory)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.path.realpath(directory)
    finally:
        os.close(descriptor)


def _files_in(directory: str) -> Iterator[str]:
    """Yield all files below a directory except dot files; links to directories are not followed."""
    folders = [directory]
    while folders:
        try:
            with os.scandir(folders.pop()) as listed:
                entries = list(listed)
        except OSError:
            continue
        for entry in entries:
            if not is_visible(entry.name):
                continue
            if not is_directory(entry):
                yield entry.path
            elif not entry.is_symlink():
                folders.append(entry.path)


def _model_directories(
    root: Path, may_touch: Callable[[str], bool]
) -> tuple[dict[str, Path], dict[str, str]]:
    with os.scandir(root) as listed:
        entries = list(listed)  # before any `may_touch`: a hang here is not attributed to a model
    names = sorted(
        entry.name
        for entry in entries
        if is_visible(entry.name) and (not may_touch(entry.name) or _may_be_directory(entry))
    )
    if _is_one_model(root, names, may_touch):
        name = os.path.basename(os.path.abspath(root))  # a link's own name, not that of its target
        return _split({name: root})
    return _split({name: root / name for name in names})


def _may_be_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a circular link, a lost mount: listing it later reports the error for that model
        return True


def _is_one_model(root: Path, names: list[str], may_touch: Callable[[str], bool]) -> bool:
    """Return whether a directory is one model: it has versions, and its other directories have none."""
    others = [name for name in names if version_number(name) is None]
    return len(others) < len(names) and not any(
        not may_touch(name) or _holds_versions(root / name) for name in others
    )


def _holds_versions(directory: Path) -> bool:
    try:
        return bool(version_directories(directory))
    except OSError:
        return True  # unknown: an extra model does less harm than taking all models for one


def _split(found: Mapping[str, Path]) -> tuple[dict[str, Path], dict[str, str]]:
    good = {name: path for name, path in found.items() if MODEL_NAME.fullmatch(name)}
    return good, {name: _BAD_NAME for name in found if name not in good}


def _list_model(name: str, directory: Path, recall: Recall) -> ModelListing:
    with os.scandir(directory) as listed:
        entries = list(listed)
    # Look up by name: while a file is replaced by a rename, a listing may lack it (btrfs).
    looks = {own: looks_of(f"{directory}/{own}") for own in _OWN}
    names = version_names(entries)
    versions = recall.read(
        name, "versions", (directory, names), lambda: {number: directory / one for number, one in names}
    )
    settings, pin, revision, undecided, problem = "", None, 0, "", ""
    try:
        about = looks[MODEL_CONFIG_FILE]
        if about != ENOENT:
            settings = recall.read(name, "settings", about, lambda: read_model_config(directory))
    except OSError as error:
        problem = f"{MODEL_CONFIG_FILE} cannot be read: {error.strerror}"
    try:
        decides = (looks[CONTROL_FILE], looks[PIN_FILE])
        if decides != (ENOENT, ENOENT):
            pin, revision = _decided(name, directory, decides, versions, recall)
    except ConfigError as error:
        undecided = error.message
    others = _directories_beside(entries)
    empty = "" if versions else _why_empty(directory, others)
    passed_over = tuple(filter(_LIKE_A_VERSION.match, others))[:_MOST_TOLD] if versions else ()
    return ModelListing(versions, settings, pin, revision, undecided, problem, empty, passed_over)


def _decided(
    name: str, directory: Path, looks: Hashable, versions: Mapping[int, Path], recall: Recall
) -> tuple[PinnedTo | None, int]:
    """Return a model's pin, or None, and the revision number of its control record.

    Raises:
        ConfigError: The record cannot be read or is invalid.
    """
    record = recall.read(name, "decided", looks, lambda: read_control(directory))
    if record.pin is None:
        return None, record.revision
    pinned = versions.get(record.pin.number)
    if pinned is None:
        return find_pin(record, versions), record.revision
    about = looks, pinned, looks_of(f"{pinned}/{MANIFEST_FILE}")

    def is_there(pin: PinnedTo | None) -> bool:
        return pin is not None and not pin.missing  # an error may pass without a change of the file

    return recall.read(name, "pinned", about, lambda: find_pin(record, versions), is_there), record.revision


def _directories_beside(entries: Iterable[os.DirEntry[str]]) -> list[str]:
    """Return the names of directories in a model's directory that are not versions, sorted."""
    names = (one.name for one in entries if is_visible(one.name) and is_directory(one))
    return sorted(name for name in names if version_number(name) is None)


def _why_empty(directory: Path, others: Sequence[str]) -> str:
    with os.scandir(directory) as entries:
        lie_flat = any(is_visible(one.name) and one.name not in _OWN and one.is_file() for one in entries)
    if lie_flat:
        return _FLAT
    return f"{_EMPTY}, got {listed(others, _MOST_TOLD)}: {NO_VERSION}" if others else _EMPTY
