"""Compilation options of kernels: the optimisations allowed, and the wrappers left out."""

from __future__ import annotations

from typing import Any

import numba

from headrace.jit.kernel_cache import cached

FAST = {"contract", "reassoc", "nsz", "arcp", "afn"}
"""Floating-point optimisations allowed to the compiler; NaN and infinity keep their meaning."""

_ANY: dict[str, Any] = {"fastmath": FAST, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}

PART: dict[str, Any] = {**_ANY, "forceinline": True, "no_cpython_wrapper": True}
"""Options of ``numba.njit`` for a part of a kernel. It allocates nothing, so it needs no reference counting.
Only kernels call it, so it needs no wrapper for Python."""

KERNEL: dict[str, Any] = {**_ANY, "cache": True, "nogil": True}
"""Options for a whole kernel, which is cached on disk and releases the GIL."""


def kernel(**options: Any) -> Any:
    """Compile a function that owns no memory and releases the GIL.

    Reference counting is off: numba counts atomically at each use of an array from a tuple, which takes half
    the time of kernels as short as these. The function cannot allocate arrays.

    Args:
        options: Options of ``numba.njit``.
    """
    return cached(nogil=True, _nrt=False, **options)


def part(**options: Any) -> Any:
    """Compile a function that only kernels call: as ``kernel``, but without the wrapper for Python.

    The wrapper would be compiled for each part and never used; unpacking tuples of arrays is long code.

    Args:
        options: Options of ``numba.njit``.
    """
    njit: Any = numba.njit  # numba's own types lack some options
    return njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
