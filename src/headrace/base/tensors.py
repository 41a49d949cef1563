"""Tensors, the data that all layers exchange: NumPy arrays by name, whose first axis is rows.

Numbers and booleans are arrays of their native little-endian dtype. Strings are object arrays whose elements
are ``bytes``; text is UTF-8. ``DATATYPES`` is the one table of supported element types, with their names in
both protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
Buffer = bytes | bytearray | memoryview | Array
"""One request's values of one input: C-contiguous, of the layout's dtype; strings are an object array."""

STRING = np.dtype(object)


@dataclass(frozen=True, slots=True)
class Datatype:
    """One element type that a tensor may have, with its names on the wire.

    Attributes:
        dtype: The NumPy dtype that headrace holds it in.
        oip: Its name in the Open Inference Protocol.
        tensorflow: Its number in TensorFlow's ``DataType`` enum.
        tensorflow_name: Its name in that enum.
    """

    dtype: np.dtype[Any]
    oip: str
    tensorflow: int
    tensorflow_name: str


DATATYPES: tuple[Datatype, ...] = (
    Datatype(np.dtype(np.float32), "FP32", 1, "DT_FLOAT"),
    Datatype(np.dtype(np.float64), "FP64", 2, "DT_DOUBLE"),
    Datatype(np.dtype(np.int32), "INT32", 3, "DT_INT32"),
    Datatype(np.dtype(np.uint8), "UINT8", 4, "DT_UINT8"),
    Datatype(np.dtype(np.int16), "INT16", 5, "DT_INT16"),
    Datatype(np.dtype(np.int8), "INT8", 6, "DT_INT8"),
    Datatype(STRING, "BYTES", 7, "DT_STRING"),
    Datatype(np.dtype(np.int64), "INT64", 9, "DT_INT64"),
    Datatype(np.dtype(np.bool_), "BOOL", 10, "DT_BOOL"),
    Datatype(np.dtype(np.uint16), "UINT16", 17, "DT_UINT16"),
    Datatype(np.dtype(np.float16), "FP16", 19, "DT_HALF"),
    Datatype(np.dtype(np.uint32), "UINT32", 22, "DT_UINT32"),
    Datatype(np.dtype(np.uint64), "UINT64", 23, "DT_UINT64"),
)

BY_DTYPE: dict[np.dtype[Any], Datatype] = {datatype.dtype: datatype for datatype in DATATYPES}
BY_NUMPY: dict[str, np.dtype[Any]] = {dtype.str: dtype for dtype in BY_DTYPE}
"""Dtypes by NumPy's name, for names from outside, which ``np.dtype`` would parse as expressions."""
BY_OIP: dict[str, Datatype] = {datatype.oip: datatype for datatype in DATATYPES}
BY_TENSORFLOW: dict[int, Datatype] = {datatype.tensorflow: datatype for datatype in DATATYPES}


def held_bytes(array: Array) -> int:
    """Return the size of an array in bytes, including its texts."""
    return array.nbytes + (sum(map(len, array.flat)) if array.dtype == STRING else 0)


def is_masked(value: object, depth: int) -> bool:
    """Return whether an array, or one in lists, has masked values, which ``np.asarray`` would reveal.

    Args:
        value: An array, or arrays in nested lists.
        depth: How many levels of lists are searched.
    """
    if isinstance(value, np.ma.MaskedArray):
        return bool(np.ma.is_masked(value))
    return depth > 0 and isinstance(value, list | tuple) and any(is_masked(one, depth - 1) for one in value)


def describe(array: Array) -> str:
    """Return an array's datatype and shape as short text, for error messages."""
    datatype = BY_DTYPE.get(array.dtype)
    name = datatype.oip if datatype else str(array.dtype)
    return f"{name} {list(array.shape)}"
