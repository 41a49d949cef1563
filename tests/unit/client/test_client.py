"""The public client, which a real server of this process answers: frames, missing values, errors."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import headrace
from headrace.base import event_loop
from headrace.base.errors import (
    ConfigError,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    InvalidRequest,
    ModelError,
    NotFound,
    OverLimit,
    PermissionDenied,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from headrace.notebook.local_server import LocalServer

AGES, CITIES = [31.0, 45.0, 27.0, 52.0], ["oslo", "rome", "oslo", "rome"]
MISSING_AGES, MISSING_CITIES = [31.0, None, 27.0], ["oslo", "rome", None]
GO = threading.Event()
GO.set()

PRINTING = """
class Model:
    inputs = [
        ("f", "FP32", [], -1.0),
        ("i", "INT64", [], -1),
        ("pair", "FP64", [2], -1.0),
        ("text", "BYTES", [], "?"),
        ("flag", "BOOL", []),
    ]
    outputs = [("printed", "BYTES", [])]

    def predict(self, inputs):
        return {"printed": [repr(row) for row in zip(*(column.tolist() for column in inputs.values()))]}
"""

FRAMES: dict[str, Any] = {
    "pandas": pd.DataFrame({"age": MISSING_AGES, "city": MISSING_CITIES}),
    "pandas_nullable": pd.DataFrame(
        {"city": pd.array(MISSING_CITIES, "string"), "age": pd.array([31, None, 27], "Int64")}
    ),
    "pandas_category": pd.DataFrame({"age": [31, 45, 27], "city": pd.Categorical(MISSING_CITIES)}),
    "pandas_more_columns": pd.DataFrame({"age": [31, 45, 27], "city": CITIES[:3], "day": pd.NaT}),
    "polars": pl.DataFrame({"age": [31, None, 27], "city": MISSING_CITIES}),
    "polars_category": pl.DataFrame(
        {"age": MISSING_AGES, "city": pl.Series(MISSING_CITIES, dtype=pl.Categorical)}
    ),
    "lists": {"age": MISSING_AGES, "city": MISSING_CITIES},
    "lists_of_numpy": {"age": [np.float64(31), None, np.int64(27)], "city": [b"oslo", None, np.str_("rome")]},
    "lists_of_other_types": {"age": [31, 45, 27], "city": ("oslo", "rome", "")},
    "arrays": {"age": np.array([31, 45], ">i2"), "city": np.array(["oslo", "rome"])},
    "arrays_with_missing_values": {
        "age": np.ma.masked_array([31.0, 99.0, 27.0], [False, True, False]),
        "city": np.array(MISSING_CITIES, object),
    },
    "masked_texts": {
        "age": AGES[:3],
        "city": np.ma.masked_array(["oslo", "rome", "?"], [False, False, True]),
    },
    "columns": {"age": pl.Series([31, None, 27]), "city": pd.Series(MISSING_CITIES)},
}
MATRICES: dict[str, Any] = {
    "pandas": pd.DataFrame({"a": [1, 2, 3], "b": [0.5, None, 1.5]}),
    "polars": pl.DataFrame({"a": [1, 2, 3], "b": [0.5, None, 1.5]}),
    "lists": {"features": [[1, 0.5], [2, None], [3, 1.5]]},
    "masked_rows": {"features": list(np.ma.masked_equal([[1, 0.5], [2, 99.0], [3, 1.5]], 99.0))},
    "columns": {"features": [pl.Series([1.0, 0.5]), pl.Series([2.0, None]), [3, 1.5]]},
}


class Parts(NamedTuple):
    doubled: float
    greeting: str
    is_large: bool


def parts(x: float, name: str) -> Parts:
    GO.wait()
    return Parts(2 * x, f"hello {name}", x > 10)


def halved(x: float) -> float:
    return x / 2


def shortened(text: str) -> str:
    return text[:3]


def people() -> object:
    columns = make_column_transformer((SimpleImputer(), ["age"]), (OneHotEncoder(), ["city"]))
    frame = pd.DataFrame({"age": [*AGES, None], "city": [*CITIES, None]})
    return make_pipeline(columns, LogisticRegression()).fit(frame, [0, 1, 0, 1, 1])


def matrix() -> object:
    random = np.random.default_rng(0)
    features = random.normal(size=(60, 2))
    return HistGradientBoostingRegressor(max_iter=3).fit(features, features.sum(axis=1))


@pytest.fixture(scope="module")
def pipeline() -> Iterator[LocalServer]:
    with headrace.serve(people(), name="people") as server:
        yield server


@pytest.fixture(scope="module")
def function() -> Iterator[LocalServer]:
    with headrace.serve(parts) as server:
        yield server


@pytest.mark.parametrize("name", FRAMES)
def test_it_answers_as_the_engine_does(pipeline: LocalServer, name: str) -> None:
    expected = pipeline.predict(FRAMES[name])
    with headrace.Client(pipeline.url) as client:
        answer = client.predict("people", FRAMES[name])
    assert list(answer) == list(expected)
    for output, values in expected.items():
        np.testing.assert_array_equal(answer[output], values)
        assert answer[output].dtype == values.dtype


ROWS = {"f": [1.0, 2.0], "i": [1, 2], "pair": [[1.0, 2.0]] * 2, "text": ["a", "b"], "flag": [True, False]}


@pytest.fixture(scope="module")
def printing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    version = tmp_path_factory.mktemp("models") / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(PRINTING)
    with headrace.serve(version.parents[1], allow_code=True) as server:
        yield server


@pytest.mark.parametrize(
    "inputs",
    [
        {"f": [[None], [1.0]], "i": [(2,), (None,)], "text": [["a"], [None]]},
        {"f": [np.array([None]), np.float32(0.1)], "pair": [None, (1.5, None)]},
        {"f": [True, None], "i": [None, np.True_], "pair": [[True, None], np.array([False, True])]},
        {"f": [[True], [None]], "i": [[None], [False]], "text": [b"a", None], "flag": [[False], [True]]},
    ],
)
def test_missing_values_may_stand_beside_booleans_and_in_columns_of_lists(
    printing: LocalServer, inputs: dict[str, Any]
) -> None:
    expected = printing.predict(ROWS | inputs)["printed"]
    with headrace.Client(printing.url) as client:
        assert client.predict("m", ROWS | inputs)["printed"].tolist() == expected.tolist()


@pytest.mark.parametrize("name", MATRICES)
def test_the_only_input_gets_all_columns(name: str) -> None:
    with headrace.serve(matrix(), name="matrix") as server, headrace.Client(server.url) as client:
        ((output, expected),) = server.predict(MATRICES["lists"]).items()
        np.testing.assert_array_equal(server.predict(MATRICES[name])[output], expected)
        np.testing.assert_array_equal(client.predict("matrix", MATRICES[name])[output], expected)


def test_texts_numbers_and_booleans_are_returned_and_may_be_changed(function: LocalServer) -> None:
    with headrace.Client(function.url) as client:
        answer = client.predict("parts", {"x": [4, 20], "name": ["Ann", "Zoë"]}, version=1)
        assert answer["greeting"].tolist() == [b"hello Ann", "hello Zoë".encode()]
        assert answer["is_large"].tolist() == [False, True]
        answer["doubled"] += 1
        assert answer["doubled"].tolist() == [9.0, 41.0]
        chosen = client.predict("parts", {"x": [4], "name": [""]}, outputs=["is_large", "doubled"])
        assert list(chosen) == ["is_large", "doubled"]


@pytest.mark.parametrize(
    ("inputs", "field", "said"),
    [
        ({"x": [1.0]}, "inputs", "missing input 'name'"),
        (pd.DataFrame({"x": [1.0], "nom": [""]}), "inputs", "unknown input 'nom'"),
        (pl.DataFrame({"x": ["old"], "name": [""]}), "x", "old|str"),
        (pd.DataFrame({"x": pd.to_datetime(["2026-01-01"]), "name": [""]}), "x", "mix of types"),
        ({"x": [1.0, None], "name": ["", ""]}, "x", "row 1: got null"),
        ({"x": [None, float("nan")], "name": ["", ""]}, "x", "only texts and finite numbers"),
        ({"x": [None, object()], "name": ["", ""]}, "x", "got object"),
        ({"x": [None, np.longdouble(1)], "name": ["", ""]}, "x", "got longdouble"),
        ({"x": [None, np.datetime64(1, "ns")], "name": ["", ""]}, "x", "got datetime64"),
        ({"x": [None, 1.0], "name": [b"\xff", None]}, "name", "only texts"),
        ({"x": [1.0, 2.0], "name": [True, None]}, "name", r"row 0: expected text \(BYTES\), got true"),
        ({"x": [[1.0, 2.0]], "name": [""]}, "x", "expected x FP64"),
        ({"x": [], "name": []}, "x", "at least one row"),
        ({"x": 1.0, "name": [""]}, "x", "expected"),
        ([[1.0, "de"]], "inputs", "got list"),
    ],
)
def test_a_wrong_input_is_an_error_that_names_it(
    function: LocalServer, inputs: Any, field: str, said: str
) -> None:
    with headrace.Client(function.url) as client, pytest.raises(InvalidRequest, match=said) as caught:
        client.predict("parts", inputs)
    assert caught.value.field == field


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "5"])
def test_a_timeout_is_a_number_of_seconds(function: LocalServer, seconds: Any) -> None:
    with pytest.raises(InvalidRequest, match="timeout_seconds: expected seconds above 0"):
        headrace.Client(function.url, timeout_seconds=seconds)
    with headrace.Client(function.url) as client, pytest.raises(InvalidRequest, match="timeout_seconds"):
        client.predict("parts", {"x": [1.0], "name": [""]}, timeout_seconds=seconds)


def test_names_that_the_server_does_not_know_are_not_found(function: LocalServer) -> None:
    inputs = {"x": [1.0], "name": [""]}
    with headrace.Client(function.url) as client:
        for model, version in (("part", None), ("a/../b", None), ("\ud800", None), ("parts", 2)):
            with pytest.raises(NotFound):
                client.predict(model, inputs, version=version)
        with pytest.raises(InvalidRequest, match="unknown output 'y'"):
            client.predict("parts", inputs, outputs=["y"])
        with pytest.raises(InvalidRequest, match=r"put the name into a list: \['doubled'\]"):
            client.predict("parts", inputs, outputs="doubled")


def test_an_answer_that_does_not_come_is_given_up(function: LocalServer) -> None:
    with headrace.Client(function.url) as client:
        client.predict("parts", {"x": [1.0], "name": [""]})
        GO.clear()
        try:
            with pytest.raises(DeadlineExceeded):
                client.predict("parts", {"x": [1.0], "name": [""]}, timeout_seconds=0.2)
        finally:
            GO.set()
        assert client.predict("parts", {"x": [1.0], "name": [""]})["doubled"].tolist() == [2.0]


def test_a_server_that_has_another_model_now_is_asked_for_its_inputs_again() -> None:
    with headrace.serve(halved, name="m") as server:
        client = headrace.Client(server.url)
        assert client.predict("m", {"x": [3]})["output"].tolist() == [1.5]
    with pytest.raises(Unavailable):
        client.predict("m", {"x": [3]})
    with pytest.raises(InvalidRequest, match="x: expected FP64, got a mix"):  # needs no server
        client.predict("m", {"x": np.array([3j])})
    port = int(server.url.rpartition(":")[2])
    with headrace.serve(shortened, name="m", http_port=port):
        assert client.predict("m", {"text": ["summer"]})["output"].tolist() == [b"sum"]
        with pytest.raises(InvalidRequest, match="missing input 'text'"):
            client.predict("m", {"x": [3]})
        client.close()


MODEL = """
class Model:
    inputs = [("x", "{0}", [])]
    outputs = [("y", "{0}", [])]

    def predict(self, inputs):
        return {{"y": inputs["x"]}}
