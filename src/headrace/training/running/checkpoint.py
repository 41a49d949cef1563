"""Checkpoints: the state needed to resume learning, and the decision whether and where a run resumes.

``DIR/NUMBER/`` holds one ``.npy`` file per array, and a manifest with their checksums and the caller's
metadata. It is written atomically and verified when read. The last two are kept: if the newest is damaged,
the one before it is used, and a warning is logged.
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
from typing import TextIO
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

from headrace.base.errors import ConfigError, FailedPrecondition, LoadError, NewerFormat, shown
from headrace.base.files import saying
from headrace.base.format_numbers import check_number
from headrace.base.tensors import Array
from headrace.ctr.files.arrays import read_array, write_array
from headrace.ctr.files.model_files import file_name
from headrace.ctr.model_settings import Optimizer
from headrace.training.running.learner import Position
from headrace.versions.layout import version_directories
from headrace.versions.manifest import check_manifest, publish
from headrace.versions.retention import delete_versions, sweep

_log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the checkpoint format, stored in the manifest's metadata; newer versions are rejected."""

KEPT = 2
"""Number of checkpoints kept, and of damaged ones kept for diagnosis."""

DAMAGED_DAYS = 7
"""Number of days for which damaged checkpoints are kept."""

_FORMAT_KEY = "format"
_DAMAGED = ".damaged-"
_STAMP = "%Y%m%dT%H%M%S.%f"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        number: Number of the checkpoint, from 1.
        state: Arrays by name, in private memory.
        meta: The caller's metadata.
        skipped: Why newer checkpoints could not be used, one sentence each; empty if this is the newest.
    """

    number: int
    state: Mapping[str, Array]
    meta: Mapping[str, object]
    skipped: tuple[str, ...] = ()


@contextmanager
def only_run(directory: Path) -> Iterator[None]:
    """Lock a directory of checkpoints against other runs, which would resume from this run's checkpoints.

    The lock is released when the process dies. File systems without locks for directories, such as NFS, give
    no protection. A directory that cannot be created is not reported here, but when a checkpoint is saved.

    Args:
        directory: Directory of the checkpoints; created if it is missing, and removed again if it stays
            empty.

    Raises:
        FailedPrecondition: Another run holds the lock.
    """
    is_there, descriptor = os.path.exists(directory), -1  # exists() does not raise if access is denied
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
            f"checkpoint: another run has its checkpoints in {directory} (`fuser {directory}` shows which); "
            "end it first, or use another directory"
        ) from error


def save_checkpoint(directory: Path, state: Mapping[str, Array], meta: Mapping[str, object]) -> Path:
    """Save a state atomically: it appears complete and synced to disk, or not at all. Arrays are not copied.

    Args:
        directory: Directory of the checkpoints; created if it is missing.
        state: Arrays by name, such as ``LearningModel.state()``; they must not change meanwhile.
        meta: Metadata, JSON-serialisable; NaN is read back as None. Convert a ``msgspec.Struct`` with
            ``msgspec.to_builtins``, and back with ``msgspec.convert``.

    Returns:
        The checkpoint's directory.

    Raises:
        FailedPrecondition: The checkpoint cannot be written (a full disk, no permission); earlier ones are
            unchanged.
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
    """Load the newest undamaged checkpoint; return None if there are no checkpoints.

    Newer damaged checkpoints are renamed to hidden names, so that they do not count towards ``KEPT``; the
    last ``KEPT`` of them stay for ``DAMAGED_DAYS`` days. If all are damaged, none is renamed: another attempt
    fails again, and never silently starts from fresh weights. A checkpoint written by a newer headrace raises
    an error and is not skipped, because skipping it would silently lose what was learnt.

    Raises:
        LoadError: All checkpoints are damaged.
        FailedPrecondition: The directory or a checkpoint cannot be read, or a checkpoint has a newer format;
            nothing is changed then.
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
            f"all checkpoints in {directory} are damaged; to start anew, move the directory away or "
            f"use another one: {reasons}"
        )
    return None


def _is_missing(cause: BaseException) -> bool:
    return isinstance(cause, FileNotFoundError | NotADirectoryError)


def _unreadable(directory: Path, number: int, error: LoadError) -> FailedPrecondition:
    return FailedPrecondition(
        f"checkpoint {number} in {directory} cannot be read, but is not considered damaged: "
        f"{error.message}; it is left unchanged; resume once the cause is fixed"
    )


def _newer(directory: Path, number: int, error: NewerFormat) -> FailedPrecondition:
    return FailedPrecondition(
        f"checkpoint {number} in {directory} was written by a newer headrace: {error.message}, or move this "
        "checkpoint away to resume from the previous one"
    )


def _put_aside(damaged: Mapping[int, tuple[Path, str]]) -> Iterator[str]:
    """Rename damaged checkpoints and yield the reasons; names have timestamps, as numbers can recur."""
    for number, (path, why) in damaged.items():
        aside = path.with_name(f"{_DAMAGED}{datetime.now(UTC):{_STAMP}}-{number}")
        path.rename(aside)
        _sweep_damaged(path.parent)
        _log.warning("%s; an earlier one is used, and the damaged one is kept as %s", why, aside.name)
        yield why


def _sweep_damaged(directory: Path) -> None:
    """Keep the last ``KEPT`` damaged checkpoints, each for ``DAMAGED_DAYS``; delete the others."""
    oldest = f"{_DAMAGED}{datetime.now(UTC) - timedelta(days=DAMAGED_DAYS):{_STAMP}}"
    damaged = sorted(path for path in directory.iterdir() if path.name.startswith(_DAMAGED))
    for place, path in enumerate(damaged, KEPT - len(damaged)):
        if place < 0 or path.name < oldest:
            _log.info("a damaged checkpoint is being deleted: %s", path.name)
            shutil.rmtree(path, ignore_errors=True)


def _write(draft: Path, state: Mapping[str, Array]) -> None:
    for name, array in state.items():
        write_array(draft / file_name(name), array)


def _load(number: int, path: Path) -> Checkpoint:
    manifest = check_manifest(path)
    if manifest is None:
        raise LoadError("corrupt: the manifest is missing")
    meta = dict(manifest.metadata)
    check_number(meta.pop(_FORMAT_KEY, None), FORMAT, "the checkpoint")
    state = {unquote(name.removesuffix(".npy")): read_array(path / name) for name in manifest.files}
    return Checkpoint(number, state, meta)


_LEARNS = ("linear", "embeddings")

_ONCE_UNSAID = (
    {"linear": Optimizer(), "embeddings": Optimizer()},
    {
        "linear": Optimizer(kind="forgetting", learning_rate=0.2),
        "embeddings": Optimizer(kind="forgetting", learning_rate=0.1, initial=4.0),
    },
)
"""Pairs of optimizers that were the defaults of all kinds in earlier releases."""


def find_checkpoint(directory: Path | None, errors: TextIO, *, resume: bool) -> Checkpoint | None:
    """Return the checkpoint from which a run resumes; None if it starts anew.

    Args:
        directory: Directory of checkpoints; None for none.
        errors: Stream for the message that there is no checkpoint.
        resume: Whether the run should resume.

    Raises:
        ConfigError: The run cannot resume, or would start anew in a directory with checkpoints.
        LoadError: All checkpoints are damaged.
        FailedPrecondition: The directory or a checkpoint cannot be read, or a checkpoint has a newer format.
    """
    if directory is None:
        if resume:
            raise ConfigError(
                "resume: there is no checkpoint to resume from; name its directory with --checkpoint DIR"
            )
        return None
    if not resume:
        with saying(f"the checkpoints in {directory} cannot be read"):
            is_taken = directory.is_dir() and bool(version_directories(directory))
        if is_taken:
            raise ConfigError(
                f"checkpoint: {directory} holds checkpoints of an earlier run; resume from them with "
                "--resume, or use another directory"
            )
        return None
    found = load_checkpoint(directory)
    if found is None:
        errors.write(f"headrace: {directory} holds no checkpoint; starting anew\n")
    return found


def rows_before(checkpoint: Checkpoint | None) -> int:
    """Return the number of rows of the stream taken before a checkpoint; 0 without one."""
    return 0 if checkpoint is None else msgspec.convert(checkpoint.meta.get("position"), Position).rows


def settings_with_saved_optimizers(
    said: Mapping[str, object], checkpoint: Checkpoint | None
) -> Mapping[str, object]:
    """Return a model's settings; keep the checkpoint's optimizers if they are an earlier release's defaults.

    Args:
        said: Settings that differ from the defaults, as in TOML.
        checkpoint: Checkpoint to resume from; None for a new run.

    Returns:
        The settings. If they name no optimizer, and the checkpoint has the defaults of an earlier release,
        those are added.
    """
    saved = None if checkpoint is None else checkpoint.meta.get("model")
    if not isinstance(saved, Mapping) or any(name in said for name in _LEARNS):
        return said
    for once in map(msgspec.to_builtins, _ONCE_UNSAID):
        if all(saved.get(name) == once[name] for name in _LEARNS):
            return {**said, **once}
    return said


def difference(saved: object, wanted: object, place: str = "") -> str:
    """Describe the first difference between a checkpoint and a run; return "" if there is none.

    Args:
        saved: Value in the checkpoint, as read from JSON.
        wanted: Value of this run, likewise.
        place: Path of the value.
    """
    if isinstance(saved, dict) and isinstance(wanted, dict):
        inside = [
            (f"{place}.{key}", saved.get(key, UNSET), wanted.get(key, UNSET)) for key in {**saved, **wanted}
        ]
    elif isinstance(saved, list) and isinstance(wanted, list) and len(saved) == len(wanted):
        inside = [(f"{place}[{at}]", *both) for at, both in enumerate(zip(saved, wanted, strict=True))]
    else:
        return (
            ""
            if saved == wanted
            else f"{place} is {_short(saved)} in the checkpoint, and {_short(wanted)} in this run"
        )
    return next(filter(None, (difference(one, other, where.lstrip(".")) for where, one, other in inside)), "")


def _short(value: object) -> str:
    if value is UNSET:
        return "missing"
    if isinstance(value, dict | list):
        return f"{'a table' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return shown(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
