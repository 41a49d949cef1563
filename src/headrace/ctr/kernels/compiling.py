"""How kernels are compiled: what compilers may do, and what is left out."""

from __future__ import annotations

from typing import Any

import numba

from headrace.compiled import cached

FAST = {"contract", "reassoc", "nsz", "arcp", "afn"}
"""What compilers may do to floating-point numbers here; NaN and infinity stay what they are."""

_ANY: dict[str, Any] = {"fastmath": FAST, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}

PART: dict[str, Any] = {**_ANY, "forceinline": True, "no_cpython_wrapper": True}
"""For ``numba.njit``: part of a kernel. Nothing is allocated, so that no references need be counted; nobody
but kernels calls it, so that nothing need be compiled for that."""

KERNEL: dict[str, Any] = {**_ANY, "cache": True, "nogil": True}
"""The same for a whole kernel, which is kept on disk and runs without Python's lock."""


def kernel(**options: Any) -> Any:
    """Compile a function that owns no memory, and that others may run beside.

    Without counting references, which numba else does atomically at each use of an array out of a tuple: in
    kernels as short as these that is half of the time. Such a function cannot make arrays.

    Args:
        options: What numba.njit takes.
    """
    return cached(nogil=True, _nrt=False, **options)


def part(**options: Any) -> Any:
    """Compile what only kernels call: the same, but without what Python would need to call it.

    That would be compiled for each part, and kept for nobody: taking tuples of arrays apart is long code.

    Args:
        options: What numba.njit takes.
    """
    njit: Any = numba.njit  # its own types do not know all options
    return njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
