"""A server in a thread of this process: what it serves, its addresses, its end, and what it refuses."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

import headrace
from headrace.base.errors import ConfigError, FailedPrecondition, LoadError
from headrace.notebook.local_server import LocalServer

PEOPLE = pd.DataFrame({"age": [31.0, 45.0, 27.0, 52.0], "city": ["oslo", "rome", "oslo", "rome"]})


def price(age: float, city: str) -> float:
    return 10 + age / 2 + (city == "oslo")


class Failing:
    """A class whose object cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("there is no table")

    def __call__(self, x: float) -> float:
        return x


class Own(LogisticRegression):
    """An estimator whose type no list trusts."""


def doubled(numbers: np.ndarray) -> np.ndarray:
    return numbers * 2


def own_pipeline() -> object:
    parts = [("n", FunctionTransformer(doubled), ["age"]), ("c", OneHotEncoder(), ["city"])]
    return make_pipeline(ColumnTransformer(parts), Own()).fit(PEOPLE, [0, 1, 0, 1])


def asked(server: LocalServer, model: str, *rows: object) -> object:
    body = json.dumps({"instances": rows}).encode()
    with urllib.request.urlopen(f"{server.url}/v1/models/{model}:predict", body) as answer:
        return json.load(answer)["predictions"]


def test_a_function_answers_here_and_over_the_network() -> None:
    with headrace.serve(price) as server:
        assert server.models == ("price",)
        assert server.predict(PEOPLE[:2])["output"].tolist() == [26.5, 32.5]
        assert asked(server, "price", {"age": 4, "city": "oslo"}) == [13.0]


def test_an_event_loop_may_run_in_the_calling_thread() -> None:
    async def cell() -> list[float]:
        with headrace.serve(price, name="cost") as server:
            found: list[float] = server.predict(PEOPLE[:1], model="cost")["output"].tolist()
            return found

    assert asyncio.run(cell()) == [26.5]


def test_the_representation_has_a_command_that_works() -> None:
    pipeline = own_pipeline()
    with headrace.serve(pipeline, name="churn") as server:
        shown = repr(server)
        assert server.url in shown
        assert server.grpc_address in shown
        assert "age FP64 [rows], city BYTES [rows]" in shown
        row = json.loads(shown.rpartition("-d '")[2].partition("'")[0])["instances"][0]
        assert row["city"] in ("oslo", "rome")
        assert asked(server, "churn", row)
    assert repr(server) == "headrace server of churn, stopped"


def test_an_estimator_of_own_types_is_trusted_as_an_object_but_not_as_a_file(tmp_path: Path) -> None:
    pipeline = own_pipeline()
    expected = pipeline.predict_proba(PEOPLE)  # type: ignore[attr-defined]
    with headrace.serve(pipeline) as server:
        assert np.array_equal(server.predict(PEOPLE)["probabilities"], expected)
    skops.io.dump(pipeline, tmp_path / "churn.skops")
    with pytest.raises(LoadError, match=r"churn: churn\.skops holds types that are not trusted.*Own"):
        headrace.serve(tmp_path / "churn.skops")


def test_stop_frees_the_port_and_may_be_called_twice() -> None:
    server = headrace.serve(price)
    with pytest.raises(ConfigError, match="http_port: port"):
        headrace.serve(price, http_port=int(server.url.rpartition(":")[2]))
    server.stop()
    server.stop()
    with pytest.raises(urllib.error.URLError):
        asked(server, "price", {"age": 4, "city": "oslo"})
    with pytest.raises(FailedPrecondition, match="has been stopped"):
        server.predict(PEOPLE)


def test_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with headrace.serve(price):
        assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(LoadError, match=r"^Failing: model\.py fails: RuntimeError: there is no table$"):
        headrace.serve(Failing)
    assert not list(tmp_path.iterdir())


def test_an_app_has_several_models(tmp_path: Path) -> None:
    functions = "@headrace.endpoint\ndef {}(x: float) -> float:\n    return x + {}\n\n"
    app = tmp_path / "app.py"
    app.write_text("import headrace\n\n" + functions.format("one", 1) + functions.format("two", 2))
    with headrace.serve(app) as server:
        assert server.models == ("one", "two")
        assert server.predict({"x": [1.0]}, model="two")["output"].tolist() == [3.0]
        with pytest.raises(ConfigError, match="model: expected one of one, two, got none"):
            server.predict({"x": [1.0]})
    with pytest.raises(ConfigError, match="name: expected none"):
        headrace.serve(app, name="one")


