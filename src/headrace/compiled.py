"""Kernels that numba keeps on disk for as long as no source beside theirs changes.

Numba itself compiles a kept kernel anew when the file that it is in has changed, but not when another one has
whose functions or constants are part of it: after an update, old machine code would go on giving old answers.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba


def cached(**options: Any) -> Callable[[Any], Any]:
    """Compile a function when it is called first, and keep the machine code on disk.

    What it is made of, besides itself, lies in the directory of its own file.

    Args:
        options: What ``numba.njit`` takes.
    """
    njit: Any = numba.njit  # its own types do not know all options

    def decorate(function: Any) -> Any:
        made = njit(**{**options, "cache": True})(function)
        # There is no public way to tell numba what else a kernel depends on.
        kept: Any = getattr(getattr(made, "_cache", None), "_cache_file", None)
        if hasattr(kept, "_source_stamp"):
            beside = _fingerprint(Path(function.__code__.co_filename).parent)
            kept._source_stamp = (kept._source_stamp, beside)
        return made

    return decorate


@functools.cache
def _fingerprint(directory: Path) -> int:
    """Stands for the text of all modules in a directory."""
    made = 0
    for file in sorted(directory.glob("*.py")):
        made = zlib.crc32(file.read_bytes(), made)
    return made
