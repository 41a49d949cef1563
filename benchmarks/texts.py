"""Click models that are sent texts, beside one that is sent integers: CPU per request, 64 in flight.

`words` has 12 fields of one text and one of 8 tags, `numbers` has 26 fields of integers and 13 numbers; both
are factorization machines with 8 factors. Each is asked with 1 row and with 32, by ModelInfer with raw
contents, by TensorFlow Serving's Predict (`string_val`), and by TensorFlow Serving's JSON in rows.
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from benchmarks.h2load import METHOD
from benchmarks.load import GRPC_BODIES, HTTP_BODIES, Sample, measure_grpc, measure_http
from benchmarks.processes import Server, http_post, running
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from benchmarks.sides import headrace
from headrace.base.tensors import BY_DTYPE, Tensors
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.files.model_files import write_model
from headrace.ctr.model_settings import ModelSettings
from headrace.frontends.wire import protos
from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.runtimes.ctr import servable_of
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema

TEXTS, TAGS, INTEGERS, NUMBERS, BUCKETS = 12, 8, 26, 13, 40_000
ROWS = (1, 32)
WIRES = ("raw", "string_val", "json")
PREDICT = "/tensorflow.serving.PredictionService/Predict"
MOST_TIMES = {1: 60 / 33, 32: 5 / 4.1}
"""How many times what the integers cost a row may cost over gRPC, by the rows of its request: the
microseconds of the machine on which the target was set."""
MOST_JSON = 2.0
"""The same in JSON."""

_SETTINGS = ModelSettings(kind="fm", factors=8)
_TOLERANCE = 1e-6
_IN_FLIGHT = 64
_FEWEST_CALLS = 200
_WARM_CALLS = 600
_READY_SECONDS = 300.0


@dataclass(frozen=True)
class Asked:
    """One kind of request.

    Attributes:
        model: `words` or `numbers`.
        wire: How the values travel.
        rows: How many rows it has.
    """

    model: str
    wire: str
    rows: int

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.model}, {self.wire}, {self.rows} row{'s' * (self.rows > 1)}"


def run(effort: Effort) -> None:
    """Measure all kinds in turns, on one server.

    Args:
        effort: How much measuring is done.
    """
    kinds = [Asked(model, wire, rows) for rows in ROWS for wire in WIRES for model in ("numbers", "words")]
    with tempfile.TemporaryDirectory() as directory:
        models = {name: _write(Path(directory), name, schema) for name, schema in _SCHEMAS.items()}
        with running(headrace("grpc", Path(directory)).command) as server:
            _wait_until_ready(server)
            measures = {kind.name: _load(server, kind, models[kind.model], effort.seconds) for kind in kinds}
            measured = interleaved(measures, effort.rounds)
    cpu = {kind: [one.cpu_microseconds / kind.rows for one in measured[kind.name]] for kind in kinds}
    lines = [("", "CPU µs/row", "requests/s", "failed")]
    for kind in kinds:
        samples: list[Sample] = measured[kind.name]
        rate = middle([one.per_second for one in samples])
        lines.append(
            (kind.name, spread(cpu[kind], 1), f"{rate:,.0f}", str(sum(one.failures for one in samples)))
        )
    print_lines(lines)
    for kind in kinds:
        if kind.model == "words":
            _judge(kind, cpu)


def _judge(kind: Asked, cpu: Mapping[Asked, list[float]]) -> None:
    times = ratios(cpu[kind], cpu[Asked("numbers", kind.wire, kind.rows)])
    most = MOST_JSON if kind.wire == "json" else MOST_TIMES[kind.rows]
    verdict(f"{kind.name}, CPU ≤ {most:.1f} × the integers'", middle(times) <= most, spread(times))


# ---- The models, and what they are asked ----


def _fields(count: int, **settings: Any) -> list[Field]:
    kind = "t" if settings.get("text") else "c"
    return [
        Field(name=f"{kind}{number:02}", role="categorical", buckets=BUCKETS, **settings)
        for number in range(count)
    ]


_SCHEMAS = {
    "words": Schema(
        fields=(
            *_fields(TEXTS, text=True),
            Field(name="tags", role="categorical", buckets=BUCKETS, text=True, values=TAGS),
        )
    ),
    "numbers": Schema(
        fields=(*_fields(INTEGERS), *(Field(name=f"d{number:02}", role="dense") for number in range(NUMBERS)))
    ),
}


def _write(models: Path, name: str, schema: Schema) -> Path:
    random, features = np.random.default_rng(7), Features.of(schema)
    tables = {
        table: Table.of(random.normal(0, 0.05, (features.rows, width)).astype(np.float32))
        for table, width in (("linear", 1), ("embeddings", _SETTINGS.factors))
    }
    dense = {"bias": np.zeros(1, np.float32), "dense": np.full(features.dense_width, 0.1, np.float32)}
    version = models / name / "1"
    version.mkdir(parents=True)
    write_model(version, _SETTINGS, features, Weights(tables, dense))
    return version


def _inputs(kind: Asked, number: int) -> Tensors:
    """The values of one distinct request; users and sites come in many lengths."""
    random = np.random.default_rng([kind.rows, number])
    if kind.model == "words":
        made = {f"t{field:02}": _texts(random, kind.rows) for field in range(TEXTS)}
        return {**made, "tags": _texts(random, kind.rows * TAGS).reshape(kind.rows, TAGS)}
    inputs: dict[str, npt.NDArray[Any]] = {
        f"c{field:02}": random.integers(0, 1 << 40, kind.rows) for field in range(INTEGERS)
    }
    for field in range(NUMBERS):
        inputs[f"d{field:02}"] = random.normal(size=kind.rows).astype(np.float32)
    return inputs


def _texts(random: np.random.Generator, count: int) -> npt.NDArray[Any]:
    letters = random.integers(ord("a"), ord("z") + 1, (count, 16), np.uint8)
    sizes = random.integers(4, 17, count)
    made = [bytes(text[:size]) for text, size in zip(letters, sizes, strict=True)]
    return np.array([*made, None], dtype=object)[:-1]


# ---- The messages ----


def _raw_message(kind: Asked, inputs: Tensors) -> bytes:
    request = protos.message("inference.ModelInferRequest")(model_name=kind.model)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=BY_DTYPE[array.dtype].oip, shape=array.shape)
        if array.dtype == object:
            raw = b"".join(struct.pack("<I", len(text)) + text for text in array.ravel())
            request.raw_input_contents.append(raw)
        else:
            request.raw_input_contents.append(array.tobytes())
    message: bytes = request.SerializeToString()
    return message


def _predict_message(kind: Asked, inputs: Tensors) -> bytes:
    request = protos.message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = kind.model
    for name, array in inputs.items():
        tensor = request.inputs[name]
        tensor.dtype = BY_DTYPE[array.dtype].tensorflow
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        if array.dtype == object:
            tensor.string_val.extend(array.ravel().tolist())
        else:
            tensor.tensor_content = array.tobytes()
    message: bytes = request.SerializeToString()
    return message


def _json_body(inputs: Tensors) -> bytes:
    columns = {name: _plain(array.tolist()) for name, array in inputs.items()}
    rows = zip(*columns.values(), strict=True)
    return json.dumps({"instances": [dict(zip(columns, row, strict=True)) for row in rows]}).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


# ---- Asking ----


def _wait_until_ready(server: Server) -> None:
    """Until all models are there: kernels that are not kept are compiled first."""
    deadline = time.monotonic() + _READY_SECONDS
    url = f"http://127.0.0.1:{server.ports['http']}/v2/health/ready"
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _load(server: Server, kind: Asked, version: Path, seconds: float) -> Callable[[], Sample]:
    """Check each answer, warm up, and say how to load the server for one round."""
    distinct = [
        _inputs(kind, number) for number in range(HTTP_BODIES if kind.wire == "json" else GRPC_BODIES)
    ]
    servable = servable_of(version)
    wanted = [servable.predict(inputs, DEFAULT_SIGNATURE)["probability"] for inputs in distinct]
    if kind.wire == "json":
        return _load_http(server, kind, [_json_body(inputs) for inputs in distinct], wanted, seconds)
    make, method = (_raw_message, METHOD) if kind.wire == "raw" else (_predict_message, PREDICT)
    messages = [make(kind, inputs) for inputs in distinct]
    size = 0
    for message, answer in zip(messages, wanted, strict=True):
        size = 5 + _check_grpc(server, method, message, answer)
    bodies = [struct.pack(">BI", 0, len(message)) + message for message in messages]

    def load(calls: int) -> Sample:
        return measure_grpc(server, bodies, size, calls, _IN_FLIGHT, method)

    rate = load(_WARM_CALLS).per_second
    return lambda: load(max(_FEWEST_CALLS, round(rate * seconds)))


def _check_grpc(server: Server, method: str, message: bytes, wanted: npt.NDArray[Any]) -> int:
    """Ask one request, and check its answer.

    Returns:
        The size of the answer.
    """
    with grpc.insecure_channel(f"127.0.0.1:{server.ports['grpc']}") as channel:
        received = channel.unary_unary(method)(message, timeout=20, wait_for_ready=True)
    if method == METHOD:
        answer = protos.message("inference.ModelInferResponse").FromString(received)
        got = np.frombuffer(answer.raw_output_contents[0], np.float32)
    else:
        predicted = protos.message("tensorflow.serving.PredictResponse").FromString(received)
        got = np.array(predicted.outputs["probability"].float_val, np.float32)
    _check(got, wanted)
    return len(received)


def _check(got: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    if got.shape != wanted.shape or not np.allclose(got, wanted, rtol=0, atol=_TOLERANCE):
        raise RuntimeError(f"the server answers {got[:4]}…, the model {wanted[:4]}…")


def _load_http(
    server: Server, kind: Asked, bodies: list[bytes], wanted: list[npt.NDArray[Any]], seconds: float
) -> Callable[[], Sample]:
    path, content_type = f"/v1/models/{kind.model}:predict", "application/json"
    for body, answer in zip(bodies, wanted, strict=True):
        received = http_post(server.ports["http"], path, body, content_type)
        _check(np.array(json.loads(received)["predictions"], np.float32), answer)
    measure_http(server, path, content_type, bodies, 1.0)
    return lambda: measure_http(server, path, content_type, bodies, seconds)
