"""Answers with binary tensors: what is read of them, and what is refused."""

from __future__ import annotations

import http.client
import json
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import ModelError
from headrace.client.oip_rest import answered, message, packed
from headrace.client.rest import Reply


def output(name: str, datatype: str, shape: list[int], size: object) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def reply(raw: bytes, *outputs: dict[str, Any], version: str = "3") -> Reply:
    text = json.dumps({"model_name": "m", "model_version": version, "outputs": outputs}).encode()
    headers = http.client.HTTPMessage()
    headers["Inference-Header-Content-Length"] = str(len(text))
    return Reply(headers, text + raw)


def test_outputs_of_several_kinds_follow_each_other() -> None:
    raw = b"\x01\x00\x00\x00a\x00\x00\x00\x00" + np.array([[1.5, 2.5]], "<f4").tobytes() + b"\x01\x00"
    version, found = answered(
        reply(
            raw,
            output("t", "BYTES", [2], 9),
            output("x", "FP32", [1, 2], 8),
            output("b", "BOOL", [2], 2),
            output("none", "BYTES", [0, 4], 0),
        )
    )
    assert version == 3
    assert found["t"].tolist() == [b"a", b""]
    assert found["x"].tolist() == [[1.5, 2.5]]
    assert found["b"].tolist() == [True, False]
    assert found["none"].shape == (0, 4)


def test_a_server_need_not_name_its_version() -> None:
    assert answered(reply(b"", version="")) == (None, {})


def test_numbers_of_thousands_of_digits_are_none() -> None:
    """Python refuses to convert them."""
    answer = reply(b"", version="9" * 5000)
    del answer.headers["Inference-Header-Content-Length"]
    answer.headers["Inference-Header-Content-Length"] = "9" * 5000
    assert answered(answer) == (None, {})


@pytest.mark.parametrize(
    ("raw", "described", "said"),
    [
        (b"1234", output("x", "FP32", [1], 5), "expected a binary_data_size from 0 to 4, got '5'"),
        (b"1234", output("x", "FP32", [1], -1), "got '-1'"),
        (b"1234", output("x", "FP32", [1], None), "got 'None'"),
        (b"1234", output("x", "FP32", [2], 4), "expected 8 bytes of binary data, got 4"),
        (b"12345", output("x", "FP32", [1], 4), "expected 4 bytes of binary data, got 5"),
        (b"1234", output("x", "FP32", [-1], 4), "expected sizes"),
        (b"1234", output("x", "FP32", [1] * 100, 4), "expected sizes"),
        (b"", output("x", "FP32", [0, 2**62, 4], 0), "expected smaller sizes"),
        (b"", output("x", "BYTES", [0, 2**64], 0), "expected smaller sizes"),
        (b"12", output("x", "BF16", [1], 2), "has the datatype 'BF16'"),
        (b"\x05\x00\x00\x00abc", output("x", "BYTES", [1], 7), "expected 1 texts in 7 bytes"),
        (b"\x01\x00\x00\x00ab", output("x", "BYTES", [1], 6), "expected 1 texts in 6 bytes"),
        (b"\x01\x00", output("x", "BYTES", [1], 2), "expected 1 texts in 2 bytes"),
        (b"", output("x", "BYTES", [2**60], 0), f"expected {2**60} texts"),
        (b"", {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}, "binary_data_size"),
        (b"", {"name": "x", "datatype": "FP32"}, "expected an answer of the Open Inference Protocol"),
    ],
)
def test_an_answer_that_does_not_add_up_is_refused(raw: bytes, described: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        answered(reply(raw, described))


def test_a_request_names_its_outputs_only_if_some_are_left_out() -> None:
    given = [packed("x", np.array([1, 2], np.int16)), packed("t", np.array([b"ab", b""], object))]
    for names in ([], ["y"]):
        headers, body = message(given, names)
        size = int(headers["Inference-Header-Content-Length"])
        told = json.loads(body[:size])
        assert told["inputs"] == [output("x", "INT16", [2], 4), output("t", "BYTES", [2], 10)]
        assert [one["name"] for one in told.get("outputs", ())] == names
        assert told.get("parameters", {}) == ({} if names else {"binary_data_output": True})
        assert body[size:] == b"\x01\x00\x02\x00\x02\x00\x00\x00ab\x00\x00\x00\x00"
