"""Triton's generate extension: one row in, a JSON object or a stream of events out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from headrace.base.tensors import Tensors
from headrace.config import BatchingPolicy, ServerConfig
from headrace.frontends.oip.generate import MOST_VALUES
from headrace.frontends.oip.rest import http_routes
from headrace.frontends.service import Service
from headrace.frontends.transport.asgi import Application
from headrace.model.servable import DEFAULT_SIGNATURE, Signature
from headrace.serving.engine import Engine
from headrace.telemetry.outcomes import Channel
from tests.unit.frontends.oip.doubles import spec
from tests.unit.frontends.transport.wire import Response, Wire, body
from tests.waiting import seconds_left, until_in_loop

WORDS = """
class Model:
    inputs = [("text_input", "BYTES", [1]), ("max_tokens", "INT32", []), ("bias", "FP32", [None])]
    outputs = [("text_output", "BYTES", [1]), ("index", "INT64", []), ("vector", "FP32", [2])]

    def predict(self, inputs):
        words = inputs["text_input"][0, 0].decode().split()
        for index in range(inputs["max_tokens"][0]):
            vector = [[index, inputs["bias"][0].sum()]]
            yield {"text_output": [[words[index]]], "index": [index], "vector": vector}
"""
ASKED = {"text_input": "ein zwei drei", "max_tokens": 2, "bias": [0.5, 1.0]}


class Wide:
    """A model that does not stream."""

    platform = "test"
    signatures: ClassVar = {
        DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, (spec("n", "INT64"),), (spec("y", "FP32", None),))
    }

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        rows, wide = len(inputs["n"]), int(inputs["n"][0])
        values = np.arange(rows * wide, dtype=np.float32).reshape(rows, wide)
        return {"y": np.where(values == 1, np.float32("nan"), values)}

    def close(self) -> None:
        pass


def answers(
    tmp_path: Path, *asked: tuple[str, object], limits: dict[str, int] | None = None, source: str = WORDS
) -> list[Response]:
    """What a server answers to these paths and bodies, one after the other."""
    (tmp_path / "words/1").mkdir(parents=True)
    (tmp_path / "words/1/model.py").write_text(source)
    (tmp_path / "words/headrace.toml").write_text("[warm_up]\nenabled = false\n")

    async def scenario() -> list[Response]:
        config = ServerConfig(allow_code=True)
        whole = BatchingPolicy(enabled=False)
        async with Engine(tmp_path, config=config, objects={"wide": Wide()}, batching=whole) as engine:
            service = Service(engine)
            app = Application(http_routes(service), [], service.limits, service.outcomes, service.slicer)
            found = [await exchange(app, path, said) for path, said in asked]
            assert app.bodies.taken_bytes == 0
            await until_in_loop(lambda: not engine.loaded("words").outstanding)
            assert sum(engine.outcomes.tallies[Channel.REST].failed.values()) == sum(
                one.status != 200 or b'"error"' in one.body for one in found
            )
            return found

    return asyncio.run(asyncio.wait_for(scenario(), seconds_left()))


async def exchange(app: Application, path: str, said: object) -> Response:
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    wire = Wire(body(text))
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    await app(scope, wire.receive, wire.send)
    return Response(wire.sent)


def events(response: Response) -> list[dict[str, Any]]:
    assert response.status == 200, response.body
    parts = response.body.decode().split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_each_part_is_an_event(tmp_path: Path) -> None:
    (response,) = answers(tmp_path, ("/v2/models/words/generate_stream", ASKED | {"id": "mine"}))
    named = {"model_name": "words", "model_version": "1", "id": "mine"}
    assert events(response) == [
        named | {"text_output": "ein", "index": 0, "vector": [0.0, 1.5]},
        named | {"text_output": "zwei", "index": 1, "vector": [1.0, 1.5]},
    ]


def test_inputs_may_be_parameters_and_a_version_may_be_named(tmp_path: Path) -> None:
    asked = {"text_input": ["ein"], "parameters": {"max_tokens": 1, "bias": [], "temperature": 0.5}}
    by_version, one = answers(
        tmp_path,
        ("/v2/models/words/versions/1/generate_stream", asked),
        ("/v2/models/words/generate_stream", asked | {"max_tokens": 0}),
    )
    assert [event["vector"] for event in events(by_version)] == [[0.0, 0.0]]
    assert events(one) == []


def test_a_model_that_does_not_stream_answers_both(tmp_path: Path) -> None:
    whole, stream, single = answers(
        tmp_path,
        ("/v2/models/wide/generate", {"n": 3}),
        ("/v2/models/wide/generate_stream", {"n": 3}),
        ("/v2/models/wide/generate", {"n": 1}),
    )
    said = {"model_name": "wide", "model_version": "1", "y": [0.0, None, 2.0]}
    assert (whole.status, json.loads(whole.body)) == (200, said)
    assert whole.headers[b"content-type"] == b"application/json"
    assert events(stream) == [said]
    assert json.loads(single.body)["y"] == [0.0]  # a list, as it may have other sizes


def test_a_large_part_is_written_in_slices(tmp_path: Path) -> None:
    whole, stream = answers(
        tmp_path,
        ("/v2/models/wide/generate", {"n": 10_000}),
        ("/v2/models/wide/generate_stream", {"n": 10_000}),
    )
    values = [0.0, None, *map(float, range(2, 10_000))]
    assert json.loads(whole.body)["y"] == values
    assert [event["y"] for event in events(stream)] == [values]


def test_a_long_prompt_is_read_in_slices(tmp_path: Path) -> None:
    text = "wort " * 100_000
    (response,) = answers(tmp_path, ("/v2/models/words/generate_stream", ASKED | {"text_input": text}))
    assert [event["text_output"] for event in events(response)] == ["wort", "wort"]


def test_a_part_that_is_no_text_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    source = WORDS.replace("[[words[index]]]", "[[b'\\xff']]")
    (response,) = answers(tmp_path, ("/v2/models/words/generate_stream", ASKED), source=source)
    assert response.status == 400
    assert json.loads(response.body)["error"].endswith("with binary_data of …/infer, or over gRPC")


def test_an_error_of_the_model_is_the_last_event(tmp_path: Path) -> None:
    (response,) = answers(tmp_path, ("/v2/models/words/generate_stream", ASKED | {"max_tokens": 9}))
    assert [event.get("text_output") for event in events(response)] == ["ein", "zwei", "drei", None]
    assert events(response)[-1] == {"error": "the model failed; the server's log says more"}


def test_a_deadline_among_the_parameters_holds(tmp_path: Path) -> None:
    (response,) = answers(
        tmp_path, ("/v2/models/words/generate_stream", ASKED | {"parameters": {"timeout": 1}})
    )
    assert response.status == 504


def without(names: Iterable[str]) -> dict[str, object]:
    return {name: value for name, value in ASKED.items() if name not in names}


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        (b"{", 400, "expected JSON"),
        ([ASKED], 400, "expected an object with the model's inputs by name, got a list"),
        (without(["bias"]), 400, "missing input 'bias'"),
        (ASKED | {"stream": True}, 400, "unknown input 'stream'"),
        (ASKED | {"id": 7}, 400, "id: expected text, got 7"),
        (
            ASKED | {"parameters": 7},
            400,
            "parameters: expected an object, got 7; send the ",
        ),
        (ASKED | {"parameters": {"timeout": "soon"}}, 400, "timeout: expected a whole number"),
        (ASKED | {"parameters": {"timeout": -1}}, 400, "timeout: expected microseconds from 0"),
        (ASKED | {"parameters": {"sequence_id": 1}}, 501, "sequences are not supported"),
        (ASKED | {"parameters": {"signature_name": "other"}}, 404, "signature 'other' not found"),
        (ASKED | {"max_tokens": "two"}, 400, "max_tokens: row 0: expected a whole number (INT32), got 'two'"),
        (ASKED | {"max_tokens": [1, 2]}, 400, "max_tokens: expected max_tokens INT32"),
        (ASKED | {"text_input": 5}, 400, "text_input: row 0, column 0: expected text or bytes, got 5"),
        ({"text_input": {}} | without(["text_input"]), 400, "text_input: "),
        (ASKED | {"bias": None}, 400, "bias: "),
    ],
)
@pytest.mark.parametrize("path", ["generate_stream", "generate"])
def test_a_wrong_request_is_refused_with_the_reason(
    tmp_path: Path, path: str, asked: object, status: int, said: str
) -> None:
    (response,) = answers(tmp_path, (f"/v2/models/words/{path}", asked))
    assert (response.status, response.headers[b"content-type"]) == (status, b"application/json")
    assert said in json.loads(response.body)["error"]


def test_too_many_values_are_refused(tmp_path: Path) -> None:
    most = MOST_VALUES - len(ASKED)
    kept, refused = answers(
        tmp_path,
        ("/v2/models/words/generate_stream", ASKED | {"bias": [0.0] * most}),
        ("/v2/models/words/generate_stream", ASKED | {"bias": [0.0] * (most + 1)}),
    )
    assert len(events(kept)) == 2
    assert refused.status == 413
    assert "body: expected at most 16384 values" in json.loads(refused.body)["error"]


def test_one_answer_of_a_model_that_streams_is_refused_with_the_way_out(tmp_path: Path) -> None:
    tensor = {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [1]}
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
    bias = {"name": "bias", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    found = answers(
        tmp_path,
        ("/v2/models/words/generate", ASKED),
        ("/v2/models/words/infer", {"inputs": [text, tensor, bias]}),
    )
    for response in found:
        assert response.status == 400
        assert "/v2/models/words/generate_stream" in json.loads(response.body)["error"]


def test_a_model_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    (response,) = answers(tmp_path, ("/v2/models/other/generate_stream", ASKED))
    assert response.status == 404
