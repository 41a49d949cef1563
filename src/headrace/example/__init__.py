"""A small example model that needs nothing but headrace: ``half_plus_two``, which answers y = x / 2 + 2."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from headrace.base.errors import ConfigError, Conflict
from headrace.base.files import draft_directory, sync_directory, sync_tree

NAME = "half_plus_two"
"""The example model's name."""

_DATA = Path(__file__).parent


def write(directory: Path) -> Path:
    """Write the example model as version 1 of a model in a directory of models.

    Args:
        directory: The directory of models; made if it is missing.

    Returns:
        The model's directory, ``directory/half_plus_two``.

    Raises:
        Conflict: There is a model of that name already; nothing is overwritten.
        ConfigError: The directory cannot be written.
    """
    target = directory / NAME
    if os.path.lexists(target):
        raise Conflict(f"{target} exists already; remove it, or give another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with draft_directory(directory, f".{NAME}-") as draft:
            (draft / "1").mkdir()
            shutil.copyfile(_DATA / "half_plus_two.onnx", draft / "1/model.onnx")
            shutil.copyfile(_DATA / "README.txt", draft / "README.txt")
            sync_tree(draft)
            draft.rename(target)  # atomically: a server may be watching the directory
        sync_directory(directory)
    except OSError as error:
        raise ConfigError(f"cannot write the example into {directory}: {error.strerror}") from error
    return target
