"""NumPy's BLAS has no threads of its own where models learn."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import re

import numpy as np
from threadpoolctl import ThreadpoolController

from headrace.ctr.learning.batched import use_one_thread

np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)
blas = ThreadpoolController().select(internal_api="openblas")
numpys = [one for one in blas.lib_controllers if re.search(r"numpy(\\.libs|/\\.dylibs)/", one.filepath)]
if not use_one_thread():
    assert not numpys
    print("this NumPy has another BLAS")
    raise SystemExit
(library,) = numpys
library.set_num_threads(2)
assert library.num_threads == 2
use_one_thread.__wrapped__()  # which is done once a process otherwise
assert library.num_threads == 1
"""


def test_products_are_computed_by_one_thread() -> None:
    """In a process of its own: the threads belong to the process, and other tests' libraries set them."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    if ran.stdout:
        pytest.skip(ran.stdout.strip())
