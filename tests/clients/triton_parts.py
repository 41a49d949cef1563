"""Asks a model that answers in parts with tritonclient, and prints the responses as JSON.

Run by tests in the clients' environment.
Usage: triton_parts.py HOST:PORT TEXT...
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc


def main(address: str, *texts: str) -> list[dict[str, Any]]:
    client = over_grpc.InferenceServerClient(address)
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: done.put((result, error)))
    for number, text in enumerate(texts):
        tensor = over_grpc.InferInput("text", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text.encode()]], object))
        client.async_stream_infer("words", [tensor], request_id=str(number), enable_empty_final_response=True)
    answers: list[dict[str, Any]] = []
    finals = 0
    while finals < len(texts):
        result, error = done.get(timeout=60)
        if error is not None:
            raise error
        response = result.get_response()
        word = result.as_numpy("word")
        is_final = response.parameters["triton_final_response"].bool_param
        finals += is_final
        said = None if word is None else word[0, 0].decode()
        answers.append({"id": response.id, "word": said, "final": is_final})
    client.stop_stream()
    client.close()
    return answers


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