@pytest.mark.parametrize(
    ("path", "name"),
    [("", "half_plus_two"), ("half_plus_two", "half_plus_two"), ("half_plus_two/1", "half_plus_two")],
)
def test_a_directory_is_served_as_models_a_model_or_a_version(path: str, name: str, tmp_path: Path) -> None:
    version = tmp_path / "half_plus_two/1"
    version.mkdir(parents=True)
    example = Path(headrace.__file__).with_name("example") / "half_plus_two.onnx"
    (version / "model.onnx").write_bytes(example.read_bytes())
    with headrace.serve(tmp_path / path) as server:
        assert server.models == (name,)
        assert server.predict({"x": [1.0]})["y"].tolist() == [2.5]


@pytest.mark.parametrize(
    ("model", "refusal"),
    [
        (lambda _: object(), "expected a model of scikit-learn.*got an object of builtins.object"),
        (lambda _: 3, "got an object of builtins.int"),
        (lambda _: lambda x: x, "endpoint <lambda>: expected a model's name"),
        (lambda place: place / "none.onnx", "does not exist"),
    ],
)
def test_what_is_no_model_is_refused(model: Callable[[Path], object], refusal: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=refusal):
        headrace.serve(model(tmp_path))


def test_a_name_that_is_none_and_an_empty_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name: expected a model's name"):
        headrace.serve(price, name="a/b")
    with pytest.raises(LoadError, match="no models"):
        headrace.serve(tmp_path)


@pytest.mark.parametrize("what", ["predict", "stop"])
def test_a_function_that_would_wait_for_itself_is_refused(what: str) -> None:
    def asks(x: float) -> float:
        if x == 7:
            getattr(server, what)(*([{"x": [1.0]}] if what == "predict" else []))
        return x

    with headrace.serve(asks) as server:
        with pytest.raises(FailedPrecondition, match="asks calls i"):
            server.predict({"x": [7.0]})
        assert server.predict({"x": [2.0]})["output"].tolist() == [2.0]


def test_what_is_wrong_names_the_arguments_of_python() -> None:
    with headrace.serve(price) as server:
        taken = int(server.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=r"choose another port with http_port=N \(0 for") as raised:
            headrace.serve(price, http_port=taken)
        assert "--" not in raised.value.message
    with pytest.raises(ConfigError, match=r"choose others with host and http_port$"):
        headrace.serve(price, host="192.0.2.1")


def test_a_name_of_digits_is_refused(tmp_path: Path) -> None:
    said = "name: expected a model's name: .*, and not only digits, got '123'"
    for model in (price, own_pipeline()):
        with pytest.raises(ConfigError, match=said):
            headrace.serve(model, name="123")
    (tmp_path / "123.onnx").write_bytes(b"")
    with pytest.raises(ConfigError, match=said):
        headrace.serve(tmp_path / "123.onnx")


APP = """
import headrace
import neighbour_of_app

@headrace.endpoint
def tripled(x: float) -> float:
    return neighbour_of_app.times(x)
"""


def test_an_app_leaves_the_callers_modules_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    file, app = tmp_path / "neighbour_of_app.py", tmp_path / "own_app.py"
    file.write_text("class Row:\n    pass\n\ndef times(x):\n    return x * 3\n")
    app.write_text(APP)
    own = importlib.import_module("neighbour_of_app")
    for factor in (3, 4, 5):
        file.write_text(file.read_text().replace(f"x * {factor - 1}", f"x * {factor}    # changed"))
        importlib.invalidate_caches()
        with headrace.serve(app) as server:
            assert server.predict({"x": [1.0]})["output"].tolist() == [factor]
        assert sys.modules["neighbour_of_app"] is own


def test_an_app_with_the_name_of_a_module_of_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "statistics.py").write_text(APP)
    before = importlib.import_module("statistics")
    with pytest.raises(ConfigError, match=r"statistics\.py: has the name of Python's module statistics"):
        headrace.serve(tmp_path / "statistics.py")
    assert importlib.import_module("statistics") is before
