"""Many examples, classified or regressed: made into inputs and answered part by part."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.config import SignatureConfig
from headrace.frontends.calls import GrpcCall, HttpCall
from headrace.frontends.tfserving.grpc import grpc_methods
from headrace.frontends.tfserving.rest import http_routes
from headrace.frontends.transport.rest_routes import Router
from headrace.frontends.wire import json_output
from headrace.frontends.wire.protobuf_fields import length_prefix
from tests.unit.frontends.tfserving.doubles import ServiceDouble, call, classifier, http_bytes, message
from tests.unit.frontends.tfserving.test_message_examples import example
from tests.unit.frontends.turns import steps_of

EXAMPLES, FEWER = 16_000, 4_000
MOST_OF_ALL = 0.08  # of the processor's time: one turn of the event loop
MOST_CALLS = 0.03  # of all function calls; the most is 0.008
TRIES = 3
SPEC = {"name": "people"}


def posted(method: str, examples: int) -> Callable[[], Coroutine[Any, Any, object]]:
    """A body of many examples, sent over REST."""
    body = json.dumps({"examples": [{"age": number, "city": "B"} for number in range(examples)]}).encode()
    found = Router(http_routes(ServiceDouble(classifier()))).match("POST", f"/v1/models/people:{method}")
    assert found.handler is not None
    return lambda: found.handler(HttpCall("POST", "", found.parameters, body=body))  # type: ignore[misc]


def called(
    method: str, request: str, examples: int, **fields: Any
) -> Callable[[], Coroutine[Any, Any, object]]:
    """A message of many examples, sent over gRPC."""
    one_of_them = example(age=[1.0], city=[b"B"]).SerializeToString()
    people = length_prefix(1, len(one_of_them)) + one_of_them
    people = length_prefix(1, len(people) * examples) + people * examples
    data = message(request, **fields).SerializeToString() + length_prefix(2, len(people)) + people
    for one in grpc_methods(ServiceDouble(classifier())):  # type: ignore[arg-type]
        if one.path.endswith(f"PredictionService/{method}"):
            unary = one.unary
            assert unary is not None
            return lambda: unary(data, GrpcCall())
    raise AssertionError(method)


TASKS = [
    {"model_spec": SPEC, "method_name": f"tensorflow/serving/{name}"} for name in ("classify", "regress")
]
WAYS: dict[str, Callable[[int], Callable[[], Coroutine[Any, Any, object]]]] = {
    "classify over REST": lambda examples: posted("classify", examples),
    "regress over REST": lambda examples: posted("regress", examples),
    "classify over gRPC": lambda examples: called(
        "Classify", "ClassificationRequest", examples, model_spec=SPEC
    ),
    "both over gRPC": lambda examples: called(
        "MultiInference", "MultiInferenceRequest", examples, tasks=TASKS
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_many_examples_are_answered_in_many_small_steps(way: str) -> None:
    steps = steps_of(WAYS[way](FEWER))
    assert steps.turns > FEWER
    assert steps.share < MOST_CALLS


@pytest.mark.timing
@pytest.mark.parametrize("way", WAYS)
def test_no_turn_of_the_event_loop_has_much_of_the_work(way: str) -> None:
    ask = WAYS[way](EXAMPLES)
    share = min(longest_turn(ask) for _ in range(TRIES))
    assert share < MOST_OF_ALL, f"one turn took {share:.0%} of the time"


def longest_turn(ask: Callable[[], Coroutine[Any, Any, object]]) -> float:
    """The share of the processor's time that the longest turn took."""

    async def measured() -> float:
        longest, last, ended = 0.0, time.thread_time(), False

        async def turning() -> None:
            nonlocal longest, last
            while not ended:
                now = time.thread_time()
                longest, last = max(longest, now - last), now
                await asyncio.sleep(0)

        others = asyncio.create_task(turning())
        started = time.thread_time()
        await ask()
        whole = time.thread_time() - started
        longest = max(longest, time.thread_time() - last)  # the last one ends with the answer
        ended = True
        await others
        return longest / whole

    gc.collect()
    gc.disable()  # it looks at everything that this whole process of tests holds
    try:
        return asyncio.run(measured())
    finally:
        gc.enable()


@pytest.mark.parametrize("settings", [None, SignatureConfig(labels=["x", "y", "z"])], ids=["names", "labels"])
@pytest.mark.parametrize("method", ["classify", "regress"])
def test_parts_make_the_same_answer(
    method: str, settings: SignatureConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"age": number / 3, "city": "B"} for number in range(100)]
    rows[7]["age"] = float("nan")
    body = json.dumps({"examples": rows}).encode()
    name = {"classify": "ClassificationRequest", "regress": "RegressionRequest"}[method]
    given = [example(age=[row["age"]], city=[b"B"]) for row in rows]
    request = message(name, model_spec=SPEC, input={"example_list": {"examples": given}})

    def answers() -> list[Any]:
        door = ServiceDouble(classifier(settings))
        answer = call(door, method.capitalize(), request).SerializeToString(deterministic=True)
        return [http_bytes(door, "POST", f"/v1/models/people:{method}", body), answer]

    whole = answers()
    assert json.loads(whole[0])["results"][8] == (
        [
            ["x" if settings else "a", 2.6666667],
            ["y" if settings else "b", 0.26666668],
            ["z" if settings else "c", 0],
        ]
        if method == "classify"
        else 5.3333335
    )
    monkeypatch.setattr(json_output, "PRINTED_AT_ONCE", 64)
    assert answers() == whole
