"""The rows that every side of a benchmark gets, and the request bodies made of them."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.models import BUCKETS, DENSE, FIELDS

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Rows:
    """Some rows of `ctr`'s inputs.

    Attributes:
        cat: The hashed fields, INT32 [rows, 26].
        dense: The dense fields, FP32 [rows, 13].
    """

    cat: Integers
    dense: Floats

    def __len__(self) -> int:
        return len(self.cat)

    @property
    def inputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """The inputs by name."""
        return {"cat": self.cat, "dense": self.dense}


def rows_of_request(rows: int, number: int) -> Rows:
    """The rows of one distinct request: the same number, the same rows, on every machine.

    Args:
        rows: How many.
        number: Which request.
    """
    random = np.random.default_rng([rows, number])
    cat = random.integers(0, BUCKETS, (rows, FIELDS), dtype=np.int32)
    return Rows(cat, random.normal(size=(rows, DENSE)).astype(np.float32))


def joined(parts: list[Rows]) -> Rows:
    """The rows of several requests, one after the other."""
    return Rows(np.concatenate([part.cat for part in parts]), np.concatenate([part.dense for part in parts]))


@functools.cache
def inference() -> tuple[ModuleType, ModuleType]:
    """The messages and stubs of infer.proto, made by grpcio-tools as they are needed."""
    import grpc  # noqa: PLC0415  # A heavy package of the harness alone.

    messages, services = grpc.protos_and_services("benchmarks/infer.proto")
    return messages, services


def grpc_request(rows: Rows) -> Any:
    """A ModelInfer request with raw contents, as tritonclient sends them."""
    messages, _ = inference()
    request = messages.ModelInferRequest(model_name="ctr")
    for name, datatype, array in (("cat", "INT32", rows.cat), ("dense", "FP32", rows.dense)):
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def grpc_body(rows: Rows) -> bytes:
    """The request as it travels: gRPC's prefix of five bytes, then the message."""
    message: bytes = grpc_request(rows).SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


def json_body(rows: Rows) -> bytes:
    """The request as TensorFlow Serving's row format; floats as short as nothing is lost."""
    instances = [
        {"cat": cat.tolist(), "dense": [float(str(value)) for value in dense]}
        for cat, dense in zip(rows.cat, rows.dense, strict=True)
    ]
    return json.dumps({"instances": instances}).encode()


def raw_body(rows: Rows) -> bytes:
    """The request without any format: the bytes of `cat`, then those of `dense`."""
    return rows.cat.tobytes() + rows.dense.tobytes()


class Reference:
    """ONNX Runtime in this process: what the answers must be."""

    def __init__(self, model: Path) -> None:
        """Load a model.

        Args:
            model: The ONNX file.
        """
        import onnxruntime  # noqa: PLC0415  # As above.

        self._session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])

    def answer(self, rows: Rows) -> Floats:
        """The predictions, one a row."""
        answer: Floats = self._session.run(None, dict(rows.inputs))[0].ravel()
        return answer
