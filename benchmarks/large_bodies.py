"""Large legal bodies: how long each holds up a neighbour, the first time after the start and later.

Stall is the longest time that a neighbour's small request took meanwhile. Each kind has a server of its own.
`python -m benchmarks.large_bodies [NAME …]`; `PYTHONPATH` says which headrace is started, so that two can be
compared.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import grpc
import numpy as np

from headrace.frontends import protos
from tests.faults.heavy import INFER, PREDICT, REGRESS, WORDS
from tests.faults.neighbours import Connection, waits
from tests.faults.still_serves import MODEL, http_request
from tests.faults.worst_bodies import large_text
from tests.model_directories import affine, write, write_menagerie
from tests.running_server import RunningServer

_MEGABYTE = 1 << 20
_LARGE = 64 * _MEGABYTE - 4096
_MOST_SECONDS = 60.0
_GRPC_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

_FORK = multiprocessing.get_context("fork")

Call = Callable[[RunningServer], str]


def measure(names: list[str], times: int) -> None:
    """Print the stalls of some bodies.

    Args:
        names: Which.
        times: How often each is sent.
    """
    with tempfile.TemporaryDirectory() as directory:
        models = Path(directory) / "models"
        write(models, MODEL, 1, affine(1.0, 1.0))
        write_menagerie(models)
        write(models, "ages", 1, WORDS, '[signature]\nkind = "regress"\n')
        for name in names:
            call = _CALLS[name]()
            with RunningServer(models, "--allow-code") as server:
                waits(server.http_port, 0.2)
                stalls = [_once(server, call) for _ in range(times)]
            said = ", ".join(f"{stall:.2f} s ({status})" for stall, status in stalls)
            print(f"  {name:34} stall {said}", flush=True)


def _once(server: RunningServer, call: Call) -> tuple[float, str]:
    """Send a body from a process of its own, so that a neighbour waits for nothing but the server."""
    statuses: SimpleQueue[str] = _FORK.SimpleQueue()
    sender = _FORK.Process(target=lambda: statuses.put(call(server)))
    ended = threading.Event()
    sender.start()
    threading.Thread(target=lambda: (sender.join(), ended.set())).start()
    longest = max(waits(server.http_port, _MOST_SECONDS, ended))
    return longest, statuses.get() if not statuses.empty() else "none"


# ---- The bodies ----


def _http(request: bytes) -> Call:
    def call(server: RunningServer) -> str:
        connection = Connection(server.http_port)
        status = connection.send(request)
        connection.close()
        return str(status)

    return call


def _grpc(method: str, message: bytes) -> Call:
    def call(server: RunningServer) -> str:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", _GRPC_OPTIONS) as channel:
            try:
                channel.unary_unary(method)(message, timeout=_MOST_SECONDS)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    return call


def _one_text() -> Call:
    return _http(
        http_request("/v1/models/words:predict", b'{"instances":["' + b"word " * (_LARGE // 5 - 20) + b'"]}')
    )


def _one_number() -> Call:
    return _http(
        http_request("/v1/models/half_plus_two:predict", b'{"instances":[' + b"7" * (60_000_000) + b"]}")
    )


def _binary_texts(count: int, *, binary: bool = True) -> Call:
    text = b"w" * (_LARGE // count - 8)
    raw = (len(text).to_bytes(4, "little") + text) * count
    tensor = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [count],
        "parameters": {"binary_data_size": len(raw)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": binary}}).encode()
    return _http(
        http_request("/v2/models/words/infer", head + raw, f"inference-header-content-length: {len(head)}")
    )


def _infer_texts(count: int, *, raw: bool) -> Call:
    text = b"w" * (_LARGE // count - 64)
    request = protos.message("inference.ModelInferRequest")(model_name="words")
    one = request.inputs.add(name="text", datatype="BYTES", shape=[count])
    if raw:
        request.raw_input_contents.append((len(text).to_bytes(4, "little") + text) * count)
    else:
        one.contents.bytes_contents.extend([text] * count)
    return _grpc(INFER, request.SerializeToString())


def _predict_texts(count: int) -> Call:
    text = b"w" * (_LARGE // count - 64)
    tensor = protos.message("tensorflow.TensorProto")(
        dtype=7, tensor_shape={"dim": [{"size": count}]}, string_val=[text] * count
    )
    request = protos.message("tensorflow.serving.PredictRequest")(
        model_spec={"name": "words"}, inputs={"text": tensor}
    )
    return _grpc(PREDICT, request.SerializeToString())


def _example(feature: dict[str, object]) -> Call:
    given = {"city": {"bytes_list": {"value": [b"x"]}}, "age": {"float_list": {"value": [1.0]}}, **feature}
    example = protos.message("tensorflow.Example")(features={"feature": given})
    request = protos.message("tensorflow.serving.RegressionRequest")(
        model_spec={"name": "ages"}, input={"example_list": {"examples": [example]}}
    )
    return _grpc(REGRESS, request.SerializeToString())


def _example_text() -> Call:
    return _example({"city": {"bytes_list": {"value": [b"x" * 57 * _MEGABYTE]}}})


def _example_texts() -> Call:
    return _example({"other": {"bytes_list": {"value": [b"x" * 57] * _MEGABYTE}}})


def _example_numbers() -> Call:
    return _example({"other": {"float_list": {"value": np.zeros(57 * _MEGABYTE // 4, np.float32)}}})


def _example_integers() -> Call:
    return _example({"other": {"int64_list": {"value": np.full(1_000_000, 1 << 60)}}})


_CALLS: dict[str, Callable[[], Call]] = {
    "1,000 texts": lambda: _http(large_text(_LARGE)),
    "one text": _one_text,
    "one number": _one_number,
    "1,000 binary texts": lambda: _binary_texts(1000),
    "one binary text": lambda: _binary_texts(1),
    "1,000 binary texts, answer in JSON": lambda: _binary_texts(1000, binary=False),
    "ModelInfer, 1,000 raw texts": lambda: _infer_texts(1000, raw=True),
    "ModelInfer, 1,000 typed texts": lambda: _infer_texts(1000, raw=False),
    "ModelInfer, one raw text": lambda: _infer_texts(1, raw=True),
    "Predict, 1,000 texts": lambda: _predict_texts(1000),
    "Regress, an Example of one text": _example_text,
    "Regress, an Example of texts": _example_texts,
    "Regress, an Example of numbers": _example_numbers,
    "Regress, an Example of integers": _example_integers,
}


if __name__ == "__main__":
    measure(sys.argv[1:] or [*_CALLS], 3)
