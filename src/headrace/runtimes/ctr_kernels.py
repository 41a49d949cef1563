"""Prepare a click model's kernels before its first request, from the disk cache or by a child process.

Compiling takes ten seconds or more. It holds a lock that all click models need to load, and most of the time
the GIL, which requests need. So a child process compiles the kernels that are not cached. This process
compiles them itself only if no cache directory is writable, or if the child fails.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np

from headrace.base.tensors import STRING
from headrace.jit.kernel_cache import NotKept, kept_where, only_kept
from headrace.model import packed_kernels
from headrace.model.servable import Servable

_log = logging.getLogger(__name__)


def make_ready(servable: Servable, version: Path) -> None:
    """Load the kernels that a version needs; a child process compiles them first if they are not cached.

    Args:
        servable: The loaded version.
        version: Its directory.
    """
    try:
        with only_kept():
            run_once(servable)
    except NotKept:
        if kept_where() is not None:
            _compile_elsewhere(version)
        run_once(servable)


def run_once(servable: Servable) -> None:
    """Predict a row of zeros and empty texts with each signature, to compile or load every kernel.

    Raises:
        NotKept: A kernel is not cached, and compiling is not allowed.
    """
    for name, signature in servable.signatures.items():
        inputs = {}
        for spec in signature.inputs:
            shape = (1, *(size or 1 for size in spec.shape))
            inputs[spec.name] = np.full(shape, b"" if spec.dtype == STRING else 0, spec.dtype)
        servable.predict(inputs, name)
        if any(spec.dtype == STRING for spec in signature.inputs):
            packed_kernels.run_once()  # codecs use them to locate texts in messages


def _compile_elsewhere(version: Path) -> None:
    """Let a child process compile and cache the kernels; if it fails, log a warning."""
    about = {"model": version.parent.name, "version": version.name}
    _log.info("compiling kernels in a separate process, once", extra=about)
    command = [sys.executable, "-m", "headrace.runtimes.ctr_compiling", str(version)]
    try:
        # The child ends when its standard input is closed, at the latest when this process ends.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as child:
            said = child.stderr.read() if child.stderr is not None else b""
    except OSError as error:
        _log.warning("cannot start a process to compile kernels: %s", error.strerror)
        return
    if child.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        _log.warning("the process that compiles kernels failed (%d): %s", child.returncode, last)