"""


def test_numbers_are_sent_as_the_version_that_answers_declares_them(tmp_path: Path) -> None:
    for number, datatype in enumerate(("FP32", "FP32", "FP64", "FP32"), start=1):
        version = tmp_path / str(number) / "m" / str(number)
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL.format(datatype))
    seen, port = [], 0
    for number in (1, 2, 3, 4):
        with headrace.serve(tmp_path / str(number), allow_code=True, http_port=port) as server:
            if not port:
                port = int(server.url.rpartition(":")[2])
                client = headrace.Client(server.url)
            seen.append(client.predict("m", {"x": [0.1]})["y"])
    client.close()
    assert [values.item() == 0.1 for values in seen] == [False, False, True, False]
    assert [str(values.dtype) for values in seen] == ["float32", "float32", "float64", "float32"]


def test_a_closed_client_and_one_of_the_parent_process_say_so(
    function: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.Client(function.url) as client:
        monkeypatch.setattr(event_loop, "forks", event_loop.forks + 1)
        with pytest.raises(FailedPrecondition, match="before this process was forked"):
            client.predict("parts", {"x": [1.0], "name": [""]})
        monkeypatch.undo()
    with pytest.raises(FailedPrecondition, match="has been closed"):
        client.predict("parts", {"x": [1.0], "name": [""]})


def test_a_token_is_never_sent_unencrypted_to_another_machine() -> None:
    with pytest.raises(ConfigError, match="https"):
        headrace.Client("http://192.0.2.1:8501", token="secret")


class Refusing(http.server.BaseHTTPRequestHandler):
    """Refuses each request with the status that the model in its path is named after."""

    def do_GET(self) -> None:
        status = int(self.path.rpartition("/")[2])
        body = b"gone" if status in (308, 410) else b'{"error":"because"}'
        self.send_response(status)
        self.send_header("Retry-After", "7")
        if status == 308:
            self.send_header("Location", "https://other.example/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, Unauthenticated),
        (403, PermissionDenied),
        (404, NotFound),
        (413, TooLarge),
        (429, OverLimit),
        (500, ModelError),
        (501, Unsupported),
        (502, Unavailable),
        (503, Unavailable),
        (504, DeadlineExceeded),
        (599, ModelError),
    ],
)
def test_a_refusal_is_an_error_of_the_servers_kind(
    refusing: str, status: int, kind: type[HeadraceError]
) -> None:
    with headrace.Client(refusing) as client, pytest.raises(HeadraceError, match=r"^because$") as caught:
        client.predict(str(status), {"x": [1]})
    assert type(caught.value) is kind
    assert getattr(caught.value, "retry_after_seconds", 7.0) == 7.0


def test_a_refusal_of_something_else_on_the_way_is_repeated(refusing: str) -> None:
    with (
        headrace.Client(refusing) as client,
        pytest.raises(FailedPrecondition, match=r"answered 410: 'gone'"),
    ):
        client.predict("410", {"x": [1]})


def test_a_redirect_is_an_error_that_tells_where_to(refusing: str) -> None:
    with (
        headrace.Client(refusing) as client,
        pytest.raises(
            FailedPrecondition, match=r"no redirects: give it the url of 'https://other\.example/'"
        ),
    ):
        client.predict("308", {"x": [1]})
