"""The protocol's words for an input or output: its datatype, and its shape with the rows."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import InvalidRequest
from headrace.frontends.wire.tensors import BYTES, MOST_DIMENSIONS
from headrace.servable import Signature, TensorSpec
from headrace.tensors import BY_DTYPE, STRING


def datatype_name(spec: TensorSpec) -> str:
    """The datatype of an input or output in the protocol's words."""
    return BY_DTYPE[spec.dtype].oip


def metadata_shape(signature: Signature, spec: TensorSpec) -> list[int]:
    """The shape of an input or output with its rows, -1 for what may vary."""
    return [signature.rows or -1, *(-1 if size is None else size for size in spec.shape)]


def refuse_texts(spec: TensorSpec, datatype: str, shape: Sequence[int]) -> None:
    """Refuse texts for an input of numbers before one is decoded.

    Args:
        spec: What is wanted.
        datatype: What the client says that it sends.
        shape: In which shape.

    Raises:
        InvalidRequest: Texts would come.
    """
    if datatype == BYTES and spec.dtype != STRING:
        raise InvalidRequest(
            f"expected {spec}, got {BYTES} {list(shape[:MOST_DIMENSIONS])}; convert it before sending, "
            "nothing is lost silently",
            field=spec.name,
        )
