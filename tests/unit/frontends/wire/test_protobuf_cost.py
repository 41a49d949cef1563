"""Messages that are counted before they are parsed: what is counted, and where it stops."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.config import Limits
from headrace.frontends.oip.request_messages import InferRequest
from headrace.frontends.tfserving.messages import PredictRequest
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_cost import charge, counted, form_of
from headrace.frontends.wire.protobuf_fields import length_prefix
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import TimeSlicer, in_steps
from tests.unit.frontends.turns import Turns

INFER, PREDICT = form_of(InferRequest), form_of(PredictRequest)
MIB = 1 << 20


def within(number: int, value: bytes) -> bytes:
    return length_prefix(number, len(value)) + value


def infer(*contents: bytes) -> bytes:
    return within(5, b"".join(within(5, content) for content in contents))


@pytest.mark.parametrize(
    ("message", "form", "values"),
    [
        (b"", INFER, 0),
        (b"\x1a\x00" * 9, INFER, 9),  # an id, again and again
        (b"\x78\x80\x01" * 9, INFER, 9),  # a field that is not known
        (b"\xfa\x01\x00" * 9, INFER, 9),  # one with a long tag
        (b"\x7d1234" * 3 + b"\x7912345678" * 2, INFER, 5),
        (b"\x2a\x00" * 9, INFER, 36),  # empty inputs
        (b"\x22\x00" * 9, INFER, 36),  # empty parameters
        (within(7, bytes(5000)), INFER, 1),  # a raw tensor
        (infer(within(6, bytes(4000))), INFER, 4 + 4 + 1),  # floats, packed
        (infer(within(3, b"\x01" * 500 + b"\xff\x01" * 100)), INFER, 4 + 4 + 1 + 600),  # integers, packed
        (infer(b"\x18\x01" * 500), INFER, 4 + 4 + 500),  # the same, one by one
        (infer(b"\x42\x00" * 500, b"\x42\x01a" * 7), INFER, 4 + 4 + 500 + 4 + 7),  # texts
        (within(5, within(3, b"\x01" * 300)), INFER, 4 + 1 + 300),  # a shape
        (within(2, within(1, b"x") + within(2, within(2, b"\x12\x00" * 50))), PREDICT, 4 + 1 + 4 + 4 + 200),
        (PredictRequest(output_filter=["a", "b"]).SerializeToString(), PREDICT, 2),
    ],
)
def test_what_parsing_would_pay_for_is_counted(message: bytes, form: object, values: int) -> None:
    assert sum(counted(message, form)) == values  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [b"\x1a", b"\x1a\x02a", b"\x78", b"\x78\xff", b"\x7d123", b"\x7b\x7c", b"\xff" * 20, infer(b"\x42")[:-1]],
    ids=repr,
)
def test_what_is_cut_off_or_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidRequest, match=f"got {len(message)} bytes that are not one"):
        sum(counted(message, INFER))


def test_a_part_that_ends_after_its_message_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="expected a protobuf message"):
        sum(counted(b"\x2a\x02\x0a\x05abcdef", INFER))


def entries(units: Iterator[bytes]) -> bytes:
    return b"".join(within(2, within(1, unit)) for unit in units)


HOSTILE: dict[str, tuple[bytes, object]] = {
    "an id again and again": (b"\x1a\x00" * MIB, INFER),
    "empty inputs": (b"\x2a\x00" * MIB, INFER),
    "parameters of an input": (within(5, b"\x22\x00" * MIB), INFER),
    "texts": (infer(b"\x42\x00" * MIB), INFER),
    "integers": (infer(within(3, bytes(2 * MIB))), INFER),
    "entries": (b"\x12\x00" * MIB, PREDICT),
    "entries with names": (entries(b"%d" % number for number in range(200_000)), PREDICT),
    "dimensions": (within(2, within(2, within(2, b"\x12\x00" * MIB))), PREDICT),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_counting_ends_soon_after_the_limit_and_takes_no_memory(name: str) -> None:
    message, form = HOSTILE[name]
    budget = RequestBudget(Limits(max_values=65_536))

    def pay() -> None:
        for count in counted(message, form):  # type: ignore[arg-type]
            assert count <= 512 * 1024
            budget.values(count, "message")

    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="at most 65536 values in a request"):
            pay()
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_others_are_answered_while_a_message_is_counted_and_while_steps_are_done() -> None:
    def steps() -> Iterator[None]:
        yield from itertools.repeat(None, 300_000)

    async def both() -> None:
        async with Turns() as others, TimeSlicer() as slicer:
            for work in (
                charge(counted(b"\x1a\x00" * 300_000, INFER), RequestBudget(Limits()), slicer),
                in_steps(steps(), slicer),  # type: ignore[arg-type]
            ):
                before = others.count
                await work
                assert others.count > before + 10

    asyncio.run(both())


@pytest.mark.parametrize("kind", ["inference.ModelInferRequest", "tensorflow.serving.PredictRequest"])
def test_a_form_looks_into_each_message_and_no_text(kind: str) -> None:
    def check(form: object, descriptor: object, path: Callable[[str], str] = str) -> None:
        for field in descriptor.fields:  # type: ignore[attr-defined]
            known = form.get(field.number)  # type: ignore[attr-defined]
            assert isinstance(known, dict) == (field.message_type is not None), field.full_name
            if field.message_type is not None:
                check(known, field.message_type)

    message = protos.message(kind)
    check(form_of(message), message.DESCRIPTOR)  # type: ignore[attr-defined]
