"""Prepare compiled kernels before a model's first request, from the disk cache or by a child process.

Compiling takes ten seconds or more. It holds a lock that other models need to load, and most of the time the
GIL, which requests need. So a child process compiles the kernels that are not cached. This process compiles
them itself only if no cache directory is writable, or if the child fails.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from headrace.base.errors import HeadraceError
from headrace.jit.kernel_cache import NotKept, kept_where, only_kept

_log = logging.getLogger(__name__)

_LOCK_FILE = "compiling.lock"
_WAIT_SECONDS = 120.0  # a process that compiles for longer is considered hung
_LOOK_SECONDS = 0.05


def make_ready(run_once: Callable[[], None], child: tuple[str, ...], about: Mapping[str, str]) -> None:
    """Load kernels; a child process compiles them first if they are not cached.

    Args:
        run_once: Calls every kernel once.
        child: The module that compiles them by ``compile_as_child``, and its arguments.
        about: Fields of the log's lines.
    """
    try:
        with only_kept():
            run_once()
    except NotKept:
        if kept_where() is not None:
            _compile_elsewhere(child, about)
        run_once()


def _compile_elsewhere(child: tuple[str, ...], about: Mapping[str, str]) -> None:
    """Let a child process compile and cache the kernels; if it fails, log a warning."""
    _log.info("compiling kernels in a separate process, once", extra=dict(about))
    try:
        # The child ends when its standard input is closed, at the latest when this process ends.
        with subprocess.Popen(
            [sys.executable, "-m", *child],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            said = process.stderr.read() if process.stderr is not None else b""
    except OSError as error:
        _log.warning("cannot start a process to compile kernels: %s", error.strerror)
        return
    if process.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        _log.warning("the process that compiles kernels failed (%d): %s", process.returncode, last)


def compile_as_child(run_once: Callable[[], None]) -> None:
    """Compile and cache kernels, and end this process.

    Args:
        run_once: Calls every kernel once.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = 1
    try:
        with one_at_a_time(kept_where()):
            run_once()
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


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
