"""How the kernels of the online models are compiled."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

FAST = {"contract", "reassoc", "nsz", "arcp", "afn"}
"""What compilers may do to floating-point numbers here; NaN and infinity stay what they are."""

_ANY: dict[str, Any] = {"fastmath": FAST, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}

PART: dict[str, Any] = {**_ANY, "forceinline": True, "no_cpython_wrapper": True}
"""For ``numba.njit``: part of a kernel. Nothing is allocated, so that no references need be counted; nobody
but kernels calls it, so that nothing need be compiled for that."""

KERNEL: dict[str, Any] = {**_ANY, "cache": True, "nogil": True}
"""The same for a whole kernel, which is kept on disk and runs without Python's lock."""


_PARTS = ("compiling", "ffm", "fm", "fwfm", "linear", "memory", "pooling", "updates", "work")


def _fingerprint() -> int:
    made = 0
    for name in _PARTS:
        made = zlib.crc32(Path(__file__).with_name(f"{name}.py").read_bytes(), made)
    return made


SOURCES = _fingerprint()
"""Stands for the text of the modules with the kernels' parts. A kernel that has it among its constants is
compiled anew when one of them has changed; numba itself looks only at the file that the kernel is in."""
