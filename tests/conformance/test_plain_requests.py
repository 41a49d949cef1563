"""What a request pays that uses nothing out of the ordinary: counted in calls of Python functions.

Time is told by `python -m benchmarks seam`; this is the part of it that is the same on every machine, so that
what is added to every request's way is seen when it is added.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from types import CodeType, FrameType

import numpy as np
import pytest

from headrace.batching.capacity import LoadReport
from headrace.frontends.transport.asgi import Application
from headrace.frontends.wire import protos
from headrace.server.server import application
from headrace.serving.engine import Engine
from tests.models import Doubling
from tests.unit.frontends.transport.wire import Event, message

TOGETHER, TIMES = 64, 20
PATHS = {
    "gRPC": "/inference.GRPCInferenceService/ModelInfer",
    "gRPC, TensorFlow": "/tensorflow.serving.PredictionService/Predict",
    "REST": "/v1/models/m:predict",
}


def content(how: str) -> bytes:
    row = np.array([[1.5, 2.5]], np.float32)
    if how == "REST":
        return json.dumps({"instances": [{"x": row[0].tolist()}]}).encode()
    if how == "gRPC":
        request = protos.message("inference.ModelInferRequest")(model_name="m")
        request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
        request.raw_input_contents.append(row.tobytes())
    else:
        request = protos.message("tensorflow.serving.PredictRequest")()
        request.model_spec.name = "m"
        request.inputs["x"].dtype = 1
        for size in row.shape:
            request.inputs["x"].tensor_shape.dim.add(size=size)
        request.inputs["x"].tensor_content = row.tobytes()
    return message(request.SerializeToString())


async def ask(answering: Application, how: str, sent: list[Event]) -> None:
    body = content(how)
    kind = b"application/json" if how == "REST" else b"application/grpc"
    scope: Event = {
        "type": "http",
        "method": "POST",
        "path": PATHS[how],
        "headers": [(b"content-type", kind), (b"content-length", b"%d" % len(body))],
        "query_string": b"",
        "client": ("127.0.0.1", 50000),
    }
    received: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    received.set_result({"type": "http.request", "body": body})

    def send(event: Event) -> asyncio.Future[Event]:
        sent.append(event)
        return received

    # Neither is a function of Python that would be counted, but for `send` itself.
    await answering.answer(scope, lambda: received, send)


async def calls_per_request(how: str, report: LoadReport | None) -> tuple[float, Counter[CodeType]]:
    """By whom: all calls of functions of this project, of 64 requests at once that repeat."""
    counted = Counter[CodeType]()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/headrace/" in frame.f_code.co_filename:
            counted[frame.f_code] += 1

    async with Engine.from_objects({"m": Doubling()}) as engine:
        answering, sent = application(engine), list[Event]()
        if report is not None:
            answering.load.report(report)

        async def together() -> None:
            await asyncio.gather(*(ask(answering, how, sent) for _ in range(TOGETHER)))

        await together()  # is learnt from
        sys.setprofile(count)
        try:
            for _ in range(TIMES):
                await together()
        finally:
            sys.setprofile(None)
    answers = [event for event in sent if event.get("body") or event["type"].endswith("trailers")]
    assert len(answers) == (1 if how == "REST" else 2) * TOGETHER * (TIMES + 1)
    return counted.total() / (TOGETHER * TIMES), counted


@pytest.mark.exact
@pytest.mark.parametrize(
    "report", [None, LoadReport(0.5, 100.0, 0.0)], ids=["without a report", "with a load report"]
)
@pytest.mark.parametrize(("how", "most"), [("gRPC", 22), ("gRPC, TensorFlow", 26), ("REST", 35)])
def test_a_plain_request_calls_no_more_functions_than_it_did(
    how: str, most: int, report: LoadReport | None
) -> None:
    """Where this fails, measure what was added with `benchmarks seam`, and say what it is worth."""
    found, by_whom = asyncio.run(calls_per_request(how, report))
    told = {
        f"{code.co_filename.rpartition('/headrace/')[2]}:{code.co_name}": round(calls / (TOGETHER * TIMES), 2)
        for code, calls in by_whom.most_common(60)
    }
    assert found <= most, told
