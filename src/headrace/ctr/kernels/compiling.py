"""How the kernels of the online models are compiled."""

from __future__ import annotations

from typing import Any

FAST = {"contract", "reassoc", "nsz", "arcp", "afn"}
"""What compilers may do to floating-point numbers here; NaN and infinity stay what they are."""

_ANY: dict[str, Any] = {"fastmath": FAST, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}

PART: dict[str, Any] = {**_ANY, "forceinline": True, "no_cpython_wrapper": True}
"""For ``numba.njit``: part of a kernel. Nothing is allocated, so that no references need be counted; nobody
but kernels calls it, so that nothing need be compiled for that."""

KERNEL: dict[str, Any] = {**_ANY, "cache": True, "nogil": True}
"""The same for a whole kernel, which is kept on disk and runs without Python's lock."""
