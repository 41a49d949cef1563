"""Datatypes and shapes of inputs and outputs, as the protocol writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import BY_DTYPE, STRING, Array
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_fields import field_number, field_of, length_prefix
from headrace.frontends.wire.tensors import BYTES, MOST_DIMENSIONS
from headrace.frontends.wire.time_slicer import Steps
from headrace.model.servable import Signature, TensorSpec

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget

# Typed contents of the Open Inference Protocol: the field for each datatype, and writing large ones.


_Output = protos.message("inference.ModelInferResponse.InferOutputTensor")
_Contents = protos.message("inference.InferTensorContents")

_OUTPUTS = 5  # ModelInferResponse.outputs
_OUTPUT_CONTENTS = 5  # ModelInferResponse.InferOutputTensor.contents

CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}  # fmt: skip
"""The field of InferTensorContents for each datatype; FP16 and BF16 have none."""


def writing_output(spec: TensorSpec, tensor: Array, budget: RequestBudget) -> Steps[list[bytes]]:
    """Serialize an output with typed contents as a field of the response, in pieces and small steps.

    Args:
        spec: The output, whose datatype has typed contents.
        tensor: The values.
        budget: Charged with the bytes written.

    Raises:
        Overloaded: The byte budget of all requests is exhausted.
    """
    datatype = datatype_name(spec)
    head: bytes = _Output(name=spec.name, datatype=datatype, shape=tensor.shape).SerializeToString()
    number = field_number(_Contents, CONTENTS[datatype])
    values = yield from field_of(number, tensor, budget)
    size = sum(map(len, values))
    before = length_prefix(_OUTPUT_CONTENTS, size)
    return [length_prefix(_OUTPUTS, len(head) + len(before) + size), head, before, *values]


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
