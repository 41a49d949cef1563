"""Models of some size, whose memory is shared: a click model, and ONNX with external data."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from headrace.ctr.files.model_files import write_model
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from headrace.versions.manifest import publish
from tests.click_weights import weights_for

_FACTORS = 31
_ROW_BYTES = 4 * (_FACTORS + 1)


def publish_clicks(models: Path, size_bytes: int, seed: int = 0) -> Path:
    """Publish a click model whose tables have about a size."""
    fields = (
        Field(name="clicked", role="label"),
        Field(name="ad", role="categorical", buckets=max(1, size_bytes // _ROW_BYTES)),
        Field(name="user", role="categorical", buckets=100, context=True),
    )
    settings = ModelSettings(kind="fm", factors=_FACTORS)
    features = Features.of(Schema(fields=fields))
    weights = weights_for(settings, features, seed)
    write = partial(write_model, settings=settings, features=features, weights=weights)
    return publish(write, models / "clicks")


def publish_lookup(models: Path, size_bytes: int, seed: int = 0) -> Path:
    """Publish an ONNX model that looks rows up in a table of a size, which lies in a file beside it."""
    table = np.random.default_rng(seed).standard_normal((max(1, size_bytes // 128), 32), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ad"], ["row"])],
        "lookup",
        [helper.make_tensor_value_info("ad", TensorProto.INT64, ["rows"])],
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, ["rows", 32])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def write(directory: Path) -> None:
        file = directory / "model.onnx"
        onnx.save(model, file, save_as_external_data=True, location="model.data", size_threshold=0)

    return publish(write, models / "lookup")
