"""How the kernels of the online models are compiled."""

from __future__ import annotations

from typing import Any

FAST = {"contract", "reassoc", "nsz", "arcp", "afn"}
"""What compilers may do to floating-point numbers here; NaN and infinity stay what they are."""

PART: dict[str, Any] = {"forceinline": True, "fastmath": FAST, "error_model": "numpy", "_nrt": False}
"""For ``numba.njit``: part of a kernel. Nothing is allocated, so that no references need be counted."""

KERNEL: dict[str, Any] = {**PART, "forceinline": False, "cache": True, "nogil": True}
"""The same for a whole kernel, which is kept on disk and runs without Python's lock."""
