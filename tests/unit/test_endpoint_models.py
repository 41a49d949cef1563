"""Endpoints as models: coroutines, generators, classes with the methods of a ``model.py``, missing values."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import headrace
from headrace.base.errors import DeadlineExceeded, FailedPrecondition, InvalidRequest, InvalidRows, ModelError
from headrace.base.tensors import Tensors
from headrace.endpoint_models import model_class
from headrace.endpoints import describe
from headrace.notebook.local_server import LocalServer
from tests.waiting import seconds_left

THREE = {"x": np.array([1.0, 2.0, 3.0])}


def model(target: Callable[..., Any], *, batch: bool = False) -> Any:
    return model_class(describe(target, batch=batch, name="f"))()


def awaited(target: Callable[..., Any], inputs: Tensors, *, batch: bool = False) -> object:
    """Return the answer of an endpoint of a coroutine function."""
    answer = model(target, batch=batch).predict(inputs)
    return asyncio.run(asyncio.wait_for(answer, seconds_left()))


def asked(server: LocalServer, path: str, body: object) -> Any:
    """Return the answer of a server to JSON: an object, or the text of a stream of events."""
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=seconds_left()) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
    return json.loads(text) if text.startswith("{") else text


# ---- missing values ----


def said(age: float | None, visits: int | None, city: str | None) -> str:
    return repr((age, visits, city))


ALL_NULL = {"age": None, "visits": None, "city": None}
NONE_BUT_THEN = ["(None, None, None)", "(4.0, 5, 'oslo')"]


def test_null_is_none_in_the_rows_and_columns_of_json() -> None:
    as_bytes = [one.encode() for one in NONE_BUT_THEN]
    with headrace.serve(said) as server:
        rows = [ALL_NULL, {"age": 4, "visits": 5, "city": "oslo"}]
        answer = asked(server, "/v1/models/said:predict", {"instances": rows})
        assert answer == {"predictions": NONE_BUT_THEN}
        columns = {"age": [None, 4.0], "visits": [None, 5], "city": [None, "oslo"]}
        answer = asked(server, "/v1/models/said:predict", {"inputs": columns})
        assert answer == {"outputs": NONE_BUT_THEN}
        types = {"age": "FP64", "visits": "INT64", "city": "BYTES"}
        inputs = [
            {"name": name, "datatype": types[name], "shape": [2], "data": data}
            for name, data in columns.items()
        ]
        answer = asked(server, "/v2/models/said/infer", {"inputs": inputs})
        assert answer["outputs"][0]["data"] == NONE_BUT_THEN
        answer = asked(server, "/v2/models/said/generate", ALL_NULL)
        assert answer["output"] == NONE_BUT_THEN[0]
        with headrace.Client(server.url) as client:
            assert client.predict("said", columns)["output"].tolist() == as_bytes
        assert server.predict(columns)["output"].tolist() == as_bytes


def test_null_where_no_value_may_be_missing_is_refused() -> None:
    def priced(age: float, visits: int | None) -> float:
        return age

    with headrace.serve(priced) as server:
        row = {"age": None, "visits": None}
        answer = asked(server, "/v1/models/priced:predict", {"instances": [row]})
        assert "age: row 0: got null, but this input has no replacement for missing values" in answer["error"]


def test_a_value_that_may_be_missing_must_be_sent() -> None:
    def with_default(age: float, city: str | None = None) -> str:
        return repr(city)

    with headrace.serve(with_default, name="m") as server:
        answer = asked(server, "/v1/models/m:predict", {"instances": [{"age": 3}]})
        assert "missing 'city'" in answer["error"]
        answer = asked(server, "/v1/models/m:predict", {"instances": [{"age": 3, "city": None}]})
        assert answer == {"predictions": ["None"]}


# ---- rows that the classes of parameters refuse ----


@dataclass
class Visits:
    """Data of a request, checked by itself."""

    visits: int

    def __post_init__(self) -> None:
        if self.visits < 0:
            raise ValueError(f"expected 0 or more visits, got {self.visits}")


@dataclass
class Age:
    """Data of a request, checked by itself."""

    age: float

    def __post_init__(self) -> None:
        if self.age < 0:
            raise ValueError(f"expected an age of 0 or more, got {self.age:g}")


def never(age: Age, visits: Visits) -> float:
    raise AssertionError


async def never_later(age: Age, visits: Visits) -> float:
    raise AssertionError


def never_in_parts(age: Age, visits: Visits) -> Iterator[float]:
    raise AssertionError
    yield


def test_rows_are_checked_before_the_first_call() -> None:
    inputs = {"age": np.array([1.0, -1.0, 2.0]), "visits": np.array([1, 1, -5])}
    for asks in (lambda: model(never).predict(inputs), lambda: awaited(never_later, inputs)):
        with pytest.raises(InvalidRows) as caught:
            asks()
        assert caught.value.rows == {
            1: ("", ": expected an age of 0 or more, got -1"),
            2: ("", ": expected 0 or more visits, got -5"),
        }


def test_a_refused_row_of_a_function_that_yields_is_named() -> None:
    with pytest.raises(InvalidRows, match=r"^row 0: expected an age of 0 or more, got -1$"):
        next(model(never_in_parts).predict({"age": np.array([-1.0]), "visits": np.array([1])}))


# ---- coroutines ----


def test_the_rows_of_a_batch_wait_at_the_same_time() -> None:
    inside, all_inside = list[float](), asyncio.Event()

    async def doubled(x: float) -> float:
        inside.append(x)
        if len(inside) == 3:
            all_inside.set()
        await all_inside.wait()
        return 2 * x

    assert awaited(doubled, THREE) == {"output": pytest.approx([2.0, 4.0, 6.0])}


def test_a_coroutine_may_take_the_batch() -> None:
    async def doubled(x: list[float]) -> list[float]:
        await asyncio.sleep(0)
        return [2 * one for one in x]

    assert awaited(doubled, THREE, batch=True) == {"output": pytest.approx([2.0, 4.0, 6.0])}


def test_rows_that_a_coroutine_refuses_are_named() -> None:
    async def checked(x: float) -> float:
        await asyncio.sleep(0)
        if x != 2:
            raise InvalidRequest(f"expected 2, got {x:g}", field="x")
        return x

    with pytest.raises(InvalidRows, match=r"^x: row 0: expected 2, got 1$") as caught:
        awaited(checked, THREE)
    assert [*caught.value.rows] == [0, 2]


def test_the_first_row_that_fails_cancels_the_others() -> None:
    ended = list[float]()

    async def fails(x: float) -> float:
        try:
            if x == 2:
                raise ZeroDivisionError("a bug") from KeyError("its cause")
            await asyncio.Event().wait()
        finally:
            ended.append(x)
        return x

    with pytest.raises(ZeroDivisionError, match="a bug") as caught:
        awaited(fails, THREE)
    assert isinstance(caught.value.__cause__, KeyError)
    assert sorted(ended) == [1.0, 2.0, 3.0]


def test_a_deadline_cancels_all_rows() -> None:
    ended = threading.Semaphore(0)

    async def waits(x: float) -> float:
        try:
            if x == 7:
                await asyncio.Event().wait()
        finally:
            ended.release()
        return x

    with headrace.serve(waits, name="m") as server:
        server.predict({"x": [0.0]})
        while ended.acquire(blocking=False):  # of warm-up
            pass
        with pytest.raises(DeadlineExceeded):
            server.predict({"x": [7.0, 7.0]}, timeout_seconds=0.05)
        assert all(ended.acquire(timeout=seconds_left()) for _ in range(2))


def test_a_result_of_a_coroutine_is_checked() -> None:
    async def wrong(x: float) -> float:
        return "text"  # type: ignore[return-value]

    with pytest.raises(ModelError, match=r"endpoint f: the result: expected float, but .* returned str"):
        awaited(wrong, THREE)


def test_a_decorator_that_hides_a_coroutine_is_named() -> None:
    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**arguments: object) -> object:
            return function(**arguments)

        return call

    @timed
    async def doubled(x: float) -> float:
        return 2 * x

    said = r"expected float, but the function returned a coroutine; mark it and .* decorators `async def`"
    with pytest.raises(ModelError, match=said):
        model(doubled).predict({"x": np.array([1.0])})


def test_a_coroutine_that_would_block_its_own_loop_is_refused() -> None:
    async def asks(x: float) -> float:
        if x == 7:
            server.predict({"x": [1.0]})
        if x == 8:
            server.stop()
        return x

    with headrace.serve(asks) as server:
        for x in (7.0, 8.0):
            with pytest.raises(FailedPrecondition, match="asks calls it"):
                server.predict({"x": [x]})
        assert server.predict({"x": [2.0]})["output"].tolist() == [2.0]


# ---- generators ----


def counted(most: int) -> Iterator[int]:
    yield from range(most)


async def counted_later(most: int) -> AsyncIterator[int]:
    for number in range(most):
        await asyncio.sleep(0)
        yield number


def doubled_in_halves(x: list[float]) -> Iterator[list[float]]:
    half = len(x) // 2
    yield [2 * one for one in x[:half]]
    yield [2 * one for one in x[half:]]


@pytest.mark.parametrize("function", [counted, counted_later])
def test_a_function_that_yields_answers_in_parts(function: Callable[..., Any]) -> None:
    with headrace.serve(function, name="m") as server:
        events = asked(server, "/v2/models/m/generate_stream", {"most": 3})
        parts = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line]
        assert [part["output"] for part in parts] == [0, 1, 2]
        answer = asked(server, "/v1/models/m:predict", {"instances": [{"most": 3}]})
        assert "in parts" in answer["error"]


@pytest.mark.parametrize("function", [counted, counted_later])
def test_one_row_is_answered_in_parts(function: Callable[..., Any]) -> None:
    async def all_of(parts: Any) -> list[object]:
        return [part async for part in parts] if inspect.isasyncgen(parts) else [*parts]

    made = model(function)
    found = asyncio.run(all_of(made.predict({"most": np.array([2])})))
    assert [np.asarray(part["output"]).tolist() for part in found] == [[0], [1]]  # type: ignore[index]
    with pytest.raises(InvalidRequest, match=r"^most: expected one row, because f answers in parts, got 2; "):
        asyncio.run(all_of(made.predict({"most": np.array([2, 3])})))


def test_parts_of_a_batch_have_any_number_of_rows() -> None:
    found = [*model(doubled_in_halves, batch=True).predict(THREE)]
    assert [np.asarray(part["output"]).tolist() for part in found] == [[2.0], [4.0, 6.0]]


def test_a_generator_is_closed_when_its_reader_leaves() -> None:
    closed = list[int]()

    def endless(most: int) -> Iterator[int]:
        try:
            while True:
                yield most
        finally:
            closed.append(most)

    parts = model(endless).predict({"most": np.array([2])})
    next(parts)
    parts.close()
    assert closed == [2]


def test_a_part_that_is_not_as_declared_is_named() -> None:
    def wrong(most: int) -> Iterator[int]:
        yield "text"  # type: ignore[misc]

    with pytest.raises(ModelError, match=r"endpoint f: the result: expected int, but .* returned str"):
        next(model(wrong).predict({"most": np.array([1])}))


# ---- rows of different lengths ----


@pytest.mark.parametrize(
    ("kind", "of_batch", "rows", "said"),
    [
        (list[float], list[list[float]], [[1.0], [1.0, 2.0], []], "lists of different lengths"),
        (list[int], list[list[int]], [[1], [2**63, 2], []], "lists of different lengths"),
        (list[str], list[list[str]], [["a"], ["a", "b"], []], "lists of different lengths"),
        (
            NDArray[np.float32],
            Annotated[NDArray[np.float32], (None,)],
            [np.zeros(size, np.float32) for size in (1, 2, 0)],
            "arrays of different shapes",
        ),
    ],
)
def test_rows_of_different_lengths_are_named(kind: Any, of_batch: Any, rows: list[Any], said: str) -> None:
    async def later(x: float) -> Any:
        return rows[int(x) - 1]

    def now(x: float) -> Any:
        return rows[int(x) - 1]

    def batch(x: list[float]) -> Any:
        return rows

    later.__annotations__["return"] = now.__annotations__["return"] = kind
    batch.__annotations__["return"] = of_batch
    for answer in (
        lambda: model(now).predict(THREE),
        lambda: awaited(later, THREE),
        lambda: model(batch, batch=True).predict(THREE),
    ):
        with pytest.raises(
            ModelError, match=f"^endpoint f: the result: the rows have {said}; return the same"
        ):
            answer()


def test_an_empty_list_among_numbers_is_named() -> None:
    def number(x: float) -> Any:
        return [] if x == 2 else x

    number.__annotations__["return"] = float
    with pytest.raises(ModelError, match=r"expected float, but the function returned list \(FP64 \[0\]\)$"):
        model(number).predict(THREE)


# ---- decorators ----


def test_a_function_with_a_decorator_above_its_mark_keeps_batch_and_name() -> None:
    def plus_one(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**arguments: Any) -> Any:
            return [one + 1 for one in function(**arguments)]

        return call

    @plus_one
    @headrace.endpoint(batch=True, name="p")
    def doubled(x: list[float]) -> list[float]:
        return [2 * one for one in x]

    for name, served in (("", "p"), ("other", "other")):
        with headrace.serve(doubled, name=name) as server:
            assert server.predict({"x": [1.0, 2.0]}, model=served)["output"].tolist() == [3.0, 5.0]


# ---- classes ----

APP = """
import headrace

