"""Endpoints of an ``app.py``: which there are, and files that cannot be served."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from headrace.base.errors import ConfigError, InvalidRows
from headrace.endpoints import endpoints_of, model_of


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave other tests neither the folders nor the modules of an app."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} & {"app", "helper", "late_helper"} - before:
        del sys.modules[name]


APP = """
import headrace
from helper import factor

@headrace.endpoint
def price(age: float) -> float:
    return age * factor

@headrace.endpoint(name="other", batch=True)
def second(age: list[float]) -> list[float]:
    return age
"""


CHECKED = """
import functools
import headrace

def checked(function):
    @functools.wraps(function)
    def check(age):
        if age < 0:
            raise headrace.InvalidRequest("expected 0 or more", field="age")
        return function(age=age)
    return check

{}
def price(age: float) -> float:
    return age
"""


def written(folder: Path, app: str = APP) -> Path:
    (folder / "helper.py").write_text("factor = 3\n")
    (folder / "failing.py").write_text("\n1 / 0\n")
    (folder / "app.py").write_text(app)
    return folder / "app.py"


def test_a_file_has_endpoints_and_imports_its_neighbours(tmp_path: Path) -> None:
    file = written(tmp_path)
    assert list(endpoints_of(file, file)) == ["price", "other"]
    made = model_of(str(file), str(file), "price")()
    assert made.predict({"age": np.array([2.0])}) == {"output": [6.0]}


def test_a_decorator_below_the_endpoint_runs(tmp_path: Path) -> None:
    file = written(tmp_path, CHECKED.format("@headrace.endpoint\n@checked"))
    made = model_of(str(file), str(file), "price")()
    with pytest.raises(InvalidRows, match="age: row 1: expected 0 or more"):
        made.predict({"age": np.array([1.0, -1.0])})


def test_a_second_variable_is_no_second_endpoint(tmp_path: Path) -> None:
    file = written(tmp_path, APP + "\nagain = price\n")
    assert list(endpoints_of(file, file)) == ["price", "other"]


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("x = 1\n", "no endpoints; mark a function with @headrace.endpoint"),
        ("1 / 0\n", "^app.py:1: ZeroDivisionError: division by zero$"),
        ("\nopen('/nowhere/prices.csv')\n", "^app.py:2: FileNotFoundError: "),
        (APP + "\nprint(Annotated)\n", "^app.py:13: NameError: name 'Annotated' is not defined$"),
        (APP + "\nimport failing\n", "^failing.py:2: ZeroDivisionError"),
        ("x = (\n", "app.py fails: SyntaxError"),
        (
            "import headrace\n@headrace.endpoint('price')\ndef price(age: float) -> float: ...\n",
            "expected a function or a class, got str; .* set the model's name with name=",
        ),
        (
            "import functools, headrace\nprice = headrace.endpoint(functools.partial(max, 1))\n",
            "expected a function or a class, got partial; define a function that calls the object",
        ),
        (APP.replace('"other"', '"price"'), "two endpoints are called 'price'"),
        (
            CHECKED.format("@checked\n@headrace.endpoint"),
            "price wraps endpoint price, .*; put @headrace.endpoint above all other decorators",
        ),
    ],
)
def test_a_file_that_cannot_be_served_says_why(tmp_path: Path, app: str, said: str) -> None:
    file = written(tmp_path, app)
    with pytest.raises(ConfigError, match=said):
        endpoints_of(file, file)


LOCAL = """
import headrace
from dataclasses import dataclass

def made():
    @dataclass
    class Person:
        age: float

    @headrace.endpoint
    def price(person: Person) -> float:
        return person.age

    return price

price = made()
"""


def test_annotations_are_those_of_python_and_not_of_the_file_that_imports(tmp_path: Path) -> None:
    file = written(tmp_path, LOCAL)
    assert endpoints_of(file, file)["price"].inputs == [("age", "FP64", ())]


LATE = """
import headrace

@headrace.endpoint
def price(age: float) -> float:
    from late_helper import factor
    return age * factor
"""


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("raise RuntimeError('broken')\n", r"app\.py:\d+: RuntimeError: broken"),
        ("", "no endpoints"),
        (APP.replace('"other"', '"price"'), "two endpoints are called 'price'"),
        (CHECKED.format("@checked\n@headrace.endpoint"), "price wraps endpoint price"),
    ],
)
def test_a_file_that_fails_leaves_the_modules_of_the_version_before(
    tmp_path: Path, app: str, said: str
) -> None:
    file = written(tmp_path, LATE)
    (tmp_path / "late_helper.py").write_text("factor = 3\n")
    made = model_of(str(file), str(file), "price")()
    assert made.predict({"age": np.array([2.0])}) == {"output": [6.0]}
    own = sys.modules["app"]
    (tmp_path / "late_helper.py").write_text("factor = 1000\n")
    (tmp_path / ".2.py").write_text(f"import late_helper\n{app}")
    with pytest.raises(ConfigError, match=said):
        endpoints_of(tmp_path / ".2.py", file)
    assert made.predict({"age": np.array([2.0])}) == {"output": [6.0]}
    assert sys.modules["app"] is own
    (tmp_path / ".3.py").write_text(LATE)
    endpoints_of(tmp_path / ".3.py", file)
    assert made.predict({"age": np.array([2.0])}) == {"output": [2000.0]}


MEETING = """
import headrace
import meeting

try:
    meeting.both.wait(timeout=0.5)
except meeting.Alone:
    pass

@headrace.endpoint
def price(age: float) -> float:
    return age
"""


def test_threads_that_load_models_of_one_file_import_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two imports at the same time would meet; one waits for the other half a second, and goes on."""
    meeting = ModuleType("meeting")
    vars(meeting).update(both=threading.Barrier(2), Alone=threading.BrokenBarrierError)
    monkeypatch.setitem(sys.modules, "meeting", meeting)
    file = written(tmp_path, MEETING)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(endpoints_of, [file, file], [file, file])
    assert first["price"] is second["price"]
    assert vars(meeting)["both"].broken
