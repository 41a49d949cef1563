"""A network of 30 columns and 64 units in each framework for networks, and a click model of that size.

The frameworks are imported when the benchmark runs. Weights are random: the time does not depend on them.
"""

from __future__ import annotations

import importlib
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runtime_subject import COLUMNS, Call, Subject
from headrace.base.tensors import Array, Tensors
from headrace.ctr.factory import create
from headrace.ctr.files.model_files import read_model, write_model
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.serving.context import GroupedScorer
from headrace.runtimes.ctr import servable_of
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema

UNITS = 64
FIELDS, BUCKETS = 26, 1000


def _inputs(rows: Array) -> Tensors:
    return {"features": rows.astype(np.float32)}


# --- TensorFlow, Keras, LiteRT ---


def _keras() -> Any:
    importlib.import_module("headrace.runtimes.tensorflow")  # before TensorFlow, beside PyTorch
    import keras  # noqa: PLC0415 - imported when the benchmark runs

    layers = [keras.layers.Dense(UNITS, "relu"), keras.layers.Dense(1, "sigmoid")]
    return keras.Sequential([keras.Input((COLUMNS,), name="features"), *layers])


def _write_tensorflow(version: Path) -> None:
    _keras().export(str(version), verbose=False)


def _tensorflow_alone(version: Path, features: Array) -> Call:
    """A prepared call of a session in the calling thread, which TensorFlow has no public method for."""
    from tensorflow.compat import v1  # noqa: PLC0415 - as above
    from tensorflow.core.protobuf.config_pb2 import CallableOptions  # noqa: PLC0415 - as above

    settings = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1)
    session = v1.Session(graph=v1.Graph(), config=settings)
    with session.graph.as_default():
        signature = v1.saved_model.load(session, ["serve"], str(version)).signature_def["serving_default"]
    (given,), (answer,) = signature.inputs.values(), signature.outputs.values()
    call = session._make_callable_from_options(CallableOptions(feed=[given.name], fetch=[answer.name]))
    return partial(call, features.astype(np.float32))


def _write_keras(version: Path) -> None:
    _keras().save(str(version / "model.keras"))


def _keras_alone(version: Path, features: Array) -> Call:
    """The model compiled by XLA for these rows: the fastest of the calls that are documented."""
    import keras  # noqa: PLC0415 - as above
    import tensorflow  # noqa: PLC0415 - as above

    model = keras.saving.load_model(str(version / "model.keras"))
    rows = tensorflow.constant(features.astype(np.float32))
    compiled = tensorflow.function(lambda given: model(given, training=False), jit_compile=True)
    call = compiled.get_concrete_function(tensorflow.TensorSpec(rows.shape, rows.dtype))
    return lambda: call(rows).numpy()


def _write_litert(version: Path) -> None:
    from tensorflow import lite  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as saved:
        _keras().export(saved, verbose=False)
        (version / "model.tflite").write_bytes(lite.TFLiteConverter.from_saved_model(saved).convert())


def _litert_alone(version: Path, features: Array) -> Call:
    from ai_edge_litert.interpreter import Interpreter  # noqa: PLC0415 - as above

    interpreter, rows = Interpreter(str(version / "model.tflite"), num_threads=1), features.astype(np.float32)
    given, answer = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    interpreter.resize_tensor_input(given, rows.shape)
    interpreter.allocate_tensors()

    def call() -> Array:
        interpreter.set_tensor(given, rows)
        interpreter.invoke()
        found: Array = interpreter.get_tensor(answer)
        return found

    return call


# --- PyTorch ---


def _write_torch(version: Path) -> None:
    import torch  # noqa: PLC0415 - as above

    class Network(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch may not be installed
        def __init__(self) -> None:
            super().__init__()
            last = torch.nn.Linear(UNITS, 1)
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(COLUMNS, UNITS), torch.nn.ReLU(), last, torch.nn.Sigmoid()
            )

        def forward(self, features: Any) -> Any:
            return self.layers(features)

    sizes = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(Network().eval(), (torch.zeros(4, COLUMNS),), dynamic_shapes=sizes)
    torch.export.save(program, str(version / "model.pt2"))


def _torch_alone(version: Path, features: Array) -> Call:
    import torch  # noqa: PLC0415 - as above

    module = torch.export.load(str(version / "model.pt2")).module()
    rows = torch.from_numpy(features.astype(np.float32))

    def call() -> Array:
        with torch.inference_mode():
            found: Array = module(rows).numpy()
        return found

    return call


# --- click models ---

_SCHEMA = Schema(
    fields=(
        *(Field(name=f"c{at}", role="categorical", buckets=BUCKETS, keys="bucket") for at in range(FIELDS)),
        *(Field(name=f"d{at}", role="dense") for at in range(FIELDS, COLUMNS)),
        Field(name="click", role="label"),
    )
)


def _click_inputs(rows: Array) -> Tensors:
    buckets = (np.abs(rows[:, :FIELDS]) * 100).astype(np.int64) % BUCKETS
    inputs = {f"c{at}": buckets[:, at].copy() for at in range(FIELDS)}
    return inputs | {f"d{at}": rows[:, at].astype(np.float32) for at in range(FIELDS, COLUMNS)}


def _write_click_model(version: Path) -> None:
    settings, features = ModelSettings(kind="deepfm", factors=8, hidden=(UNITS,)), Features.of(_SCHEMA)
    write_model(version, settings, features, create(settings, features).strip())


def _click_model_alone(version: Path, features: Array) -> Call:
    """The kernels on rows whose places in the tables are found already."""
    placed = servable_of(version)._place_fields(_click_inputs(features))
    return partial(GroupedScorer(*read_model(version)).predict, *placed)


NETWORKS = {
    "tensorflow": Subject(_write_tensorflow, _tensorflow_alone, _inputs, needs="tensorflow"),
    "keras": Subject(_write_keras, _keras_alone, _inputs, needs="keras"),
    "litert": Subject(_write_litert, _litert_alone, _inputs, needs="ai_edge_litert"),
    "torch": Subject(_write_torch, _torch_alone, _inputs, allow_code=True, needs="torch"),
    "click model": Subject(_write_click_model, _click_model_alone, _click_inputs),
}
