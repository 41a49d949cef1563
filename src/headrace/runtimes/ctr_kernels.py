"""The kernels of a click model, ready before its first request: kept on disk, or compiled by a child process.

Compiling takes ten seconds and more. It holds a lock that every other click model needs to load, and Python's
own most of the time, which requests need. So a process that serves does not compile, but lets a child do it
for the first version that needs a kernel which is not kept.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np

from headrace.compiled import NotKept, kept_where, only_kept
from headrace.packed import kernels
from headrace.servable import Servable
from headrace.tensors import STRING

_log = logging.getLogger(__name__)


def make_ready(servable: Servable, version: Path) -> None:
    """Load the kernels that a version needs; if they are not kept, let another process compile them.

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
    """Answer a row of zeros in each way, so that each kernel is compiled or loaded.

    Raises:
        NotKept: One is not kept, and none is to be compiled.
    """
    for name, signature in servable.signatures.items():
        inputs = {}
        for spec in signature.inputs:
            shape = (1, *(size or 1 for size in spec.shape))
            inputs[spec.name] = np.full(shape, b"" if spec.dtype == STRING else 0, spec.dtype)
        servable.predict(inputs, name)
        if any(spec.dtype == STRING for spec in signature.inputs):
            kernels.run_once()  # front ends read its texts with them


def _compile_elsewhere(version: Path) -> None:
    """Let a child process compile and keep them; without it, they are compiled here."""
    about = {"model": version.parent.name, "version": version.name}
    _log.info("compiling kernels in a process of their own, once", extra=about)
    command = [sys.executable, "-m", "headrace.runtimes.ctr_compiling", str(version)]
    try:
        # It ends when its standard input does: with this process, at the latest.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as child:
            said = child.stderr.read() if child.stderr is not None else b""
    except OSError as error:
        _log.warning("no process could be started to compile kernels: %s", error.strerror)
        return
    if child.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        _log.warning("the process that compiles kernels failed (%d): %s", child.returncode, last)
