"""Arguments that are laid out once are what they would be if they were passed at each call."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.jit.packed_arguments import Standing, given


class _Sizes(NamedTuple):
    length: tuple[None, ...]
    shift: int


class _Model(NamedTuple):
    sizes: _Sizes
    weights: Array
    rows: Array


@numba.njit
def _read(model: Standing[_Model], more: int) -> tuple[int, int, float, int, int]:
    value = given(model)
    return (
        len(value.sizes.length),
        value.sizes.shift,
        value.weights[-1],
        value.rows[1, 2] + more,
        value.rows.shape[0],
    )


@pytest.mark.parametrize("length", [0, 3])
def test_a_kernel_is_given_the_tuple(length: int) -> None:
    rows = np.arange(6, dtype=np.uint32).reshape(2, 3)
    model = _Model(_Sizes((None,) * length, -5), np.array([1.5, 2.5], np.float32), rows)
    assert _read(Standing(model), 1) == (length, -5, 2.5, 6, 2)
    rows[1, 2] = 70  # arrays are not copied
    assert _read(Standing(model), 1)[3] == 71


def test_only_whole_words_are_laid_out() -> None:
    with pytest.raises(TypeError, match="bool"):
        Standing((True,))
