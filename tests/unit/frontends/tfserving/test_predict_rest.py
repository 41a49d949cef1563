"""Predict over REST."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import HeadraceError, InvalidRequest, NotFound, Unsupported
from headrace.base.tensors import Tensors
from headrace.model.servable import Signature
from tests.unit.frontends.oip.doubles import LoadedDouble, ctr, echo, spec
from tests.unit.frontends.tfserving.doubles import ServiceDouble, http, http_bytes, rows_model

PATH = "/v1/models/{}:predict"


def predict(model: Any, body: Any) -> Any:
    return http(ServiceDouble(model), "POST", PATH.format(model.name), body)


def test_rows_of_objects_are_answered_as_predictions() -> None:
    rows = [{"cat": [1] * 26, "dense": [0.5] * 13}, {"dense": [1] * 13, "cat": [2] * 26}]
    assert predict(ctr(), {"instances": rows}) == {"predictions": [[32.5], [65.0]]}


def test_rows_of_bare_values_mean_the_only_input() -> None:
    assert predict(echo("FP32", 2), {"instances": [[1, 2], [3, 0.1]]}) == {"predictions": [[1, 2], [3, 0.1]]}
    assert predict(echo("INT64"), {"instances": [1, 2]}) == {"predictions": [1, 2]}
    assert predict(echo("INT64"), {"instances": [{"x": 1}, {"x": 2}]}) == {"predictions": [1, 2]}
    assert predict(echo("BOOL"), {"instances": [True, False]}) == {"predictions": [True, False]}


def test_columns_are_answered_as_outputs() -> None:
    assert predict(ctr(), {"inputs": {"cat": [[1] * 26], "dense": [[0.5] * 13]}}) == {"outputs": [[32.5]]}
    assert predict(echo("FP32"), {"inputs": [1, 2]}) == {"outputs": [1, 2]}
    assert predict(echo("FP32"), {"inputs": {"x": [1, 2]}, "foo": 1}) == {"outputs": [1, 2]}


def test_several_outputs_have_names() -> None:
    model = rows_model(spec("a", "INT32"), spec("b", "FP32", 2))
    rows = [{"a": 1, "b": [0.1, 2]}, {"a": 2, "b": [3, 4]}]
    assert predict(model, {"instances": rows}) == {"predictions": rows}
    columns = {"a": [1, 2], "b": [[0.1, 2], [3, 4]]}
    assert predict(model, {"inputs": columns}) == {"outputs": columns}


def test_dimensions_may_be_free_and_many() -> None:
    cube = [[[1, 2], [3, 4], [5, 6]]]
    assert predict(echo("INT16", 3, 2), {"instances": cube}) == {"predictions": cube}
    assert predict(echo("INT16", None, 2), {"instances": cube}) == {"predictions": cube}


def test_the_value_of_an_input_with_one_a_row_needs_no_list_of_its_own() -> None:
    city = echo("BYTES", 1)
    assert predict(city, {"instances": [{"x": "rome"}, {"x": ["oslo"]}]}) == {
        "predictions": [["rome"], ["oslo"]]
    }
    assert predict(city, {"inputs": ["rome", "oslo"]}) == {"outputs": [["rome"], ["oslo"]]}
    assert predict(echo("FP32", 1), {"instances": [1, [2.5]]}) == {"predictions": [[1], [2.5]]}
    assert predict(echo("INT64", 1), {"inputs": {"x": [1, 2]}}) == {"outputs": [[1], [2]]}


def test_strings_are_text_or_base64() -> None:
    model = echo("BYTES")
    given = {"instances": ["é", {"b64": "YWI="}, {"b64": "/w=="}]}
    assert predict(model, given) == {"predictions": ["é", "ab", {"b64": "/w=="}]}
    assert predict(echo("BYTES", 1), {"inputs": [["a"], ["b"]]}) == {"outputs": [["a"], ["b"]]}
    assert predict(model, {"instances": [{"x": {"b64": "YWI="}}]}) == {"predictions": ["ab"]}


def test_outputs_named_bytes_are_base64() -> None:
    model = rows_model(spec("x", "BYTES"), outputs=[spec("x_bytes", "BYTES")])
    assert predict(model, {"instances": ["ab"]}) == {"predictions": [{"b64": "YWI="}]}


def test_not_a_number_and_infinities_come_and_go() -> None:
    body = b'{"instances": [[NaN, 1.5], [Infinity, -Infinity]]}'
    answer = http_bytes(ServiceDouble(echo("FP32", 2)), "POST", PATH.format("echo"), body)
    assert answer == b'{"predictions":[[NaN,1.5],[Infinity,-Infinity]]}'


def test_float32_is_printed_short() -> None:
    answer = http_bytes(ServiceDouble(echo("FP32")), "POST", PATH.format("echo"), b'{"instances":[0.1]}')
    assert answer == b'{"predictions":[0.1]}'
    answer = http_bytes(
        ServiceDouble(echo("FP32")), "POST", PATH.format("echo"), b'{"instances":[0.1,0.7,1e-20]}'
    )
    assert answer == b'{"predictions":[0.1,0.7,1e-20]}'


def test_a_number_too_large_for_float32_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"x: row 0: expected a number \(FP32\) from .*, got 1e\+300$"):
        http_bytes(ServiceDouble(echo("FP32")), "POST", PATH.format("echo"), b'{"instances":[1e300]}')
    answer = http_bytes(
        ServiceDouble(echo("FP32")), "POST", PATH.format("echo"), b'{"instances":[-Infinity]}'
    )
    assert answer == b'{"predictions":[-Infinity]}'


@pytest.mark.parametrize("text", ["aGVscA", "aGV\r\nscA==\r\n", "aGVscA==", "aGVs cA"])
def test_base64_is_taken_as_common_tools_write_it(text: str) -> None:
    assert predict(echo("BYTES"), {"instances": [{"b64": text}]}) == {"predictions": ["help"]}


def test_the_signature_may_be_named() -> None:
    def model(inputs: Tensors) -> Tensors:
        return {"y": inputs["x"]}

    loaded = echo("FP32")
    loaded.signatures = {
        **loaded.signatures,
        "other": Signature("other", (spec("x", "INT32"),), (spec("y", "INT32"),)),
    }
    assert predict(loaded, {"signature_name": "other", "instances": [2]}) == {"predictions": [2]}
    assert predict(loaded, {"signature_name": "serving_default", "instances": [2]}) == {"predictions": [2.0]}
    with pytest.raises(InvalidRequest, match="'none' not found; the model has 'serving_default', 'other'"):
        predict(loaded, {"signature_name": "none", "instances": [2]})


def test_versions_and_labels_are_in_the_path_in_any_case() -> None:
    newer = echo("FP32")
    newer.version = 4
    service = ServiceDouble(echo("FP32"), newer)
    for part in "", "/versions/3", "/labels/stable":
        assert http(service, "POST", f"/V1/Models/echo{part}:Predict", {"instances": [1]}) == {
            "predictions": [1]
        }


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("/v1/models/none:predict", NotFound, "none"),
        ("/v1/models/echo/versions/9:predict", NotFound, "9"),
        ("/v1/models/echo/labels/canary:predict", NotFound, "canary"),
        ("/v1/models/echo/versions/x:predict", InvalidRequest, "expected a version's number, got 'x'"),
        (
            "/v1/models/echo/versions/99999999999999999999:predict",
            InvalidRequest,
            "expected a version's number",
        ),
        (
            "/v1/models/echo/versions/3/labels/stable:predict",
            InvalidRequest,
            "both version '3' and label 'stable'",
        ),
    ],
)
def test_a_wrong_path_is_explained(path: str, error: type[HeadraceError], text: str) -> None:
    with pytest.raises(error, match=text):
        http(ServiceDouble(echo("FP32")), "POST", path, {"instances": [1]})


def test_a_model_without_explanations_names_the_kinds_that_have_them() -> None:
    kinds = (
        "this model cannot explain its answers; most models of LightGBM, XGBoost and CatBoost, linear models"
    )
    with pytest.raises(Unsupported, match=f"^{kinds}"):
        http(ServiceDouble(echo("FP32")), "POST", "/v1/models/echo:explain", {"instances": [1]})
    body = {"instances": [1], "signature_name": "explain"}
    with pytest.raises(InvalidRequest, match=f"^signature_name: signature 'explain' not found; {kinds}"):
        http(ServiceDouble(echo("FP32")), "POST", "/v1/models/echo:predict", body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "body: expected JSON"),
        (b"{", "body: expected JSON"),
        (
            b"\x89PNG\r\n\x1a\n\0",
            r'body: expected JSON, got binary data; send {"instances": \[{"b64": "…"}\]}',
        ),
        (b"GIF89a\1\0\1\0", "body: expected JSON, got binary data"),
        (
            b"--1d3\r\nContent-Disposition: form-data; name=f; filename=a.png\r\n\r\n\x89PNG",
            r'body: expected JSON, got a form \(multipart.*\); send {"instances": \[{"b64": "…"}\]}',
        ),
        (b'\xef\xbb\xbf{"instances": [1]}', "body: expected JSON: "),
        (b'{"instances": [NaN, }', "body: expected JSON"),
        (
            b'{"instances": [NaN, 1e400]}',
            r"^x: row 1: expected a number \(FP32\) from -3\.4028e\+38 to 3\.4028e\+38, got a larger number$",
        ),
        (
            b'{"instances": [{"x": 1}, {"x": -1e400}]}',
            r"^x: row 1: expected a number .* got a smaller number$",
        ),
        (
            b'{"instances": [' + b"1, " * 50_000 + b"1e400]}",
            r"^x: row 50000: expected a number \(FP32\) from .*, got a larger number$",
        ),
        (b'{"inputs": 1e400}', "^x: expected a list of rows, got a larger number; send a list"),
        (b'{"instances": [1], "signature_name": 1e400}', "signature_name: expected a string, got a number"),
        (b"[1]", "expected a JSON object, got a list"),
        (b'{"instances": ["\xff"]}', "expected UTF-8"),
        (b'{"a":' + b"[" * 100_000, "nested at most"),
        (b'{"instances":' + b"[" * 70 + b"]" * 70 + b"}", "nested at most 64 deep, got deeper"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "nested at most 64 deep, got deeper"),
        (b"{}", "expected either 'instances'.*got neither; send {.instances"),
        (b'{"instances": [1], "inputs": [1]}', "expected either 'instances'.*got both"),
        (
            b'{"instances": 1}',
            "instances: expected a list of rows, got a number; put a single row into a list, too$",
        ),
        (b'{"instances": []}', "instances: expected at least one row"),
        (b'{"inputs": []}', "at least one row"),
        (b'{"instances": [1], "signature_name": 2}', "signature_name: expected a string, got a number"),
        (
            b'{"instances": [{"x": 1}, 2]}',
            r"instances\[1\]: expected an object, as the first row is, got a number",
        ),
        (
            b'{"instances": [1, {"x": 1}]}',
            r"instances\[1\]: expected a value, as the first row is, got an object",
        ),
        (
            b'{"instances": [{"y": 1}]}',
            r"instances\[0\]: missing 'x', unexpected 'y'; every row needs 'x' and nothing else",
        ),
        (b'{"instances": [{"x": 1}, {}]}', r"instances\[1\]: missing 'x'; every row needs 'x'$"),
        (b'{"instances": [{"x": 1, "y": 1}]}', r"instances\[0\]: unexpected 'y'; remove it$"),
        (b'{"instances": [{"x": 1, "y": 1, "z": 1}]}', r"unexpected 'y', 'z'; remove them$"),
        (b'{"inputs": {"y": [1]}}', "missing input 'x', unknown input 'y'"),
        (b'{"instances": ["a"]}', r"^x: row 0: expected a number \(FP32\), got 'a'$"),
        (
            b'{"instances": [1, "4"]}',
            r"x: row 1: expected a number \(FP32\), got '4'; send it without quotes",
        ),
        (b'{"instances": [true]}', r"x: row 0: expected a number \(FP32\), got true; send 1"),
        (
            b'{"instances": [null]}',
            "x: row 0: got null, but this input has no replacement for missing values",
        ),
        (
            b'{"instances": [[1, 2]]}',
            r"row 0: expected a number \(FP32\), got a list; the input is x FP32 \[rows\]",
        ),
        (
            b'{"inputs": 1}',
            r"x: expected a list of rows, got 1; send a list, .*; the input is x FP32 \[rows\]",
        ),
    ],
)
def test_a_wrong_body_is_explained(body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        predict(echo("FP32"), body)


@pytest.mark.parametrize(
    ("model", "body", "text"),
    [
        (
            echo("FP32", 2),
            b'{"instances": [[1, 2], [3]]}',
            r"x: row 1: expected 2 values \(x FP32 \[rows, 2\]\), got 1",
        ),
        (echo("FP32", 2), b'{"instances": [[1, 2, 3]]}', r"expected x FP32 \[rows, 2\], got shape \[1, 3\]"),
        (
            echo("INT8"),
            b'{"instances": [128]}',
            r"x: row 0: expected a whole number \(INT8\) from -128 to 127, got 128",
        ),
        (echo("BOOL"), b'{"instances": [1]}', r"x: row 0: expected true or false \(BOOL\), got 1; send true"),
        (
            echo("FP32", None),
            b'{"instances": [[1], [1, 2]]}',
            r"x: row 1: expected 1 value as in row 0 \(x FP32 \[rows, any\]\), got 2; .*request of their own",
        ),
        (echo("FP32", 2, 2), b'{"instances": [[[1, 2], [1]]]}', "ragged"),
        (echo("FP32", 2), b'{"instances": [[1, 2], [1, "2"]]}', "x: row 1, column 1: expected a number"),
        (
            echo("UINT64"),
            b'{"instances": [-1]}',
            r"x: row 0: expected a whole number \(UINT64\) from 0 to \d+, got -1",
        ),
        (
            echo("UINT64"),
            b'{"instances": [18446744073709551616]}',
            r"x: row 0: expected a whole number \(UINT64\) from 0 to 18446744073709551615, got a larger",
        ),
        (
            echo("FP32", 2),
            b'{"instances": [[1, 2], [3, 1e39]]}',
            r"x: row 1, column 1: expected a number \(FP32\) from -3\.4028e\+38 to 3\.4028e\+38, got 1e\+39",
        ),
        (echo("INT32"), b'{"instances": [1.5]}', r"x: row 0: expected a whole number \(INT32\), got 1\.5"),
        (echo("INT32"), b'{"instances": [true]}', r"expected a whole number \(INT32\), got true; send 1"),
        (
            echo("BYTES"),
            b'{"instances": [1]}',
            'x: row 0: expected a string or {"b64": "…"}, got 1; put it in quotes',
        ),
        (
            echo("BYTES", 2),
            b'{"instances": [["a", "b"], ["c", 7]]}',
            "x: row 1, column 1: expected a string or",
        ),
        (echo("BYTES"), b'{"instances": [{"b64": "a"}]}', "x: row 0: expected base64"),
        (echo("BYTES"), b'{"instances": [{"b64": "\xc3\xa9"}]}', "expected base64"),
        (
            echo("BYTES", 2),
            b'{"instances": [["a", "b"], ["c"]]}',
            r"x: row 1: expected 2 values \(x BYTES \[rows, 2\]\), got 1",
        ),
        (echo("BYTES", 2), b'{"instances": ["a"]}', "x: row 0: expected a list, got 'a'; the input is x"),
        (
            ctr(),
            b'{"instances": [[1]]}',
            r"instances\[0\]: expected objects with the inputs 'cat', 'dense', got a list",
        ),
        (
            ctr(),
            b'{"inputs": [[1]]}',
            "inputs: expected an object with the inputs 'cat', 'dense', got a list",
        ),
        (ctr(), b'{"inputs": {"cat": [[1]]}}', "missing input 'dense'"),
    ],
)
def test_wrong_values_are_explained(model: Any, body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        predict(model, body)


def test_the_largest_unsigned_numbers_arrive() -> None:
    assert predict(echo("UINT64"), {"instances": [2**64 - 1, 5]}) == {"predictions": [2**64 - 1, 5]}


def test_brackets_in_strings_nest_nothing() -> None:
    assert predict(echo("BYTES"), {"instances": ["[" * 100 + '\\"{']}) == {
        "predictions": ["[" * 100 + '\\"{']
    }


def test_many_rows_do_not_count_as_deep() -> None:
    assert len(predict(echo("FP32", None), {"instances": [[1, 2]] * 500})["predictions"]) == 500


def test_a_key_that_comes_twice_means_its_last_value() -> None:
    assert predict(echo("FP32"), b'{"instances": [1], "instances": [2]}') == {"predictions": [2]}


def test_float64_and_float16_keep_their_own_precision() -> None:
    assert predict(echo("FP64"), {"instances": [0.1]}) == {"predictions": [0.1]}
    assert predict(echo("FP16"), {"instances": [0.1, 65504]}) == {"predictions": [0.1, 65500.0]}
    assert np.float16(65500.0) == np.float16(65504)
    assert math.isclose(predict(echo("FP64"), {"instances": [math.pi]})["predictions"][0], math.pi, rel_tol=0)


def test_a_model_that_counts_rows_gets_them_all() -> None:
    model = LoadedDouble(
        Signature("serving_default", (spec("x", "FP32"),), (spec("n", "INT64"),)),
        lambda inputs: {"n": np.full(len(inputs["x"]), len(inputs["x"]))},
        name="m",
    )
    assert predict(model, {"instances": [1, 2, 3]}) == {"predictions": [3, 3, 3]}
