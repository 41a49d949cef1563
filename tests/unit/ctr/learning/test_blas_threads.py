"""NumPy's BLAS has no threads of its own where models learn."""

from __future__ import annotations

import time

import numpy as np
import pytest

from headrace.ctr.learning.blas_threads import use_one_thread


def test_products_take_no_more_processor_time_than_time() -> None:
    if not use_one_thread():
        pytest.skip("this NumPy has another BLAS")
    square = np.ones((1500, 1500), np.float32)
    began, cpu_began = time.perf_counter(), time.process_time()
    for _ in range(3):
        square @ square
    assert time.process_time() - cpu_began < 1.3 * (time.perf_counter() - began)