@headrace.endpoint
def doubled(x: float) -> float:
    return 2 * x

@headrace.endpoint
class Later:
    calls = ("doubled",)

    async def load(self, path, context):
        self.context = context

    async def __call__(self, x: float) -> float:
        answer = await self.context.predict_async("doubled", {{"x": [x]}})
        return float(answer["output"][0]) + 1

@headrace.endpoint
class Now:
    {calls}

    def load(self, path, context):
        self.context = context

    def __call__(self, x: float) -> float:
        return float(self.context.predict({called!r}, {{"x": [x]}})["output"][0]) + 1

    def close(self):
        open({closed!r}, "w").close()
"""


def app(folder: Path, *, calls: str = "calls = ('Later',)", called: str = "Later") -> Path:
    text = APP.format(calls=calls, called=called, closed=str(folder / "closed"))
    (folder / "app.py").write_text(text)
    return folder / "app.py"


def test_a_class_calls_other_models_and_is_closed(tmp_path: Path) -> None:
    with headrace.serve(app(tmp_path)) as server:
        assert server.predict({"x": [3.0]}, model="Now")["output"].tolist() == [8.0]
        assert not (tmp_path / "closed").exists()
    assert (tmp_path / "closed").exists()


def test_a_call_that_the_class_does_not_list_is_refused(tmp_path: Path) -> None:
    server = headrace.serve(app(tmp_path, called="doubled"))
    with server, pytest.raises(FailedPrecondition, match="cannot call 'doubled': list it in the class"):
        server.predict({"x": [3.0]}, model="Now")


def test_attributes_of_an_object_are_its_own_if_its_class_has_none() -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, x: float) -> float:
            self.calls += 1
            return float(self.calls)

    with headrace.serve(Counter) as server:
        assert server.predict({"x": [0.0]})["output"].dtype == np.float64
