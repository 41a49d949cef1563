"""Prepare a click model's kernels before its first request."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.base.tensors import STRING
from headrace.model import packed_kernels
from headrace.model.servable import Servable
from headrace.runtimes import kernel_compiling


def make_ready(servable: Servable, version: Path) -> None:
    """Load the kernels that a version needs; a child process compiles them first if they are not cached.

    Args:
        servable: The loaded version.
        version: Its directory.
    """
    child = "headrace.runtimes.ctr_compiling", str(version)
    about = {"model": version.parent.name, "version": version.name}
    kernel_compiling.make_ready(lambda: run_once(servable), child, about)


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
