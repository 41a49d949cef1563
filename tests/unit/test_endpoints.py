"""Typed functions as models: what annotations become, and who is told of what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Optional, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray

import headrace
from headrace.base.errors import InvalidRequest, InvalidRows, ModelError
from headrace.base.tensors import Tensors
from headrace.endpoint_models import EndpointModel
from headrace.endpoints import describe


@dataclass
class Person:
    """Data of a request, checked by itself."""

    age: float
    city: str

    def __post_init__(self) -> None:
        if self.age < 0:
            raise ValueError(f"expected an age of 0 or more, got {self.age:g}")


class Pixel(msgspec.Struct):
    """A msgspec Struct."""

    x: int
    y: int


class Point(NamedTuple):
    """A NamedTuple as a result."""

    x: float
    label: str


class Columns(TypedDict):
    """Columns of a batch."""

    double: NDArray[np.float32]
    label: list[str]


AtLeast0 = Annotated[float, pydantic.Field(ge=0)]
MASKED = np.ma.array([1.0, 99.0], mask=[False, True])


class Checked(pydantic.BaseModel):
    """A pydantic model with a condition."""

    age: AtLeast0


class CheckedStruct(msgspec.Struct, rename="camel"):
    """A msgspec Struct with a condition and an array."""

    the_age: Annotated[float, msgspec.Meta(ge=0)]
    pixels: Annotated[NDArray[np.float32], (2,)]


class AlsoByName(pydantic.BaseModel):
    """A pydantic model whose field has another name outside, and takes its own, too."""

    model_config = pydantic.ConfigDict(populate_by_name=True)
    age: float = pydantic.Field(alias="Age")


@dataclass
class Derived:
    """A dataclass with a field that it computes."""

    age: float
    old: bool = field(init=False)

    def __post_init__(self) -> None:
        self.old = self.age > 60


@dataclass
class MaybeOld:
    """A dataclass whose values may be missing."""

    age: float | None = None


class MaybeChecked(pydantic.BaseModel):
    """A pydantic model with a condition on a value that may be missing."""

    age: AtLeast0 | None


class MaybeStruct(msgspec.Struct):
    """A msgspec Struct with a condition on a value that may be missing."""

    age: Annotated[float, msgspec.Meta(ge=0)] | None = None


def model(function: Callable[..., Any], *, batch: bool = False) -> EndpointModel:
    return EndpointModel(describe(function, batch=batch, name="f"))


def with_types(function: Callable[..., Any], **types: object) -> Callable[..., Any]:
    """Give a function classes of a test as annotations, whose names are unknown outside of the test."""
    function.__annotations__.update(types)
    return function


def specs(made: EndpointModel) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    return made.inputs, made.outputs  # type: ignore[return-value]


def answer(made: EndpointModel, inputs: Tensors) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in made.predict(inputs).items()}


def people(*ages: float) -> Tensors:
    return {"age": np.array(ages), "city": np.array([b"oslo"] * len(ages), object)}


def test_parameters_become_inputs_and_the_result_the_output() -> None:
    def price(age: float, visits: int, member: bool, city: str, key: bytes) -> float:
        assert (type(age), type(visits), type(member), type(city), type(key)) == (
            float,
            int,
            bool,
            str,
            bytes,
        )
        return age + visits + member + len(city) + len(key)

    made = model(price)
    inputs = [("age", "FP64", ()), ("visits", "INT64", ()), ("member", "BOOL", ()), ("city", "BYTES", ())]
    assert specs(made) == ([*inputs, ("key", "BYTES", ())], [("output", "FP64", ())])
    row = {"age": np.array([0.5]), "visits": np.array([2]), "member": np.array([True])}
    texts = {"city": np.array(["köln".encode()], object), "key": np.array([b"\xff"], object)}
    assert answer(made, {**row, **texts}) == {"output": [8.5]}


def test_lists_and_arrays_of_a_row() -> None:
    def total(some: list[float], words: list[str], grid: Annotated[NDArray[np.float32], (2, 3)]) -> list[int]:
        assert grid.shape == (2, 3)
        return [len(some), len(words)]

    made = model(total)
    assert specs(made)[0] == [
        ("some", "FP64", (None,)),
        ("words", "BYTES", (None,)),
        ("grid", "FP32", (2, 3)),
    ]
    assert specs(made)[1] == [("output", "INT64", (None,))]
    inputs = {
        "some": np.zeros((1, 4)),
        "words": np.array([[b"a", b"b"]], object),
        "grid": np.zeros((1, 2, 3), np.float32),
    }
    assert answer(made, inputs) == {"output": [[4, 2]]}


def test_missing_values_are_none() -> None:
    def said(
        age: float | None,
        visits: Optional[int],  # noqa: UP045 - the older way to write it
        city: Annotated[str | None, "where"],
        marks: Sequence[float | None],
        key: Annotated[bytes, "raw"] | None = None,
    ) -> str:
        return repr([age, visits, city, key, marks])

    made = model(said)
    assert [one[:3] for one in specs(made)[0]] == [
        ("age", "FP64", ()),
        ("visits", "INT64", ()),
        ("city", "BYTES", ()),
        ("marks", "FP64", (None,)),
        ("key", "BYTES", ()),
    ]
    assert repr([one[3] for one in specs(made)[0]]) == "[nan, -9223372036854775808, '', nan, '']"
    inputs = {
        "age": np.array([np.nan, 0.0]),
        "visits": np.array([-(2**63), 0]),
        "city": np.array([b"", "köln".encode()], object),
        "key": np.array([b"", b"\xff"], object),
        "marks": np.array([[np.nan, 1.5], [2.5, np.nan]]),
    }
    assert answer(made, inputs) == {
        "output": [
            "[None, None, None, None, [None, 1.5]]",
            r"[0.0, 0, 'köln', b'\xff', [2.5, None]]",
        ]
    }


@pytest.mark.parametrize("kind", [MaybeOld, MaybeChecked, MaybeStruct])
def test_fields_may_be_missing(kind: type) -> None:
    def said(person: Any) -> str:
        return repr(person.age)

    made = model(with_types(said, person=kind))
    assert answer(made, {"age": np.array([np.nan, 3.0])}) == {"output": ["None", "3.0"]}
    if kind is not MaybeOld:
        with pytest.raises(InvalidRows, match=r"^age: row 1: .*(greater than or equal to 0|>= 0\.0)"):
            made.predict({"age": np.array([np.nan, -3.0])})


def test_columns_of_a_batch_have_none_for_missing_values() -> None:
    @dataclass
    class Columns:
        city: list[str | None]

    def said(age: list[float | None], visits: list[list[int | None]], columns: Any) -> list[str]:
        return [repr((age, visits, columns.city))] * len(age)

    made = model(with_types(said, columns=Columns), batch=True)
    inputs = {
        "age": np.array([np.nan]),
        "visits": np.array([[-(2**63), 1]]),
        "city": np.array([b""], object),
    }
    assert answer(made, inputs) == {"output": ["([None], [[None, 1]], [None])"]}


def test_text_that_may_be_missing_must_be_utf_8() -> None:
    def said(city: str | None) -> str:
        raise AssertionError

    with pytest.raises(InvalidRows, match=r"city: row 1: expected text in UTF-8, got b'\\xff'"):
        model(said).predict({"city": np.array([b"", b"\xff"], object)})


def test_arrays_of_rows_are_stacked() -> None:
    def scaled(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x * 2

    assert answer(model(scaled), {"x": np.ones((3, 2), np.float32)}) == {"output": [[2.0, 2.0]] * 3}


def test_fields_of_objects_are_inputs_and_outputs() -> None:
    def greet(person: Person, pixel: Pixel) -> Point:
        return Point(person.age + pixel.x * pixel.y, person.city)

    made = model(greet)
    assert [name for name, *_ in specs(made)[0]] == ["age", "city", "x", "y"]
    assert specs(made)[1] == [("x", "FP64", ()), ("label", "BYTES", ())]
    found = answer(made, {**people(1.5), "x": np.array([2]), "y": np.array([3])})
    assert found == {"x": [7.5], "label": ["oslo"]}


def test_metadata_that_is_no_shape_is_passed_over() -> None:
    def total(
        age: Annotated[float, "years"],
        grid: Annotated[NDArray[np.float32], "pixels", (2, None)],
        words: list[Annotated[str, pydantic.Field(description="a word")]],
    ) -> Annotated[float, "euros"]:
        raise AssertionError

    assert specs(model(total)) == (
        [("age", "FP64", ()), ("grid", "FP32", (2, None)), ("words", "BYTES", (None,))],
        [("output", "FP64", ())],
    )


def test_conditions_of_objects_are_checked() -> None:
    def age(person: Checked) -> float:
        return person.age

    def struct_age(person: CheckedStruct) -> float:
        return person.the_age + person.pixels.sum()

    ages = np.array([1.0, -2.0])
    with pytest.raises(InvalidRows, match="age: row 1: Input should be greater than or equal to 0"):
        model(age).predict({"age": ages})
    made = model(struct_age)
    pixels = np.ones((2, 2), np.float32)
    assert answer(made, {"the_age": -ages[1:], "pixels": pixels[:1]}) == {"output": [4.0]}
    with pytest.raises(InvalidRows, match=r"the_age: row 1: Expected `float` >= 0\.0"):
        made.predict({"the_age": ages, "pixels": pixels})


def test_a_field_that_a_class_computes_is_no_input_but_may_be_an_output() -> None:
    def derive(person: Derived) -> Derived:
        return Derived(person.age + 1)

    made = model(derive)
    assert specs(made) == ([("age", "FP64", ())], [("age", "FP64", ()), ("old", "BOOL", ())])
    assert answer(made, {"age": np.array([60.0])}) == {"age": [61.0], "old": [True]}


def test_a_field_with_an_alias_is_given_by_its_name() -> None:
    def age(person: AlsoByName) -> float:
        return person.age

    assert answer(model(age), {"age": np.array([60.0])}) == {"output": [60.0]}


def test_a_batch_gets_columns() -> None:
    def double(x: NDArray[np.float32], names: list[str]) -> Columns:
        assert names == ["oslo", "oslo"]
        return {"double": x * 2, "label": [name.upper() for name in names]}

    made = model(double, batch=True)
    assert specs(made) == (
        [("x", "FP32", ()), ("names", "BYTES", ())],
        [("double", "FP32", ()), ("label", "BYTES", ())],
    )
    inputs = {"x": np.array([1, 2], np.float32), "names": people(1, 2)["city"]}
    assert answer(made, inputs) == {"double": [2.0, 4.0], "label": ["OSLO", "OSLO"]}


def test_a_batch_of_objects_is_a_list() -> None:
    def ages(people: list[Person]) -> list[float]:
        return [one.age for one in people]

    made = model(ages, batch=True)
    assert answer(made, people(1, 2)) == {"output": [1.0, 2.0]}
    with pytest.raises(InvalidRows, match="row 1: expected an age of 0 or more, got -2"):
        made.predict(people(1, -2))


def test_rows_that_are_refused_are_named_and_others_are_not() -> None:
    def check(person: Person) -> float:
        if person.age > 100:
            raise InvalidRequest(f"expected an age of up to 100, got {person.age:g}", field="age")
        return person.age

    with pytest.raises(InvalidRows) as caught:
        model(check).predict(people(1, 102, 50, 101))
    assert {row: field for row, (field, _) in caught.value.rows.items()} == {1: "age", 3: "age"}
    assert caught.value.within(3, 4) is not None
    assert "age: row 0: expected an age of up to 100, got 101" in str(caught.value.within(3, 4))


@pytest.mark.parametrize("batch", [False, True])
def test_text_that_is_not_utf_8_is_refused_before_the_call(batch: bool) -> None:
    def lengths(text: str, words: list[str]) -> int:
        raise AssertionError

    def batches(text: list[str], words: list[list[str]]) -> list[int]:
        raise AssertionError

    text = np.array([b"ok", b"\xff\xfe", "ö".encode(), b"\xff"], object)
    words = np.array([[b"a", b"\xe9"], [b"a", b"\xe9"], [b"a", b"b"], [b"a", b"b"]], object)
    with pytest.raises(InvalidRows, match=r"words: row 0: expected text in UTF-8, got b'\\xe9'") as caught:
        model(batches if batch else lengths, batch=batch).predict({"text": text, "words": words})
    assert {row: field for row, (field, _) in caught.value.rows.items()} == {0: "words", 1: "text", 3: "text"}


def test_an_object_of_columns_refuses_the_request() -> None:
    @dataclass
    class Ages:
        age: NDArray[np.float64]

        def __post_init__(self) -> None:
            if (self.age < 0).any():
                raise ValueError("expected ages of 0 or more")

    def ages(people: Ages) -> NDArray[np.float64]:
        return people.age

    made = model(with_types(ages, people=Ages), batch=True)
    assert answer(made, {"age": np.array([1.0, 2.0])}) == {"output": [1.0, 2.0]}
    with pytest.raises(InvalidRequest, match="expected ages of 0 or more"):
        made.predict({"age": np.array([1.0, -2.0])})


def test_a_mistake_in_the_function_is_not_the_callers() -> None:
    def fails(age: float, city: str) -> float:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        model(fails).predict(people(1))


@pytest.mark.parametrize(
    ("declared", "returned", "said"),
    [
        (float, None, "expected float, but the function returned None"),
        (float, "abc", "expected float, but the function returned str"),
        (float, [1.0, 2.0], r"expected float, but the function returned list \(FP64 \[2\]\)"),
        (float, [[1.0], []], r"expected float, but the function returned list \(of different lengths\)"),
        (int, 1.5, "expected int, but the function returned float"),
        (str, 3, "expected str, but the function returned int"),
        (bytes, None, "expected bytes, but the function returned None"),
        (list[str], [3], r"expected list\[str\], but the function returned list \(INT64 \[1\]\)"),
        (NDArray[np.float32], None, r"expected an array of FP32 \[any\], but the function returned None"),
        (Point, None, "expected an object with x, label, but the function returned None"),
        (Point, Point(1.0, None), "label: expected str, but the function returned None"),  # type: ignore[arg-type]
        (Columns, {"label": 3}, "expected an object with double, label, but the function returned dict"),
        (
            NDArray[np.float64],
            MASKED,
            r"expected an array of FP64 \[any\], .* returned MaskedArray \(with masked values\)",
        ),
        (
            list[list[float]],
            [MASKED, MASKED],
            r"expected list\[list\[float\]\], .* returned list \(with masked values\)",
        ),
    ],
)
def test_a_result_that_is_not_as_declared_is_named(declared: object, returned: object, said: str) -> None:
    def price(age: float, city: str) -> Any:
        return returned

    with pytest.raises(ModelError, match=f"^endpoint f: the result: {said}$"):
        model(with_types(price, **{"return": declared})).predict(people(1))


@pytest.mark.parametrize(
    ("declared", "returned", "said"),
    [
        (list[float], None, "expected float for each row, but the function returned None"),
        (list[float], [1.0, None], "expected float, but the function returned None"),
        (NDArray[np.float32], [1.0, "b"], "expected an array of FP32 \\[\\], but the function returned str"),
        (Columns, None, "expected an object with double, label, but the function returned None"),
        (list[float], MASKED, r"expected float for each row, .* MaskedArray \(with masked values\)"),
        (
            NDArray[np.float64],
            [np.float64(1), np.ma.masked],
            r"expected an array of FP64 \[\], .* returned MaskedConstant \(with masked values\)",
        ),
        (
            list[list[float]],
            [MASKED, MASKED],
            r"expected list\[float\], .* returned MaskedArray \(with masked values\)",
        ),
    ],
)
def test_a_result_of_a_batch_that_is_not_as_declared_is_named(
    declared: object, returned: object, said: str
) -> None:
    def prices(age: list[float], city: list[str]) -> Any:
        return returned

    with pytest.raises(ModelError, match=f"^endpoint f: the result: {said}$"):
        model(with_types(prices, **{"return": declared}), batch=True).predict(people(1, 2))


@pytest.mark.parametrize(
    ("declared", "returned", "answered"),
    [
        (float, 3, 3),
        (float, np.float32(0.5), 0.5),
        (int, np.int8(3), 3),
        (int, 2**70, 2**70),  # has its own error
        (list[int], [2**63, -1], [2**63, -1]),
        (bytes, "abc", "abc"),
        (list[float], [], []),
        (list[list[int]], [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        (NDArray[np.float64], np.ma.array([1.0, 2.0], mask=False), [1.0, 2.0]),
    ],
)
def test_values_that_fit_are_answered(declared: object, returned: object, answered: object) -> None:
    def price(age: float, city: str) -> Any:
        return returned

    made = model(with_types(price, **{"return": declared}))
    assert answer(made, people(1, 2)) == {"output": [answered, answered]}


def test_an_object_of_a_class_is_made_when_it_is_loaded() -> None:
    class Ranker:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, age: float, city: str) -> int:
            self.calls += 1
            return self.calls

    assert answer(model(Ranker), people(1, 2)) == {"output": [1, 2]}


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_call_without_an_object_keeps_its_first_parameter(kind: Callable[..., Any]) -> None:
    def double(age: float, city: str) -> float:
        return 2 * age

    def of_class(cls: type, age: float, city: str) -> float:
        return 2 * age

    function = double if kind is staticmethod else of_class
    assert answer(model(type("Double", (), {"__call__": kind(function)})), people(3.0)) == {"output": [6.0]}


def test_a_marked_function_is_still_a_function() -> None:
    @headrace.endpoint
    def double(x: float) -> float:
        return 2 * x

    assert double(2.0) == 4.0
