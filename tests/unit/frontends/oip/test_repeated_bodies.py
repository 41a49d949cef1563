"""Binary bodies of /infer that repeat are recognised, by templates that all versions share a limit on."""

from __future__ import annotations

import json
from weakref import ref

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest
from headrace.config import Limits
from headrace.frontends.calls import Account, HttpCall
from headrace.frontends.oip.infer_bodies import JsonInference, parse
from headrace.frontends.oip.repeated_bodies import RepeatedBodies
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.tensor_templates import TEMPLATES_KEPT
from headrace.frontends.wire.time_slicer import run
from headrace.model.servable import Signature, TensorSpec
from tests.unit.frontends.decoding import decode_body
from tests.unit.frontends.oip.doubles import LoadedDouble, echo, spec
from tests.unit.frontends.oip.test_infer_bodies import binary


def recognised(
    repeated: RepeatedBodies, loaded: LoadedDouble, body: bytes, length: bytes
) -> JsonInference | None:
    return repeated.recognise(loaded, HttpCall("POST", "", {}, body=body), int(length))


def test_binary_tensors_are_cut_out_in_order_the_second_time_by_template() -> None:
    signature = Signature(
        "serving_default", (spec("a", "FP32", 2), spec("b", "INT8", 3)), (spec("y", "FP32"),)
    )
    loaded = LoadedDouble(signature, lambda inputs: {})
    tensors = [
        {"name": "b", "datatype": "INT8", "shape": [1, 3], "parameters": {"binary_data_size": 3}},
        {"name": "a", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
    ]
    head = json.dumps({"inputs": tensors}).encode()
    length = b"%d" % len(head)
    repeated = RepeatedBodies()
    first = decode_body(loaded, head + b"123abcdefgh", length, repeated)
    assert recognised(repeated, loaded, head + b"456ABCDEFGH", length) is not None
    second = decode_body(loaded, head + b"456ABCDEFGH", length, repeated)
    assert first.inputs.columns == (b"abcdefgh", b"123")
    assert second.inputs.columns == (b"ABCDEFGH", b"456")
    with pytest.raises(InvalidRequest):
        decode_body(loaded, head + b"456ABCDEFGH", b"%d" % (len(head) - 1), repeated)
    with pytest.raises(InvalidRequest):
        decode_body(loaded, head + b"456ABCDEFGH", None, repeated)


def test_the_same_body_for_another_version_is_not_taken_for_it() -> None:
    """Version 2 has an output more, version 3 takes other numbers."""
    text, length = binary("FP32", [1], b"abcd")
    x, y = spec("x", "FP32"), spec("y", "FP32")
    first, second, third = (
        LoadedDouble(Signature("serving_default", (given,), outputs), lambda inputs: {})
        for given, outputs in ((x, (y,)), (x, (y, spec("z", "FP32"))), (spec("x", "INT32"), (y,)))
    )
    repeated = RepeatedBodies()
    for loaded, outputs in ((first, ["y"]), (second, ["y", "z"])):
        for _ in range(2):
            inference = decode_body(loaded, text, length, repeated)
            assert [one.spec.name for one in inference.outputs] == outputs
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            decode_body(third, text, length, repeated)
    for loaded, is_known in ((first, True), (second, True), (third, False)):
        assert (recognised(repeated, loaded, text, length) is not None) == is_known


def test_templates_of_all_versions_are_limited_together_and_keep_no_version_alive() -> None:
    repeated, loaded = RepeatedBodies(), echo("FP32", None)
    bodies = [binary("FP32", [1, count], bytes(4 * count)) for count in range(1, 10)]
    others = [LoadedDouble(loaded.signatures["serving_default"], loaded.model) for _ in range(300)]
    gone = ref(others[0])
    for one in (loaded, *others):
        for text, length in bodies:
            decode_body(one, text, length, repeated)
    assert repeated._templates._kept <= TEMPLATES_KEPT < len(bodies) * len(others)
    known = [
        all(recognised(repeated, one, *body) is not None for body in bodies) for one in (loaded, *others)
    ]
    assert not known[0]
    assert all(known[-200:])
    del others, one
    assert gone() is None


@pytest.mark.parametrize(("count", "is_copied"), [(10_000, True), (20_000, False)])
def test_raw_numbers_of_a_body_count_as_held_each_time_they_are_copied_out_of_it(
    count: int, is_copied: bool
) -> None:
    """Those of a large body that is known are not copied."""
    loaded, repeated, raw = echo("FP32", None), RepeatedBodies(), np.ones(count, np.float32).tobytes()
    text, length = binary("FP32", [1, count], raw)
    for known in (False, True):
        call = HttpCall("POST", "", {}, body=text)
        call.account = Account(lambda size: None, len(text))
        found = repeated.recognise(loaded, call, int(length))
        assert (found is not None) == known
        if not known:
            budget = RequestBudget.of(Limits(), call)
            run(parse(loaded, call, int(length), 9, budget, repeated))
        assert call.account.held == len(text) + (len(raw) if is_copied or not known else 0)


def test_what_is_spread_for_many_rows_is_not_learnt_and_counts_each_time() -> None:
    shared = TensorSpec("shared", np.dtype(np.float32), (100,), context=True)
    signature = Signature("serving_default", (spec("row", "FP32", 1), shared), (spec("y", "FP32"),))
    for rows, learnt in ((10, True), (1000, False)):
        loaded = LoadedDouble(signature, lambda inputs: {})
        tensors = [
            {"name": name, "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}}
            for name, shape, size in (("row", [rows, 1], 4 * rows), ("shared", [1, 100], 400))
        ]
        head = json.dumps({"inputs": tensors}).encode()
        text = head + bytes(4 * rows) + bytes(range(100)) * 4
        length, repeated = b"%d" % len(head), RepeatedBodies()
        decode_body(loaded, text, length, repeated)
        found = recognised(repeated, loaded, text, length)
        assert (found is not None) == learnt
