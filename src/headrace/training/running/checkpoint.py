"""Checkpoints: everything that learning goes on from, on disk, whole or not at all, checked when it is read.

``DIR/NUMBER/`` holds one ``.npy`` file an array and a manifest with their checksums and the caller's own
record. The last two are kept: when the newest is damaged, the one before it is taken, and that is said.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

from headrace.ctr.files.arrays import read_array, write_array
from headrace.ctr.files.description import file_name
from headrace.disk import saying
from headrace.errors import FailedPrecondition, LoadError, NewerFormat
from headrace.formats import check_number
from headrace.tensors import Array
from headrace.versions.layout import version_directories
from headrace.versions.manifest import check_manifest, publish
from headrace.versions.retention import delete_versions, sweep

FORMAT = 1
"""The format of what a checkpoint holds; newer ones are not read. It stands in the manifest's metadata."""

KEPT = 2
"""How many checkpoints stay, and how many damaged ones, for whoever wants to know what happened to them."""

DAMAGED_DAYS = 7
"""How long damaged ones stay."""

_FORMAT_KEY = "format"
_DAMAGED = ".damaged-"
_STAMP = "%Y%m%dT%H%M%S.%f"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """What was saved.

    Attributes:
        number: Which one it is, from 1.
        state: The arrays by name, in memory of their own.
        meta: The caller's own record.
        skipped: Why newer checkpoints could not be used, in sentences; empty if this is the newest.
    """

    number: int
    state: Mapping[str, Array]
    meta: Mapping[str, object]
    skipped: tuple[str, ...] = ()


@contextmanager
def only_run(directory: Path) -> Iterator[None]:
    """While this lasts, no other run has its checkpoints there: each would go on from what the other saved.

    Whoever is killed gives it back. Where the file system has no locks for directories, as NFS has not,
    nobody is kept out; nor where no directory can be made, which is said when one is saved.

    Args:
        directory: Where the checkpoints are; made if it is missing, and removed again if it stays empty.

    Raises:
        FailedPrecondition: Another run has.
    """
    is_there, descriptor = os.path.exists(directory), -1  # which is no error where that may not be asked
    try:
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _lock(descriptor, directory)
        yield
    finally:
        if descriptor >= 0:
            if not is_there:
                with suppress(OSError):
                    directory.rmdir()
            os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FailedPrecondition(
            f"checkpoint: another run has its checkpoints in {directory} (`fuser {directory}` says which); "
            "end it first, or take another directory"
        ) from error


def save_checkpoint(directory: Path, state: Mapping[str, Array], meta: Mapping[str, object]) -> Path:
    """Save a state; it appears whole and synced to disk, or not at all. Arrays are written without a copy.

    Args:
        directory: Where the checkpoints are; made if it is missing.
        state: Arrays by name, such as ``LearningModel.state()``; they must not change meanwhile.
        meta: Whatever else shall be kept, as JSON can hold it; NaN comes back as None. Convert a
            ``msgspec.Struct`` with ``msgspec.to_builtins``, and back with ``msgspec.convert``.

    Returns:
        The checkpoint's directory.

    Raises:
        FailedPrecondition: It cannot be written (a full disk, no permission); earlier ones are as they were.
    """
    with saying(f"the checkpoint in {directory} cannot be written"):
        directory.mkdir(parents=True, exist_ok=True)
        sweep(directory)
        told = {**meta, _FORMAT_KEY: FORMAT}
        saved = publish(lambda draft: _write(draft, state), directory, metadata=told)
        delete_versions(directory, sorted(version_directories(directory))[:-KEPT])
        _sweep_damaged(directory)
    return saved


def load_checkpoint(directory: Path) -> Checkpoint | None:
    """Read the newest checkpoint that is whole; None if there is none at all.

    Checkpoints that are damaged are put aside under a name with a dot, so that they do not count as kept; the
    last ones stay there for some days. Where none is whole, all stay as they are: whoever tries again is told
    the same, and does not begin with fresh weights before somebody has decided that. One that a newer
    headrace wrote is not damaged: what it has learnt is not to be lost without a word.

    Raises:
        LoadError: There are checkpoints, and all are damaged.
        FailedPrecondition: The directory, or a checkpoint, cannot be read, or the newest is of a newer
            format; nothing is changed then.
    """
    damaged: dict[int, tuple[Path, str]] = {}
    with saying(f"the checkpoints in {directory} cannot be read"):
        if not directory.is_dir():
            return None
        for number, path in reversed(version_directories(directory).items()):
            try:
                loaded = _load(number, path)
            except NewerFormat as error:
                raise _newer(directory, number, error) from error
            except LoadError as error:
                if isinstance(error.__cause__, OSError | MemoryError) and not _is_missing(error.__cause__):
                    raise _unreadable(directory, number, error) from error
                damaged[number] = path, f"checkpoint {number} is damaged: {error.message}"
            else:
                return replace(loaded, skipped=tuple(_put_aside(damaged)))
    if damaged:
        reasons = "; ".join(why for _, why in damaged.values())
        raise LoadError(
            f"no checkpoint in {directory} is whole; to start anew, move it away or take another directory: "
            f"{reasons}"
        )
    return None


def _is_missing(cause: BaseException) -> bool:
    return isinstance(cause, FileNotFoundError | NotADirectoryError)


def _unreadable(directory: Path, number: int, error: LoadError) -> FailedPrecondition:
    return FailedPrecondition(
        f"checkpoint {number} in {directory} cannot be read, which is no damage: {error.message}; "
        "it stays as it is, for when that is mended"
    )


def _newer(directory: Path, number: int, error: NewerFormat) -> FailedPrecondition:
    return FailedPrecondition(
        f"checkpoint {number} in {directory} was written by a newer headrace: {error.message}; or move it "
        "away, to go on from the one before it"
    )


def _put_aside(damaged: Mapping[int, tuple[Path, str]]) -> Iterator[str]:
    """Rename what is damaged, and say why; a number may be used again, and damaged again."""
    for number, (path, why) in damaged.items():
        aside = path.with_name(f"{_DAMAGED}{datetime.now(UTC):{_STAMP}}-{number}")
        path.rename(aside)
        _sweep_damaged(path.parent)
        _log.warning("%s; the one before it is taken; it is kept as %s", why, aside.name)
        yield why


def _sweep_damaged(directory: Path) -> None:
    """Delete damaged checkpoints but the last ones, and those for a while only."""
    oldest = f"{_DAMAGED}{datetime.now(UTC) - timedelta(days=DAMAGED_DAYS):{_STAMP}}"
    damaged = sorted(path for path in directory.iterdir() if path.name.startswith(_DAMAGED))
    for place, path in enumerate(damaged, KEPT - len(damaged)):
        if place < 0 or path.name < oldest:
            shutil.rmtree(path, ignore_errors=True)
            _log.info("a damaged checkpoint was deleted: %s", path.name)


def _write(draft: Path, state: Mapping[str, Array]) -> None:
    for name, array in state.items():
        write_array(draft / file_name(name), array)


def _load(number: int, path: Path) -> Checkpoint:
    manifest = check_manifest(path)
    if manifest is None:
        raise LoadError("corrupt: the manifest is not there")
    meta = dict(manifest.metadata)
    check_number(meta.pop(_FORMAT_KEY, None), FORMAT, "the checkpoint")
    state = {unquote(name.removesuffix(".npy")): read_array(path / name) for name in manifest.files}
    return Checkpoint(number, state, meta)
