"""Checkpoints: everything that learning goes on from, on disk, whole or not at all, checked when it is read.

``DIR/NUMBER/`` holds one ``.npy`` file an array and a manifest with their checksums and the caller's own
record. The last two are kept: when the newest is damaged, the one before it is taken, and that is said.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from headrace.ctr.files import file_name, map_array, write_array
from headrace.errors import FailedPrecondition, LoadError
from headrace.lifecycle.layout import version_directories
from headrace.lifecycle.manifest import check_manifest, publish
from headrace.tensors import Array
from headrace.training.retention import delete_versions, sweep

KEPT = 2
"""How many checkpoints stay."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """What was saved.

    Attributes:
        number: Which one it is, from 1.
        state: The arrays by name, mapped from the files: what is written to them stays in memory.
        meta: The caller's own record.
        skipped: Why newer checkpoints could not be used, in sentences; empty if this is the newest.
    """

    number: int
    state: Mapping[str, Array]
    meta: Mapping[str, object]
    skipped: tuple[str, ...] = ()


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
        saved = publish(lambda draft: _write(draft, state), directory, metadata=meta)
        delete_versions(directory, sorted(version_directories(directory))[:-KEPT])
    return saved


def load_checkpoint(directory: Path) -> Checkpoint | None:
    """Read the newest checkpoint that is whole; None if there is none at all.

    Checkpoints that are damaged are put aside under a name with a dot, so that they do not count as kept.

    Raises:
        LoadError: There are checkpoints, and all are damaged.
        FailedPrecondition: The directory cannot be read.
    """
    skipped: list[str] = []
    with saying(f"the checkpoints in {directory} cannot be read"):
        if not directory.is_dir():
            return None
        for number, path in reversed(version_directories(directory).items()):
            try:
                loaded = _load(number, path, tuple(skipped))
            except LoadError as error:
                skipped.append(f"checkpoint {number} is damaged: {error.message}")
                _log.warning("%s; trying the one before it", skipped[-1])
                path.rename(directory / f".damaged-{number}")
            else:
                return loaded
    if skipped:
        raise LoadError(f"no checkpoint in {directory} is whole; start anew: {'; '.join(skipped)}")
    return None


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Turn what the system refuses into a FailedPrecondition that says what was wanted.

    Raises:
        FailedPrecondition: An OSError came.
    """
    try:
        yield
    except OSError as error:
        raise FailedPrecondition(f"{what}: {error.strerror or error}") from error


def _write(draft: Path, state: Mapping[str, Array]) -> None:
    for name, array in state.items():
        write_array(draft / file_name(name), array)


def _load(number: int, path: Path, skipped: tuple[str, ...]) -> Checkpoint:
    manifest = check_manifest(path)
    if manifest is None:
        raise LoadError("corrupt: the manifest is not there")
    state = {unquote(name.removesuffix(".npy")): map_array(path / name) for name in manifest.files}
    return Checkpoint(number, state, manifest.metadata, skipped)
