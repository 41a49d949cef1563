"""A directory of models for the endpoints of an ``app.py``, with new versions as the file changes."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.base.errors import ConfigError, HeadraceError
from headrace.endpoints import endpoints_of

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_KEPT = 2
_MODEL = """from headrace.endpoints import model_of

Model = model_of({source!r}, {file!r}, {name!r})
"""


@contextmanager
def directory_of(file: Path, *, reload: bool) -> Iterator[Path]:
    """Make a directory with a model for each endpoint of a file, and remove it at the end.

    Args:
        file: The ``app.py``.
        reload: Whether to publish new versions when a Python file beside it changes.

    Raises:
        ConfigError: The file cannot be imported, or has no endpoints.
    """
    file = file.resolve()
    with tempfile.TemporaryDirectory(prefix="headrace-app-") as made:
        directory, ended = Path(made), threading.Event()
        publish_endpoints(file, directory, 1)
        watching = threading.Thread(target=_watch, args=(file, directory, ended), name="headrace-reload")
        if reload:
            watching.start()
        try:
            yield directory
        finally:
            ended.set()
            if reload:
                watching.join()


def publish_endpoints(file: Path, directory: Path, number: int) -> None:
    """Write a version of each endpoint, and remove models whose endpoints are gone.

    Args:
        file: The ``app.py``, resolved.
        directory: The directory of models.
        number: The version's number.

    Raises:
        ConfigError: The file cannot be imported, or has no endpoints.
    """
    source = directory / f".{number}.py"
    try:
        shutil.copyfile(file, source)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    names = endpoints_of(source, file).keys()
    for name in names:
        draft = directory / ".draft"
        draft.mkdir()
        model = _MODEL.format(source=str(source), file=str(file), name=name)
        (draft / "model.py").write_text(model, "utf-8")
        (directory / name).mkdir(exist_ok=True)
        draft.rename(directory / name / str(number))
        shutil.rmtree(directory / name / str(number - _KEPT), ignore_errors=True)
    for gone in [one for one in directory.iterdir() if one.name not in names and one.is_dir()]:
        shutil.rmtree(gone)


def _watch(file: Path, directory: Path, ended: threading.Event) -> None:
    before, number = _changes(file), 1
    while not ended.wait(_LOOK_SECONDS):
        now = _changes(file)
        if now == before:
            continue
        before, number = now, number + 1
        try:
            publish_endpoints(file, directory, number)
            _log.info("%s has changed and is served as version %d", file.name, number)
        except HeadraceError as error:
            _log.error("%s has changed, but the version before goes on: %s", file.name, error.message)


def _changes(file: Path) -> dict[Path, int]:
    """Return the times of change of a file and of the Python files beside it, in nanoseconds."""
    found = {}
    for one in file.parent.glob("*.py"):
        try:
            found[one] = one.stat().st_mtime_ns
        except OSError:  # it is being replaced
            found[one] = 0
    return found
