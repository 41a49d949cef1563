"""ModelStreamInfer with models that answer in parts: many responses to one request, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import FailedPrecondition
from headrace.config import Limits, ServerConfig
from headrace.frontends.calls import Following, GrpcCall
from headrace.frontends.oip.grpc import grpc_methods
from headrace.frontends.oip.request_messages import InferRequest
from headrace.frontends.service import Service
from headrace.frontends.transport.bodies import Bodies
from headrace.frontends.wire import protos
from headrace.serving.engine import Engine
from headrace.telemetry.outcomes import Channel
from tests.model_directories import affine, write
from tests.waiting import seconds_left, until_in_loop

StreamResponse = protos.message("inference.ModelStreamInferResponse")
COUNT = """
import asyncio
from pathlib import Path

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [None])]

    def load(self, path, context):
        self.path, self.open = path, 0

    async def predict(self, inputs):
        self.open += 1
        try:
            for index in range(int(inputs["x"][0])):
                assert index < 5
                yield {"y": [[float(index)] * index]}
        finally:
            self.open -= 1
            (self.path / "closed").touch()
"""


class Server:
    """The methods of the service over an engine.

    Attributes:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        service = Service(engine)
        methods = {one.path.rpartition("/")[2]: one for one in grpc_methods(service)}
        self._stream, self._unary = methods["ModelStreamInfer"].stream, methods["ModelInfer"].unary

    def stream(
        self, messages: AsyncIterator[bytes], call: GrpcCall | None = None
    ) -> AsyncGenerator[bytes, None]:
        assert self._stream is not None
        return self._stream(messages, call or GrpcCall())  # type: ignore[return-value]

    async def answers(self, *messages: bytes) -> list[Any]:
        """What is answered to these messages."""
        return [StreamResponse.FromString(one) async for one in self.stream(given(*messages))]

    async def infer(self, message: bytes) -> None:
        assert self._unary is not None
        await self._unary(message, GrpcCall())

    @property
    def ended(self) -> dict[str, int]:
        """How many calls have ended, by code."""
        tally = self.engine.outcomes.tallies[Channel.GRPC]
        failed = {code: count for code, count in tally.failed.items() if count}
        return failed | {"OK": tally.answered}


