"""The fields of serialized messages: walked, and written as protobuf itself writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.base.errors import Overloaded
from headrace.base.tensors import DATATYPES, STRING
from headrace.config import Limits
from headrace.frontends.calls import Account
from headrace.frontends.tfserving.tensor_protos import write_tensor, writing_tensor
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_fields import field_of, fields, text_in
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import run

CONTENTS = protos.message("inference.InferTensorContents")
MANY = 10_000


def free() -> RequestBudget:
    return RequestBudget(Limits())


def values_of(dtype: Any) -> Any:
    """Many values, small and large, and the ends of the range."""
    random = np.random.default_rng(0)
    if dtype == STRING:
        made = np.empty(MANY, STRING)
        made[:] = [b"x" * (index % 300) for index in range(MANY)]
        return made
    if dtype.kind == "b":
        return random.integers(0, 2, MANY).astype(dtype)
    if dtype.kind == "f":
        return random.standard_normal(MANY).astype(dtype)
    ends = np.iinfo(dtype)
    values = random.integers(ends.min, ends.max, MANY, dtype, endpoint=True)
    small = values >> random.integers(0, ends.bits, MANY).astype(dtype)
    small[:5] = np.array([ends.min, ends.max, 0, 1, 127], dtype)
    return small


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda one: one.oip)
def test_a_tensor_in_pieces_is_what_protobuf_writes(datatype: Any) -> None:
    tensor = values_of(datatype.dtype).reshape(-1, 5)
    pieces = run(writing_tensor(tensor, free()))
    whole = write_tensor(tensor)
    assert b"".join(pieces) == whole.SerializeToString()
    assert len(pieces) > 3  # none of which takes long


@pytest.mark.parametrize("size", [0, 1, 4096, 4097])
def test_any_number_of_values(size: int) -> None:
    values = np.arange(size) - 3
    written = b"".join(run(field_of(3, values, free())))
    assert written == CONTENTS(int64_contents=values.tolist()).SerializeToString()


def test_what_is_written_is_held_as_it_grows() -> None:
    def take(size: int) -> None:
        if account.held + size > 100_000:
            raise Overloaded("full")

    account = Account(take)
    with pytest.raises(Overloaded):
        run(field_of(3, np.full(1 << 20, -1), RequestBudget(Limits(), account)))
    assert account.held > 50_000


def test_walks_can_share_a_number_of_steps() -> None:
    steps = iter(range(10))
    assert len(list(fields(b"\x1a\x00" * 6, steps=steps))) == 6
    with pytest.raises(ValueError, match="too many fields"):
        list(fields(b"\x1a\x00" * 5, steps=steps))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", ""),
        (b"\x0a\x02ab", "ab"),
        (b"\x12\x01k\x0a\x02ab", "ab"),
        (b"\x0a\x02ab\x12\x01k\x0a\x01c", "c"),  # parsers take the last one
        (b"\x08\x07", ""),  # a number, which is another field to parsers
        (b"\x0a\x01\xff", "\ufffd"),
    ],
)
def test_the_text_of_a_field_is_what_parsers_take(message: bytes, text: str) -> None:
    assert text_in(message, 1, 10) == text


@pytest.mark.parametrize("message", [b"\x0a\x02a", b"\x1b\x1c", b"\x12\x01k" * 11])
def test_there_is_no_text_in_what_cannot_be_walked(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"ends beyond|wire type|too many"):
        text_in(message, 1, 10)
