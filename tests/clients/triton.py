"""Drives a server with tritonclient and prints what it answered, as JSON.

Run by tests in the clients' environment.
Usage: triton.py http|grpc|http-asyncio|grpc-asyncio|grpc-stream HOST:PORT
"""

from __future__ import annotations

import asyncio
import inspect
import json
import queue
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_asyncio
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_asyncio
from tritonclient.utils import InferenceServerException

Answers = dict[str, Any]


async def value(answer: Any) -> Any:
    """The four clients differ in whether a call is awaited."""
    return await answer if inspect.isawaitable(answer) else answer


def tensor(module: ModuleType, name: str, array: np.ndarray, datatype: str, *, binary: bool = True) -> Any:
    made = module.InferInput(name, list(array.shape), datatype)
    if module in (over_http, over_http_asyncio):
        made.set_data_from_numpy(array, binary_data=binary)
    else:
        made.set_data_from_numpy(array)
    return made


def x(module: ModuleType, values: list[float], *, binary: bool = True) -> Any:
    return tensor(module, "x", np.array(values, np.float32), "FP32", binary=binary)


async def refusal(call: Callable[[], Any]) -> list[str]:
    try:
        await value(call())
    except InferenceServerException as error:
        return [str(error.status()), error.message()]
    return []


async def describe(client: Any, as_json: dict[str, bool]) -> Answers:
    """Health, metadata, configuration, statistics, the repository's index."""
    return {
        "live": await value(client.is_server_live()),
        "ready": await value(client.is_server_ready()),
        "model ready": await value(client.is_model_ready("half_plus_two")),
        "version ready": await value(client.is_model_ready("half_plus_two", "2")),
        "missing model ready": await value(client.is_model_ready("missing")),
        "server metadata": await value(client.get_server_metadata(**as_json)),
        "metadata": await value(client.get_model_metadata("pair", **as_json)),
        "config": await value(client.get_model_config("pair", **as_json)),
        "index": await value(client.get_model_repository_index(**as_json)),
    }


async def infer(module: ModuleType, client: Any) -> Answers:
    """What every client can ask for, in the same words."""
    requested = module.InferRequestedOutput
    a = tensor(module, "a", np.array([[1, 2, 3], [4, 5, 6]], np.float32), "FP32")
    b = tensor(module, "b", np.array([10, 20]), "INT64")
    text = tensor(module, "text", np.array([b"one", "zwölf".encode(), b""], object), "BYTES")
    plain = await value(client.infer("half_plus_two", [x(module, [1, 2, 5])], request_id="mine"))
    stable = await value(client.infer("half_plus_two", [x(module, [1])], model_version="1"))
    one = await value(client.infer("pair", [b, a], outputs=[requested("largest")]))
    two = await value(client.infer("pair", [a, b]))
    echo = await value(client.infer("words", [text]))
    wide = tensor(module, "x", np.ones((2, 3), np.float32), "FP32")
    integers = tensor(module, "x", np.ones(2, np.int64), "INT64")
    return {
        "y": plain.as_numpy("y").tolist(),
        "stable": stable.as_numpy("y").tolist(),
        "only largest": [one.as_numpy("largest").tolist(), one.as_numpy("total") is None],
        "total": two.as_numpy("total").tolist(),
        "echo": [bytes(word).decode() for word in echo.as_numpy("echo")],
        "no such model": await refusal(lambda: client.infer("missing", [x(module, [1])])),
        "no such version": await refusal(
            lambda: client.infer("half_plus_two", [x(module, [1])], model_version="9")
        ),
        "wrong shape": await refusal(lambda: client.infer("half_plus_two", [wide])),
        "wrong datatype": await refusal(lambda: client.infer("half_plus_two", [integers])),
        "no such output": await refusal(
            lambda: client.infer("half_plus_two", [x(module, [1])], outputs=[requested("z")])
        ),
        "loading is off": await refusal(lambda: client.load_model("pair")),
    }


