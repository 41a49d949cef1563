"""One request, many candidates: click models served natively and by ONNX Runtime, one thread, CPU time.

The model is `ctr`'s: 26 fields of which 20 are the request's context, 13 dense features of the context, 16
factors, a network of 256-128-64. Both sides get the same weights and the same rows: whole rows that differ,
or candidates of one context, which natively comes in full or once.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from benchmarks.processes import Command, Server, running
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from headrace.base.tensors import BY_DTYPE
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.files.model_files import read_model, write_model
from headrace.ctr.files.onnx_export import export
from headrace.ctr.model_settings import ModelSettings
from headrace.frontends.wire import protos
from headrace.model.servable import DEFAULT_SIGNATURE, Servable
from headrace.runtimes import registry
from headrace.serving.engine import Engine, ModelSpec
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema

FIELDS, CONTEXT, DENSE, BUCKETS = 26, 20, 13, 40_000
CANDIDATES = (1, 32, 300)
REQUESTS = 32  # distinct ones: no table row is in a cache because the last call has just read it
TARGET = 3.0

_Inputs = Mapping[str, npt.NDArray[Any]]
_SETTINGS = ModelSettings(kind="deepfm", factors=16, hidden=(256, 128, 64))


def run(effort: Effort) -> None:
    """Measure in process and through the server.

    Args:
        effort: How much measuring is done.
    """
    with tempfile.TemporaryDirectory() as directory:
        models = Path(directory)
        features = _write(models)
        seconds = min(effort.seconds, 1.0) / 4
        print("  the runtimes alone, µs of CPU time per row")
        _print(_alone(models, features, effort.rounds, seconds), target=True)
        print("  in process, through the engine, µs of CPU time per row")
        _print(asyncio.run(_in_process(models, features, effort.rounds, seconds)))
        print("  through the server by gRPC (Open Inference), µs of the server's CPU time per row")
        _print(_through_server(models, features, effort.rounds, 4 * seconds))


def _write(models: Path) -> Features:
    categorical = [
        Field(
            name=f"c{number:02}", role="categorical", buckets=BUCKETS, keys="bucket", context=number < CONTEXT
        )
        for number in range(FIELDS)
    ]
    dense = [Field(name=f"d{number:02}", role="dense", context=True) for number in range(DENSE)]
    features = Features.of(Schema(fields=(*categorical, *dense)))
    native, onnx = models / "native" / "1", models / "onnx" / "1"
    for version in (native, onnx):
        version.mkdir(parents=True)
        (version.parent / "headrace.toml").write_text("[batching]\nmax_batch_rows = 512\n")
    write_model(native, _SETTINGS, features, _weights(features))
    export(*read_model(native), onnx / "model.onnx")
    return features


def _weights(features: Features) -> Weights:
    random = np.random.default_rng(7)

    def draw(scale: float, *shape: int) -> npt.NDArray[np.float32]:
        return random.normal(0, scale, shape).astype(np.float32)

    tables = {
        "linear": Table.of(draw(0.05, features.rows, 1)),
        "embeddings": Table.of(draw(0.05, features.rows, _SETTINGS.factors)),
    }
    for table in tables.values():
        table.values[0] = 0
    dense = {"bias": draw(0.1, 1), "dense": draw(0.1, DENSE)}
    inputs = FIELDS * _SETTINGS.factors + DENSE
    for layer, units in enumerate((*_SETTINGS.hidden, 1)):
        dense[f"layer{layer}.weights"] = draw((2 / inputs) ** 0.5, inputs, units)
        dense[f"layer{layer}.bias"] = draw(0.1, units)
        inputs = units
    return Weights(tables, dense)


def _requests(features: Features, rows: int, *, shared: bool, once: bool = False) -> list[_Inputs]:
    """Requests for the native model: of rows whose contexts differ, or are one, sent in full or once."""
    made = []
    for number in range(REQUESTS):
        random = np.random.default_rng([rows, number])
        context = random.integers(0, BUCKETS, (rows, CONTEXT), np.uint32)
        dense = random.normal(size=(rows, DENSE)).astype(np.float32)
        candidate = random.integers(0, BUCKETS, (rows, FIELDS - CONTEXT), np.uint32)
        if shared:
            count = 1 if once else rows
            context, dense = (np.repeat(one[:1], count, axis=0) for one in (context, dense))
        made.append({"context": context, "context_dense": dense, "candidate": candidate})
    return made


def _for_onnx(features: Features, requests: list[_Inputs]) -> list[_Inputs]:
    """The same rows as rows of all tables."""
    starts = features.table_starts.astype(np.uint32)
    return [
        {
            **one,
            "context": one["context"] + starts[:CONTEXT],
            "candidate": one["candidate"] + starts[CONTEXT:],
        }
        for one in requests
    ]


def _sides(features: Features, rows: int, *, once: bool) -> dict[str, tuple[str, str, list[_Inputs]]]:
    """What is compared: model, signature and requests by name."""
    whole, shared = (_requests(features, rows, shared=one) for one in (False, True))
    sent = _requests(features, rows, shared=True, once=once)
    return {
        "ONNX Runtime, differ": ("onnx", DEFAULT_SIGNATURE, _for_onnx(features, whole)),
        "ONNX Runtime, shared": ("onnx", DEFAULT_SIGNATURE, _for_onnx(features, shared)),
        "native, contexts differ": ("native", "rows", whole),
        "native, context shared": ("native", "rows", sent),
    }


# ---- Where it is measured ----

_Measured = dict[int, dict[str, list[Any]]]


def _alone(models: Path, features: Features, rounds: int, seconds: float) -> _Measured:
    loaded = {
        name: registry.load(models / name / "1", registry.RuntimeOptions(threads=1))
        for name in ("onnx", "native")
    }
    measured: _Measured = {}
    for rows in CANDIDATES:
        sides = _sides(features, rows, once=False)
        _same_answers(loaded, features, rows)
        measures = {
            name: _timed(loaded[model], signature, requests, rows, seconds)
            for name, (model, signature, requests) in sides.items()
        }
        measured[rows] = interleaved(measures, rounds)
    for servable in loaded.values():
        servable.close()
    return measured


def _same_answers(loaded: Mapping[str, Servable], features: Features, rows: int) -> None:
    requests = _requests(features, rows, shared=True)
    for ours, theirs in zip(requests, _for_onnx(features, requests), strict=True):
        one = loaded["native"].predict(ours, "rows")["probability"]
        np.testing.assert_allclose(one, loaded["onnx"].predict(theirs)["probability"], atol=1e-6)


def _timed(
    servable: Servable, signature: str, requests: list[_Inputs], rows: int, seconds: float
) -> Callable[[], float]:
    def measure() -> float:
        calls, started = 0, time.thread_time()
        while time.thread_time() - started < seconds:
            for inputs in requests:
                servable.predict(inputs, signature)
            calls += len(requests)
        return (time.thread_time() - started) / calls / rows * 1e6

    measure()
    return measure


async def _in_process(models: Path, features: Features, rounds: int, seconds: float) -> _Measured:
    measured: _Measured = {}
    async with Engine(models) as engine:
        for rows in CANDIDATES:
            sides = _sides(features, rows, once=True)
            measured[rows] = {name: [] for name in sides}
            for number in range(rounds + 1):  # the first one warms up
                for name, (model, signature, requests) in sides.items():
                    spec, calls = ModelSpec(model, signature=signature), 0
                    started = time.process_time()
                    while time.process_time() - started < seconds:
                        for inputs in requests:
                            await engine.predict(spec, inputs)
                        calls += len(requests)
                    spent = (time.process_time() - started) / calls / rows * 1e6
                    measured[rows][name] += [spent] if number else []
    return measured


def _through_server(models: Path, features: Features, rounds: int, seconds: float) -> _Measured:
    command = Command(
        "candidates",
        (sys.executable, "-m", "headrace", "serve", str(models), "--grpc-port", "{port}", "--http-port", "0"),
    )
    measured: _Measured = {}
    with (
        running(command) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.ports['grpc']}", options=_CHANNEL) as channel,
    ):
        _wait_until_ready(channel)
        for rows in CANDIDATES:
            measures = {
                name: _called(server, channel, [_message(model, signature, one) for one in requests], seconds)
                for name, (model, signature, requests) in _sides(features, rows, once=True).items()
            }
            in_rows = interleaved(measures, rounds)
            measured[rows] = {name: [one / rows for one in found] for name, found in in_rows.items()}
    return measured


_CHANNEL = (("grpc.max_receive_message_length", -1),)
_SERVICE = "/inference.GRPCInferenceService/"


def _wait_until_ready(channel: grpc.Channel) -> None:
    ready = channel.unary_unary(f"{_SERVICE}ModelReady")
    for model in ("native", "onnx"):
        request = protos.message("inference.ModelReadyRequest")(name=model).SerializeToString()
        until = time.monotonic() + 30
        while not ready(request, timeout=10, wait_for_ready=True):  # an empty message says false
            if time.monotonic() > until:
                raise RuntimeError(f"the server does not load {model}")
            time.sleep(0.05)


def _message(model: str, signature: str, inputs: _Inputs) -> bytes:
    request = protos.message("inference.ModelInferRequest")(model_name=model)
    if signature != DEFAULT_SIGNATURE:
        request.parameters["signature_name"].string_param = signature
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=BY_DTYPE[array.dtype].oip, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    message: bytes = request.SerializeToString()
    return message


def _called(
    server: Server, channel: grpc.Channel, messages: list[bytes], seconds: float
) -> Callable[[], float]:
    """One request at a time: what it costs the server, not how many it bears."""
    infer = channel.unary_unary(f"{_SERVICE}ModelInfer")

    def measure() -> float:
        calls, before, started = 0, server.counters().cpu_seconds, time.monotonic()
        while time.monotonic() - started < seconds:
            for message in messages:
                infer(message, timeout=10)
            calls += len(messages)
        return (server.counters().cpu_seconds - before) / calls * 1e6

    measure()
    return measure


# ---- What is printed ----


def _print(measured: _Measured, *, target: bool = False) -> None:
    names = list(next(iter(measured.values())))
    lines = [("candidates", *names, "ratio, differ", "ratio, shared")]
    for rows, found in measured.items():
        values = [f"{middle(found[name]):.2f}" for name in names]
        lines.append((str(rows), *values, *(f"{middle(one):.2f}" for one in _factors(found))))
    print_lines(lines)
    if target:
        most = max(measured)
        for factor, what, least in zip(
            _factors(measured[most]), ("contexts differ", "context shared"), (1.0, TARGET), strict=True
        ):
            name = f"{most} candidates, {what} >= {least} x ONNX Runtime"
            verdict(name, middle(factor) >= least, spread(factor))


def _factors(found: Mapping[str, list[Any]]) -> list[list[float]]:
    """How many times ONNX Runtime's rows, by round: of contexts that differ, and of one that is shared."""
    theirs, ours = [name for name in found if "ONNX" in name], [name for name in found if "native" in name]
    return [ratios(found[one], found[other]) for one, other in zip(theirs, ours, strict=True)]