async def given(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def message(
    value: float, request_id: str = "", model: str = "count", *, raw: bool = True, **parameters: bool
) -> bytes:
    request = InferRequest(model_name=model, id=request_id)
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    if raw:
        request.raw_input_contents.append(np.float32(value).tobytes())
    else:
        request.inputs[0].contents.fp32_contents.append(value)
    for name, given_value in parameters.items():
        request.parameters[name].bool_param = given_value
    return bytes(request.SerializeToString())


@asynccontextmanager
async def serving(models: Path, drain_seconds: float = 30.0) -> AsyncIterator[Server]:
    (models / "count/1").mkdir(parents=True)
    (models / "count/1/model.py").write_text(COUNT)
    (models / "count/headrace.toml").write_text("[batching]\nmax_streams = 2\n[warm_up]\nenabled = false\n")
    write(models, "plain", 1, affine(2.0, 1.0))
    config = ServerConfig(allow_code=True, drain_seconds=drain_seconds)
    async with Engine(models, config=config) as engine:
        yield Server(engine)
        await until_in_loop(lambda: not engine.loaded("count").outstanding)


def run(
    models: Path, scenario: Callable[[Server], Coroutine[Any, Any, None]], drain_seconds: float = 30.0
) -> None:
    async def served() -> None:
        async with serving(models, drain_seconds) as server:
            await scenario(server)

    asyncio.run(asyncio.wait_for(served(), seconds_left()))


def numbers(response: Any) -> list[float]:
    (output,), raw = response.infer_response.outputs, response.infer_response.raw_output_contents
    values = np.frombuffer(raw[0], np.float32).tolist() if raw else list(output.contents.fp32_contents)
    assert list(output.shape)[-1:] == [len(values)]
    return values


def is_final(response: Any) -> bool | None:
    parameters = response.infer_response.parameters
    return parameters["triton_final_response"].bool_param if "triton_final_response" in parameters else None


@pytest.mark.parametrize("raw", [True, False])
def test_a_request_gets_a_response_for_each_part(tmp_path: Path, raw: bool) -> None:
    async def scenario(server: Server) -> None:
        responses = await server.answers(message(3, "mine", raw=raw))
        assert [numbers(one) for one in responses] == [[], [1.0], [2.0, 2.0]]
        assert [one.infer_response.id for one in responses] == ["mine"] * 3
        assert {(one.infer_response.model_name, one.infer_response.model_version) for one in responses} == {
            ("count", "1")
        }
        assert [is_final(one) for one in responses] == [False] * 3
        again = await server.answers(message(2, raw=raw))  # it is not learnt as one that is answered whole
        assert [numbers(one) for one in again] == [[], [1.0]]
        assert server.ended == {"OK": 2}

    run(tmp_path, scenario)


def test_the_last_response_is_empty_where_that_is_wanted(tmp_path: Path) -> None:
    wanted = {"triton_enable_empty_final_response": True}

    async def scenario(server: Server) -> None:
        *_, last = responses = await server.answers(message(2, "mine", **wanted))
        assert [is_final(one) for one in responses] == [False, False, True]
        assert (last.infer_response.id, last.infer_response.model_name) == ("mine", "count")
        assert not last.infer_response.outputs
        (plain,) = await server.answers(message(2, model="plain", **wanted))
        assert (numbers(plain), is_final(plain)) == ([5.0], True)
        (plain,) = await server.answers(message(2, model="plain"))
        assert (numbers(plain), is_final(plain)) == ([5.0], None)

    run(tmp_path, scenario)


def test_an_answer_without_parts_is_one_empty_response(tmp_path: Path) -> None:
    """Each request gets a response: a client that waits for it would wait for ever."""

    async def scenario(server: Server) -> None:
        (response,) = await server.answers(message(0, "mine"))
        assert (response.infer_response.id, is_final(response)) == ("mine", True)

    run(tmp_path, scenario)


def test_other_requests_keep_their_order(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        asked = [
            message(1, "a", "plain"),
            message(2, "b"),
            message(3, "c", "plain"),
            message(2, "d"),
            message(1, "e"),
        ]
        responses = await server.answers(*asked)
        assert [one.infer_response.id for one in responses] == [*"abbcdde"]
        assert server.ended == {"OK": 5}

    run(tmp_path, scenario)


def test_all_but_the_first_response_follow(tmp_path: Path) -> None:
    """The transport counts a message as held until its first response."""

    async def scenario(server: Server) -> None:
        asked = given(message(3), message(7), message(1, model="plain"))
        kinds = [type(one) is Following async for one in server.stream(asked)]
        assert kinds == [False, True, True, False, True, True, True, True, True, False]

    run(tmp_path, scenario)


def test_an_error_ends_the_answer_and_not_the_stream(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        responses = await server.answers(message(7, "broken"), message(2, "next"))
        assert [one.infer_response.id for one in responses] == ["broken"] * 6 + ["next"] * 2
        assert [bool(one.error_message) for one in responses] == [False] * 5 + [True, False, False]
        assert responses[5].error_message == "the model failed; the server's log says more"
        assert server.ended == {"INTERNAL": 1, "OK": 1}

    run(tmp_path, scenario)


def test_a_parameter_that_is_no_boolean_is_refused(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        request = InferRequest.FromString(message(1, "mine"))
        request.parameters["triton_enable_empty_final_response"].int64_param = 1
        (response,) = await server.answers(request.SerializeToString())
        assert "triton_enable_empty_final_response: expected true or false" in response.error_message

    run(tmp_path, scenario)


def test_a_stream_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        model = server.engine.loaded("count").servable._model  # type: ignore[attr-defined]
        streams = [server.stream(given(message(3))) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        assert model.open == 2
        (response,) = await server.answers(message(1))
        assert "2 streams of count version 1 are open" in response.error_message
        for stream in streams:
            await stream.aclose()
        await until_in_loop(lambda: not model.open)
        assert server.ended == {"CANCELLED": 2, "UNAVAILABLE": 1, "OK": 0}

    run(tmp_path, scenario)


def test_a_client_that_leaves_closes_the_generator_and_drops_those_behind_it(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        loaded = server.engine.loaded("count")

        async def asked() -> AsyncIterator[bytes]:
            for request_id in "abc":
                yield message(5, request_id)
            await asyncio.Event().wait()

        stream = server.stream(asked())
        await anext(stream)
        await until_in_loop(lambda: loaded.outstanding == 4)  # three requests, of which one is a stream
        await stream.aclose()
        await until_in_loop(lambda: loaded.outstanding == 0)
        assert (tmp_path / "count/1/closed").exists()
        assert server.ended == {"CANCELLED": 3, "OK": 0}

    run(tmp_path, scenario)


def versions(server: Server, model: str) -> list[int]:
    return [one.version for one in server.engine.manager.status(model)]


def test_a_client_that_reads_no_more_does_not_keep_replaced_versions(tmp_path: Path) -> None:
    """Neither that of the answer that it reads, nor that of a request behind it."""
    for name in ("other/1", "new/count", "new/other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.py").write_text(COUNT)

    async def scenario(server: Server) -> None:
        stream = server.stream(given(message(5, "a"), message(5, "b", "other")))
        await anext(stream)
        held = [server.engine.loaded(model) for model in ("count", "other")]
        await until_in_loop(lambda: all(one.outstanding for one in held))
        for one in held:
            (tmp_path / "new" / one.name).rename(tmp_path / one.name / "2")
        for one in held:
            await until_in_loop(lambda name=one.name: versions(server, name) == [2], every=0.01)
        ends = [StreamResponse.FromString(one) async for one in stream]
        assert [one.infer_response.id for one in ends] == ["a", "b"]
        assert all("unloaded before its answer was complete" in one.error_message for one in ends)

    run(tmp_path, scenario, drain_seconds=0.2)


def test_the_deadline_of_the_call_holds_for_each_answer(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        (late,) = [
            StreamResponse.FromString(one) async for one in server.stream(given(message(5)), GrpcCall(0.0))
        ]
        assert late.error_message == "the deadline passed before the model had answered"

    run(tmp_path, scenario)


def test_one_answer_is_refused_with_the_way_out(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        for _ in range(2):
            with pytest.raises(FailedPrecondition, match="with ModelStreamInfer"):
                await server.infer(message(1))

    run(tmp_path, scenario)


def test_the_inputs_of_a_stream_count_until_it_ends(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        bodies = Bodies(Limits())
        stream = server.stream(given(message(2)), GrpcCall(budget=bodies))
        await anext(stream)
        assert bodies.held_bytes == 4
        assert len([one async for one in stream]) == 1
        assert bodies.held_bytes == 0
        bodies.taken_bytes = Limits().max_inflight_bytes
        (refused,) = [one async for one in server.stream(given(message(2)), GrpcCall(budget=bodies))]
        assert "max_inflight_bytes" in StreamResponse.FromString(refused).error_message

    run(tmp_path, scenario)
