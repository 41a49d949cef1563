"""The one table of what can travel."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.tensors import (
    BY_DTYPE,
    BY_OIP,
    BY_TENSORFLOW,
    DATATYPES,
    STRING,
    Datatype,
    describe,
    is_masked,
)

every_datatype = pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.oip)
MASKED = np.ma.array([1.0, 99.0], mask=[False, True])


@every_datatype
def test_each_datatype_is_found_by_each_of_its_names(datatype: Datatype) -> None:
    assert BY_DTYPE[datatype.dtype] is datatype
    assert BY_OIP[datatype.oip] is datatype
    assert BY_TENSORFLOW[datatype.tensorflow] is datatype


def test_no_two_datatypes_share_a_name() -> None:
    assert len(BY_DTYPE) == len(BY_OIP) == len(BY_TENSORFLOW) == len(DATATYPES)
    assert len({datatype.tensorflow_name for datatype in DATATYPES}) == len(DATATYPES)


@every_datatype
def test_numbers_have_the_size_that_their_name_says(datatype: Datatype) -> None:
    bits = datatype.oip.lstrip("FPUINTBOLYES")
    if bits:
        assert datatype.dtype.itemsize * 8 == int(bits)
    else:
        assert datatype.dtype in (STRING, np.dtype(np.bool_))


@every_datatype
def test_numbers_are_little_endian_as_on_the_wire(datatype: Datatype) -> None:
    assert datatype.dtype == datatype.dtype.newbyteorder("<") or datatype.dtype == STRING


@every_datatype
def test_a_tensor_is_described_by_name_and_shape(datatype: Datatype) -> None:
    assert describe(np.zeros((2, 3), datatype.dtype)) == f"{datatype.oip} [2, 3]"


def test_unsupported_dtypes_can_be_described() -> None:
    assert describe(np.zeros((1,), np.complex64)) == "complex64 [1]"


@pytest.mark.parametrize(
    ("value", "depth", "expected"),
    [
        (MASKED, 0, True),
        (np.ma.masked, 0, True),
        (np.ma.array([1.0], mask=False), 0, False),
        (np.array([1.0]), 0, False),
        ([MASKED], 0, False),
        ([np.array([1.0, 2.0]), MASKED], 1, True),
        (([MASKED],), 2, True),
        (([MASKED],), 1, False),
        (None, 1, False),
        ("text", 1, False),
    ],
)
def test_masked_values_are_found_in_lists_of_that_depth(value: object, depth: int, expected: bool) -> None:
    assert is_masked(value, depth) is expected
