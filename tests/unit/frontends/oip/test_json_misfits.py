"""Wrong JSON bodies are refused with the part, the expected and the actual value, and the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import BY_OIP
from headrace.model.servable import Signature
from tests.unit.frontends.decoding import decode_body
from tests.unit.frontends.oip.doubles import LoadedDouble, body, echo, spec


def decode(loaded: LoadedDouble, text: bytes) -> None:
    decode_body(loaded, text, None)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "said"),
    [
        ("FP32", [2], [1, "2"], r"x: row 1: expected a number \(FP32\), got '2'; send it without quotes$"),
        ("FP32", [2], [1, True], r"x: row 1: expected a number \(FP32\), got true; send 1$"),
        ("FP32", [2], [1, None], "x: row 1: got null, but this input has no replacement for missing values"),
        ("INT32", [1], [1.5], r"x: row 0: expected a whole number \(INT32\), got 1\.5$"),
        (
            "INT32",
            [1],
            [1 << 31],
            r"x: row 0: expected a whole number \(INT32\) from -2147483648 to 2147483647, got 2147483648$",
        ),
        ("UINT8", [1], [-1], r"x: row 0: expected a whole number \(UINT8\) from 0 to 255, got -1$"),
        (
            "UINT64",
            [1],
            [1 << 64],
            r"x: row 0: .* from 0 to 18446744073709551615, got a larger number$",
        ),
        ("BOOL", [1], [1], r"x: row 0: expected true or false \(BOOL\), got 1; send true$"),
        ("BYTES", [1], [1], r"x: row 0: expected text \(BYTES\), got 1; put it in quotes$"),
        ("BF16", [1], [1], "x: datatype 'BF16' has no JSON form; send it as binary data"),
        ("FLOAT", [1], [1], "x: datatype 'FLOAT' has no JSON form; expected one of INT8"),
        (
            "FP32",
            [2, 2],
            [[1, 2], [3]],
            r"x: row 1: expected 2 values, as the shape \[2, 2\] says, got 1; make the shape and the data ag",
        ),
        ("FP32", [2, 2], [[1, 2, 3, 4]], r"x: expected 2 rows, as the shape \[2, 2\] says, got 1; make the "),
        (
            "FP32",
            [2, 2],
            [[1, 2], 3],
            r"x: row 1: expected a list of 2, got 3; send them flat, or nested like the shape \[2, 2\]$",
        ),
        (
            "FP32",
            [2, 2],
            [[1, 2], [3, "4"]],
            r"x: row 1, column 1: expected a number \(FP32\), got '4'; send",
        ),
        ("FP32", [2, 2], [1, 2, 3, "4"], r"x: row 1, column 1: expected a number \(FP32\), got '4'; send"),
        (
            "FP32",
            [4],
            [[1, 2], [3, 4]],
            r"x: row 0: expected a number \(FP32\), got a list; the input is x FP32 \[rows\]$",
        ),
        (
            "FP32",
            [3],
            [1, 2],
            r"x: expected 3 values for the shape \[3\], got 2; make the shape and",
        ),
        ("FP32", [1], [1, 2], r"x: expected 1 value for the shape \[1\], got 2; make the shape and"),
        ("FP32", [-1], [1], "x: expected sizes of 0 or more"),
        ("FP32", [0], [], "x: expected at least one row"),
        ("FP32", [1] * 33, [1], "x: expected at most 32 dimensions, got 33"),
        (
            "FP32",
            [1],
            {},
            r"x: expected a list of values, got an object; send them flat, or nested like the shape \[1\]$",
        ),
        ("BYTES", [2], ["a"], r"x: expected 2 strings for its shape, got 1"),
    ],
)
def test_wrong_values_are_refused_with_the_reason(
    datatype: str, shape: list[int], data: Any, said: str
) -> None:
    loaded = echo(datatype if datatype in BY_OIP else "FP32", *([2] if shape == [2, 2] else []))
    with pytest.raises(InvalidRequest, match=said):
        decode(loaded, body(datatype, shape, data))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", r'^body: expected JSON, got nothing; send {"inputs": \[{"name": '),
        (
            b"\x89PNG",
            "^body: expected JSON, got binary data; send JSON, with its length in the header Inf",
        ),
        (b"[]", r'^body: expected an object, got a list; send {"inputs": '),
        (b"{}", r'^body: missing \'inputs\'; send {"inputs": \[{"name": …, "datatype": …, "shape": '),
        (
            b'{"instances":[1]}',
            "body: missing 'inputs'; send .*, or send instances to /v1/models/NAME:",
        ),
        (b'{"inputs":{}}', "^inputs: expected a list, got an object; send "),
        (
            b'{"inputs":["x"]}',
            "^inputs\\[0\\]: expected an object, got 'x'; every input needs 'name', 'd",
        ),
        (
            b'{"inputs":[{"name":"x"}]}',
            r"^inputs\[0\] of 'x': missing 'datatype'; every input needs 'name', 'datatype', 'shape' and 'd",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1.5],"data":[]}]}',
            r"^inputs\[0\]\.shape\[0\] of 'x': expected a whole number, got 1\.5$",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":["1"],"data":[]}]}',
            r"^inputs\[0\]\.shape\[0\] of 'x': expected a whole number, got '1'; send it without quotes$",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":1,"data":[]}]}',
            r"^inputs\[0\]\.shape of 'x': expected a list, got 1; send the sizes as a list, rows first$",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":[]}]}',
            r"^inputs\[0\]\.parameters of 'x': expected an object, got a list; send the parameters by name$",
        ),
        (
            b'{"inputs":[{"name":"x"}],"inputs":[]}',
            r"^inputs\[0\]: Object missing required field `datatype`; send",
        ),
        (
            b'{"inputs":[{"name":"x"}],"inputs":7}',
            r"^inputs\[0\]: Object missing required field `datatype`; send",
        ),
        (b'{"inputs":[],"id":7}', "^id: expected text, got 7; put it in quotes$"),
        (
            b'{"inputs":[],"outputs":["y"]}',
            r"^outputs\[0\]: expected an object, got 'y'; every output needs '",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}',
            "x: expected data, or binary_data_size in its parameters, got neither",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[NaN]}]}',
            "body: expected JSON: NaN is not valid JSON; send null for a missing value, or the input as bin",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[Infinity]}]}',
            "body: expected JSON: Infinity is not valid JSON",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1e999]}]}',
            r"^x: row 0: expected a number \(FP32\) from -3\.4028e\+38 to 3\.4028e\+38, got a larger number$",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":1e999}]}',
            r"^x: expected a list of values, got a larger number; send them flat, or nested like the "
            r"shape \[1\]$",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1,2],[3,-1e999]]}]}',
            r"^x: row 1, column 1: expected a number .*, got a smaller number$",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1,2],1e999]}]}',
            "^x: row 1: expected a list of 2, got a larger number; send them flat",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1e999],"data":[1]}]}',
            r"^inputs\[0\]\.shape\[0\] of 'x': expected a number of at most 64 bits, got a larger number; "
            "send the sizes as a list, rows first$",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"parameters":{"timeout":1e999}}',
            "^timeout: expected a whole number, got a larger number$",
        ),
        (b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["\xff"]}]}', "body|data"),
        (b'{"inputs":[{"name":"\xff","datatype":"BYTES","shape":[1],"data":["a"]}]}', "body: "),
        (b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}', "body: "),
        (
            b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["\\ud800 and more text"]}]}',
            "body: expected JSON: .*unexpected end of escaped utf-16 surrogate pair.*; send ",
        ),
        (
            b'{"inputs":[]} x',
            r"body: JSON is malformed: trailing characters \(byte 15\); if binary data follows",
        ),
        (b'{"inputs":[],"deep":' + b"[" * 100_000, "body: expected JSON nested at most 64 deep"),
        (b'{"inputs":[],"deep":' + b"[" * 63 + b"]" * 63 + b"}", "inputs: missing input 'x'"),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":' + b"[" * 100_000,
            "body: expected JSON nested at most 64 deep",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"parameters":{"timeout":-1}}',
            "timeout: ",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"parameters":{"timeout":%s}}'
            % (b"9" * 400),
            "timeout: expected microseconds from 0 to 2",
        ),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%s],"data":[1]}]}' % (b"9" * 400), "x: "),
        (b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[%s]}]}' % (b"9" * 400), "x"),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"parameters":{"timeout":"1"}}',
            "timeout",
        ),
    ],
)
def test_bodies_that_are_no_request_are_refused(text: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        decode(echo("BYTES" if b"BYTES" in text else "FP32"), text)


@pytest.mark.parametrize("datatype", ["FP16", "FP32"])
def test_a_number_too_large_for_its_datatype_is_refused(datatype: str) -> None:
    largest = {"FP16": "65504", "FP32": r"3\.4028e\+38"}[datatype]
    said = rf"x: row 1: expected a number \({datatype}\) from -{largest} to {largest}, got 1e\+39$"
    with pytest.raises(InvalidRequest, match=said):
        decode(echo(datatype), body(datatype, [2], [1, 1e39]))


def test_a_value_of_another_datatype_than_the_inputs_is_refused_with_the_input() -> None:
    with pytest.raises(InvalidRequest, match=r"x: row 0: .*INT32\), got 1\.5; the input is x FP64 \[rows\]$"):
        decode(echo("FP64"), body("INT32", [1], [1.5]))


def test_lists_that_fit_the_input_and_not_the_shape_are_refused() -> None:
    signature = Signature(
        "serving_default", (replace(spec("x", "FP32", 2), absent=0.0),), (spec("y", "FP32"),)
    )
    said = r"x: expected lists nested like the shape \[1, 4\], got lists nested like x FP32 \[rows, 2\]; make"
    with pytest.raises(InvalidRequest, match=said):
        decode(LoadedDouble(signature, lambda inputs: {}), body("FP32", [1, 4], [[1, 2]]))
