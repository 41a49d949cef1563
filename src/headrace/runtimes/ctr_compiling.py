"""The program of the child that compiles a click model's kernels, and keeps them: see `ctr_kernels`."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path

from headrace.errors import HeadraceError, LoadError
from headrace.runtimes.ctr import CtrServable, servable_of
from headrace.runtimes.ctr_kernels import run_once
from headrace.versions.layout import version_directories

_ATTEMPTS = 10


def main() -> None:
    """Compile and keep what a version needs."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = 1
    try:
        run_once(servable_like(Path(sys.argv[1])))
        code = 0
    except HeadraceError as error:
        sys.stderr.write(f"{error.message}\n")
    except BaseException:  # noqa: BLE001  # Said as Python would say it.
        traceback.print_exc()
    # Ended in order, Python would abort: the thread above holds standard input's lock.
    sys.stderr.flush()
    os._exit(code)


def servable_like(version: Path) -> CtrServable:
    """Load a version, or the newest of its model if it is gone: trainers may be faster than this starts.

    Raises:
        LoadError: It is damaged, or nothing is left.
    """
    for _ in range(_ATTEMPTS):
        try:
            return servable_of(version)
        except LoadError:
            others = {} if version.exists() else _versions_beside(version)
            if not others:
                raise
            version = others[max(others)]
    return servable_of(version)


def _versions_beside(version: Path) -> dict[int, Path]:
    try:
        return version_directories(version.parent)
    except OSError:
        return {}


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
