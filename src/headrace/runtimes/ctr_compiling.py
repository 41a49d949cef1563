"""Compile and cache a click model's kernels, as the child process that `ctr_kernels` starts."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from headrace.base.errors import HeadraceError, LoadError
from headrace.jit.kernel_cache import kept_where
from headrace.runtimes.ctr import CtrServable, servable_of
from headrace.runtimes.ctr_kernels import run_once
from headrace.versions.layout import version_directories

_ATTEMPTS = 10
_LOCK_FILE = "compiling.lock"
_WAIT_SECONDS = 120.0  # a process that compiles for longer is considered hung
_LOOK_SECONDS = 0.05


def main() -> None:
    """Compile and cache the kernels that a version needs."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = 1
    try:
        with one_at_a_time(kept_where()):
            run_once(servable_like(Path(sys.argv[1])))
        code = 0
    except HeadraceError as error:
        sys.stderr.write(f"{error.message}\n")
    except BaseException:  # noqa: BLE001  # printed like an uncaught exception
        traceback.print_exc()
    # A normal exit would abort: the thread above holds standard input's lock.
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def one_at_a_time(kept: Path | None) -> Iterator[None]:
    """Hold a lock while compiling, so that other processes wait and then find the kernels in the cache.

    The workers of a server need the same kernels at the same time.

    Args:
        kept: The directory of cached kernels; None for none.
    """
    with ExitStack() as held:
        if kept is not None:
            with suppress(OSError):  # without a lock, some kernels are compiled twice
                descriptor = os.open(kept / _LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
                held.callback(os.close, descriptor)
                _wait_for(descriptor)
        yield


def _wait_for(descriptor: int) -> None:
    ends = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < ends and not _locked(descriptor):
        time.sleep(_LOOK_SECONDS)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def servable_like(version: Path) -> CtrServable:
    """Load a version; if a trainer has deleted it meanwhile, load its model's newest one.

    Raises:
        LoadError: It is damaged, or no version is left.
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
