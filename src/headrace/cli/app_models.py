"""A directory of models for the endpoints of an ``app.py``, with new versions as the file changes."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from headrace.base.errors import ConfigError, HeadraceError
from headrace.cli.temporary_files import draft_directory
from headrace.endpoints import endpoints_of, restoring_modules

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_KEPT = 2
_MODEL = """from headrace.endpoints import model_of

Model = model_of({source!r}, {file!r}, {name!r}, as_guest={as_guest!r})
"""


@contextmanager
def directory_of(file: Path, *, reload: bool) -> Iterator[Path]:
    """Make a directory with a model for each endpoint of a file, and remove it at the end.

    Args:
        file: The ``app.py``.
        reload: Whether to publish new versions when a Python file beside it changes.

    Raises:
        ConfigError: The file cannot be imported, or has no endpoints, or no temporary
            directory can be made.
    """
    if not file.is_file():
        raise ConfigError(
            f"DIR: {file} is not a file; name a Python file with endpoints, or a directory of models"
        )
    file = file.resolve()
    with ExitStack() as undo:
        directory, ended = draft_directory(undo), threading.Event()
        before = _changes(file)
        publish_endpoints(file, directory, 1)
        watching = threading.Thread(
            target=_watch, args=(file, before, directory, ended), name="headrace-reload"
        )
        if reload:
            watching.start()
        try:
            yield directory
        finally:
            ended.set()
            if reload:
                watching.join()


def publish_endpoints(file: Path, directory: Path, number: int, *, as_guest: bool = False) -> None:
    """Write a version of each endpoint, and remove models whose endpoints are gone.

    Args:
        file: The ``app.py``, resolved.
        directory: The directory of models.
        number: The version's number.
        as_guest: Whether the process is not headrace's own, such as a notebook's; its modules stay unchanged.

    Raises:
        ConfigError: The file cannot be read or imported, or its models cannot be written.
    """
    source = directory / f".{number}.py"
    try:
        source.write_bytes(file.read_bytes())
        code = partial(_MODEL.format, source=str(source), file=str(file), as_guest=as_guest)
        with restoring_modules(file):
            names = endpoints_of(source, file, as_guest=as_guest).keys()
            _write(directory, number, {name: code(name=name) for name in names})
        for gone in [one for one in directory.iterdir() if one.name not in names and one.is_dir()]:
            shutil.rmtree(gone)
        _remove_sources(directory)
    except OSError as error:
        raise ConfigError(f"{error.filename or directory}: {error.strerror or error}") from error


def _write(directory: Path, number: int, models: Mapping[str, str]) -> None:
    """Write all models before any of them is served, so that a full disk leaves all versions as they are."""
    drafts = directory / ".drafts"
    shutil.rmtree(drafts, ignore_errors=True)  # of an attempt that failed
    for name, code in models.items():
        (drafts / name).mkdir(parents=True)
        (drafts / name / "model.py").write_text(code, "utf-8")
    for name in models:
        (directory / name).mkdir(exist_ok=True)
        (drafts / name).rename(directory / name / str(number))
        for old in sorted(int(one.name) for one in (directory / name).iterdir())[:-_KEPT]:
            shutil.rmtree(directory / name / str(old), ignore_errors=True)


def _remove_sources(directory: Path) -> None:
    """Remove the copies of the file that no version imports."""
    models = [one for one in directory.iterdir() if one.is_dir()]
    imported = {f".{version.name}.py" for model in models for version in model.iterdir()}
    for source in directory.glob(".*.py"):
        if source.name not in imported:
            source.unlink(missing_ok=True)


def _watch(file: Path, before: dict[Path, int], directory: Path, ended: threading.Event) -> None:
    number = 1
    while not ended.wait(_LOOK_SECONDS):
        try:
            now = _changes(file)
            if now == before:
                continue
            before, number = now, number + 1
            _log.info("%s has changed, and is imported again", file.name)  # which may take long, or hang
            publish_endpoints(file, directory, number)
            _log.info(
                "%s has changed: version %d is loaded, and replaces the one before once it is ready",
                file.name,
                number,
            )
        except HeadraceError as error:
            _log.error("%s has changed, but the previous version keeps serving: %s", file.name, error.message)
        except BaseException:  # noqa: BLE001 - the thread must go on, or later changes are not served
            _log.exception("%s has changed, but the previous version keeps serving", file.name)


def _changes(file: Path) -> dict[Path, int]:
    """Return the times of change of a file and of the Python files beside it, in nanoseconds."""
    found = {}
    for one in file.parent.glob("*.py"):
        try:
            found[one] = one.stat().st_mtime_ns
        except OSError:  # it is being replaced
            found[one] = 0
    return found
