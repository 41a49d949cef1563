"""Datatypes and shapes of inputs and outputs, as the protocol writes them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import BY_DTYPE, STRING
from headrace.frontends.wire.tensors import BYTES, MOST_DIMENSIONS
from headrace.model.servable import Signature, TensorSpec


def datatype_name(spec: TensorSpec) -> str:
    """Return the protocol's datatype of an input or output."""
    return BY_DTYPE[spec.dtype].oip


def metadata_shape(signature: Signature, spec: TensorSpec) -> list[int]:
    """Return the shape of an input or output including the rows, with -1 for sizes that may vary."""
    return [signature.rows or -1, *(-1 if size is None else size for size in spec.shape)]


def refuse_texts(spec: TensorSpec, datatype: str, shape: Sequence[int]) -> None:
    """Refuse texts for a numeric input, before any is decoded.

    Args:
        spec: The input.
        datatype: Datatype that the client sent.
        shape: Shape that the client sent.

    Raises:
        InvalidRequest: The datatype is BYTES and the input is numeric.
    """
    if datatype == BYTES and spec.dtype != STRING:
        raise InvalidRequest(
            f"expected {spec}, got {BYTES} {list(shape[:MOST_DIMENSIONS])}; convert it before sending, as "
            "headrace does not",
            field=spec.name,
        )