async def http(address: str) -> Answers:
    client = over_http.InferenceServerClient(address, concurrency=4)
    answers = await describe(client, {}) | await infer(over_http, client)
    asked = [client.async_infer("half_plus_two", [x(over_http, [number])]) for number in range(8)]
    answers["async"] = [one.get_result().as_numpy("y").tolist() for one in asked]
    answers |= await http_only(over_http, client)
    answers["statistics"] = client.get_inference_statistics("pair")
    client.close()
    return answers


async def http_only(module: ModuleType, client: Any) -> Answers:
    """JSON instead of binary tensors, and compressed bodies."""
    as_json = await value(
        client.infer(
            "half_plus_two",
            [x(module, [1, 2, 5], binary=False)],
            outputs=[module.InferRequestedOutput("y", binary_data=False)],
        )
    )
    answers = {"as JSON": as_json.get_response()["outputs"]}
    many = np.arange(5000, dtype=np.float32)
    for algorithm in ("gzip", "deflate"):
        packed = await value(
            client.infer(
                "half_plus_two",
                [tensor(module, "x", many, "FP32")],
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
        )
        answers[algorithm] = bool(np.allclose(packed.as_numpy("y"), many / 2 + 3))
    return answers


async def http_asyncio(address: str) -> Answers:
    async with over_http_asyncio.InferenceServerClient(address) as client:
        answers = await describe(client, {}) | await infer(over_http_asyncio, client)
        answers |= await http_only(over_http_asyncio, client)
        answers["async"] = await gathered(over_http_asyncio, client)
        answers["statistics"] = await client.get_inference_statistics("pair")
    return answers


async def gathered(module: ModuleType, client: Any) -> list[list[float]]:
    asked: list[Awaitable[Any]] = [
        client.infer("half_plus_two", [x(module, [number])]) for number in range(8)
    ]
    return [one.as_numpy("y").tolist() for one in await asyncio.gather(*asked)]


async def grpc(address: str) -> Answers:
    client = over_grpc.InferenceServerClient(address)
    answers = await describe(client, {"as_json": True}) | await infer(over_grpc, client)
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for number in range(8):
        client.async_infer(
            "half_plus_two", [x(over_grpc, [number])], lambda result, error: done.put((result, error))
        )
    results = [done.get(timeout=20) for _ in range(8)]
    answers["async"] = sorted(result.as_numpy("y").tolist() for result, error in results if error is None)
    packed = client.infer("half_plus_two", [x(over_grpc, [1, 2, 5])], compression_algorithm="gzip")
    answers["gzip"] = packed.as_numpy("y").tolist()
    timely = client.infer("half_plus_two", [x(over_grpc, [1])], client_timeout=20.0)
    answers["in time"] = timely.as_numpy("y").tolist()
    slow = tensor(over_grpc, "seconds", np.array([0.5], np.float32), "FP32")
    answers["out of time"] = await refusal(lambda: client.infer("slow", [slow], client_timeout=0.1))
    answers["statistics"] = client.get_inference_statistics("pair", as_json=True)
    client.close()
    return answers


async def grpc_asyncio(address: str) -> Answers:
    async with over_grpc_asyncio.InferenceServerClient(address) as client:
        answers = await describe(client, {"as_json": True}) | await infer(over_grpc_asyncio, client)
        answers["async"] = await gathered(over_grpc_asyncio, client)
        answers["statistics"] = await client.get_inference_statistics("pair", as_json=True)
    return answers


async def grpc_stream(address: str) -> Answers:
    """A stream goes on after a request of it has failed."""
    client = over_grpc.InferenceServerClient(address)
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: done.put((result, error)))
    for number in range(20):
        name = "missing" if number == 7 else "half_plus_two"
        client.async_stream_infer(name, [x(over_grpc, [number])], request_id=str(number))
    answers: Answers = {"answered": {}, "errors": []}
    for _ in range(20):
        result, error = done.get(timeout=20)
        if error is not None:
            answers["errors"].append(error.message())
        else:
            answers["answered"][result.get_response().id] = result.as_numpy("y").tolist()
    client.stop_stream()
    client.close()
    return answers


PROGRAMS = {
    "http": http,
    "http-asyncio": http_asyncio,
    "grpc": grpc,
    "grpc-asyncio": grpc_asyncio,
    "grpc-stream": grpc_stream,
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(PROGRAMS[sys.argv[1]](sys.argv[2]))))
