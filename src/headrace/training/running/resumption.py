"""Decision whether a run starts anew or resumes, and from which row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import UNSET

from headrace.base.errors import ConfigError, shown
from headrace.base.files import saying
from headrace.ctr.model_settings import Optimizer
from headrace.training.running.checkpoint import Checkpoint, load_checkpoint
from headrace.training.running.learner import Position
from headrace.versions.layout import version_directories

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
