"""Whether a run begins or goes on, and from which row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import msgspec

from headrace.ctr.settings import Optimizer
from headrace.disk import saying
from headrace.errors import ConfigError, shown
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
"""What weights learnt by where nothing was said, before it became what it is; the latter not in lr and fm."""


def find_checkpoint(directory: Path | None, errors: TextIO, *, resume: bool) -> Checkpoint | None:
    """Find what a run goes on from; None if it begins.

    Args:
        directory: Where checkpoints are; None for nowhere.
        errors: Where people are told that there is none.
        resume: Whether the run shall go on.

    Raises:
        ConfigError: It cannot go on, or would begin where checkpoints of an earlier run lie.
        FailedPrecondition: Whether there are any cannot be read.
    """
    if directory is None:
        if resume:
            raise ConfigError("resume: there is nothing to go on from; say where with --checkpoint DIR")
        return None
    if not resume:
        with saying(f"the checkpoints in {directory} cannot be read"):
            is_taken = directory.is_dir() and bool(version_directories(directory))
        if is_taken:
            raise ConfigError(
                f"checkpoint: {directory} holds checkpoints of an earlier run; go on from them with "
                "--resume, or take another directory"
            )
        return None
    found = load_checkpoint(directory)
    if found is None:
        errors.write(f"headrace: {directory} holds no checkpoint; starting anew\n")
    return found


def rows_before(checkpoint: Checkpoint | None) -> int:
    """How many rows of the stream were taken before a checkpoint; 0 without one."""
    return 0 if checkpoint is None else msgspec.convert(checkpoint.meta.get("position"), Position).rows


def gone_on_with(said: Mapping[str, object], checkpoint: Checkpoint | None) -> Mapping[str, object]:
    """A model's settings, where what is not said meant something else when a checkpoint was saved.

    Args:
        said: The settings that differ from the defaults, as in TOML.
        checkpoint: What a run goes on from; None if it begins.

    Returns:
        The same; with how weights learn where that was what nothing being said meant.
    """
    saved = None if checkpoint is None else checkpoint.meta.get("model")
    if not isinstance(saved, Mapping) or any(name in said for name in _LEARNS):
        return said
    for once in map(msgspec.to_builtins, _ONCE_UNSAID):
        if all(saved.get(name) == once[name] for name in _LEARNS):
            return {**said, **once}
    return said


def difference(saved: object, wanted: object, place: str = "") -> str:
    """Tell the first thing in which what a checkpoint says is not what a run says; "" if there is none.

    Args:
        saved: What a checkpoint says, as read from JSON.
        wanted: What this run says, likewise.
        place: Where that stands.
    """
    if isinstance(saved, dict) and isinstance(wanted, dict):
        inside = [(f"{place}.{key}", saved.get(key), wanted.get(key)) for key in {**saved, **wanted}]
    elif isinstance(saved, list) and isinstance(wanted, list) and len(saved) == len(wanted):
        inside = [(f"{place}[{at}]", *both) for at, both in enumerate(zip(saved, wanted, strict=True))]
    else:
        return "" if saved == wanted else f"{place} is {_short(saved)} in it, and {_short(wanted)} here"
    return next(filter(None, (difference(one, other, where.lstrip(".")) for where, one, other in inside)), "")


def _short(value: object) -> str:
    if isinstance(value, dict | list):
        return f"{'a table' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return shown(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
