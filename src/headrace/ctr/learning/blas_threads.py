"""Restriction of NumPy's BLAS to one thread: a learner's threads divide the rows themselves.

OpenBLAS's threads wait for each other by spinning. In a measurement, learning a DeepFM with two of them took
twice the CPU time and no less wall time.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np

_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


@functools.cache
def use_one_thread() -> bool:
    """Set the OpenBLAS in NumPy's wheels to one thread, for the whole process.

    Returns:
        Whether OpenBLAS was found. Another BLAS has settings of its own, such as ``OMP_NUM_THREADS``.
    """
    package = Path(np.__file__).parent
    places = (package.with_name("numpy.libs"), package / ".dylibs")
    for file in (file for place in places for file in sorted(place.glob("*openblas*"))):
        library = ctypes.CDLL(str(file))  # already loaded by NumPy
        for setter in (getattr(library, name, None) for name in _SETTERS):
            if setter is not None:
                setter(1)
                return True
    return False
