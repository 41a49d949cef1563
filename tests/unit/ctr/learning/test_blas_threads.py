"""NumPy's BLAS has no threads of its own where models learn."""

from __future__ import annotations

import re

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from headrace.ctr.learning.batched import use_one_thread


def test_products_are_computed_by_one_thread() -> None:
    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)
    blas = ThreadpoolController().select(internal_api="openblas")
    numpys = [one for one in blas.lib_controllers if re.search(r"numpy(\.libs|/\.dylibs)/", one.filepath)]
    if not use_one_thread():
        assert not numpys
        pytest.skip("this NumPy has another BLAS")
    (library,) = numpys
    library.set_num_threads(2)
    assert library.num_threads == 2
    use_one_thread.__wrapped__()  # which is done once a process otherwise
    assert library.num_threads == 1
