"""Functions that cannot be endpoints: the error says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray

import headrace
from headrace.base.errors import ConfigError
from headrace.endpoints import describe

AtLeast0 = Annotated[float, pydantic.Field(ge=0)]


@dataclass
class Person:
    """Data of a request."""

    age: float
    city: str


class Aliased(pydantic.BaseModel):
    """A pydantic model whose field has another name outside."""

    age: float = pydantic.Field(alias="Age")


@dataclass
class MaybeOld:
    """A dataclass whose value may be missing."""

    age: float | None


@dataclass
class Unchecked:
    """A dataclass with a condition that nothing checks."""

    age: AtLeast0


class OfTheOther(msgspec.Struct):
    """A msgspec Struct with a condition of pydantic, which msgspec does not read."""

    age: AtLeast0


class OtherOfTheOther(pydantic.BaseModel):
    """A pydantic model with a condition of msgspec, which pydantic does not read."""

    age: Annotated[float, msgspec.Meta(ge=0)] | None


class WithMeta(msgspec.Struct):
    """A msgspec Struct with a condition, which is checked when it is converted but not when it is made."""

    age: Annotated[float, msgspec.Meta(ge=0)]


class Described(msgspec.Struct):
    """A msgspec Struct whose metadata only describe."""

    age: Annotated[float, msgspec.Meta(title="age", description="in years", examples=[3.0])]
    height: Annotated[float, pydantic.Field(description="in metres")]


class CheckedModel(pydantic.BaseModel):
    """A pydantic model with a condition, which is checked whenever it is made."""

    age: AtLeast0


@dataclass
class NeedsMore:
    """A dataclass that needs what is no field."""

    age: float
    unit: InitVar[str]


@dataclass
class TakesOther:
    """A dataclass that is made of other values than its fields."""

    age: float = field()

    def __init__(self, years: float = 0.0) -> None:
        self.age = years


def no_annotation(age, city: str) -> float:  # type: ignore[no-untyped-def]
    raise AssertionError


def unknown_annotation(age: complex) -> float:
    raise AssertionError


def no_result(age: float):  # type: ignore[no-untyped-def]
    raise AssertionError


def a_scalar_in_a_batch(age: float) -> NDArray[np.float32]:
    raise AssertionError


def twice(age: float, person: Person) -> float:
    raise AssertionError


def several(*ages: float) -> float:
    raise AssertionError


def with_a_default(age: float, city: str = "oslo") -> float:
    raise AssertionError


def conditions(age: AtLeast0) -> float:
    raise AssertionError


def conditions_in_a_list(ages: list[AtLeast0]) -> float:
    raise AssertionError


def unchecked_field(person: Unchecked) -> float:
    raise AssertionError


def field_of_the_other(person: OfTheOther) -> float:
    raise AssertionError


def other_of_the_other(person: OtherOfTheOther) -> float:
    raise AssertionError


def answers_conditions(city: str) -> AtLeast0:
    raise AssertionError


def answers_conditions_in_a_batch(city: list[str]) -> list[AtLeast0]:
    raise AssertionError


def answers_unchecked(city: str) -> Unchecked:
    raise AssertionError


def answers_with_meta(city: str) -> WithMeta:
    raise AssertionError


def aliased(person: Aliased) -> float:
    raise AssertionError


def needs_more(person: NeedsMore) -> float:
    raise AssertionError


def takes_other(person: TakesOther) -> float:
    raise AssertionError


def a_shape_of_a_number(age: Annotated[float, 3]) -> float:
    raise AssertionError


def a_size_below_one(x: Annotated[NDArray[np.float32], (-1, 28)]) -> float:
    raise AssertionError


def answers_none(city: str) -> str | None:
    raise AssertionError


def answers_none_in_a_field(city: str) -> MaybeOld:
    raise AssertionError


def maybe_false(old: bool | None) -> float:
    raise AssertionError


def maybe_either(age: int | str | None) -> float:
    raise AssertionError


def maybe_no_list(ages: list[float] | None) -> float:
    raise AssertionError


def with_another_default(age: float | None = 0.0) -> float:
    raise AssertionError


def with_none_for_a_number(age: float = None) -> float:  # type: ignore[assignment]  # noqa: RUF013
    raise AssertionError


def with_none_for_a_list(ages: list[float | None] = None) -> float:  # type: ignore[assignment]  # noqa: RUF013
    raise AssertionError


def yields(age: float) -> float:  # type: ignore[misc]
    yield age


async def yields_later(age: float) -> float:  # type: ignore[misc]
    yield age


def yields_anything(age: float) -> Iterator:  # type: ignore[type-arg]
    yield age


def yields_none(age: float) -> Iterator[str | None]:
    yield None


def returns_an_iterator(age: float) -> Iterator[float]:
    return iter([age])


def abstract(image: NDArray[np.floating[Any]], other: float) -> float:
    raise AssertionError


def abstract_number(image: NDArray[np.floating]) -> float:
    raise AssertionError


def any_array(image: NDArray[Any]) -> float:
    raise AssertionError


class WithoutCall:
    """A class that is not called through its objects."""

    def predict(self, age: float) -> float:
        raise AssertionError


def names_nothing(age: float, person: Nobody) -> float:  # type: ignore[name-defined]  # noqa: F821
    raise AssertionError


@dataclass
class OfNobody:
    """A class whose field has an annotation that names nothing."""

    age: float
    friend: Nobody  # type: ignore[name-defined]  # noqa: F821


def names_nothing_in_a_class(person: OfNobody) -> float:
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "batch", "said"),
    [
        (no_annotation, False, "endpoint f: parameter age: expected float, .*; it has no annotation"),
        (unknown_annotation, False, "parameter age: expected float, .* got .*complex"),
        (no_result, False, "the result: expected float, .*; it has no annotation"),
        (
            a_scalar_in_a_batch,
            True,
            r"parameter age: expected one value for each row of a batch, list\[float\], got float$",
        ),
        (twice, False, "different names, got age, age, city"),
        (several, False, "parameter .*ages.*: expected one that is given by name"),
        (with_a_default, False, "parameter city has the default 'oslo', .* remove the default"),
        (conditions, False, "parameter age: nothing would check .*ge=0.* put it into a pydantic model"),
        (conditions_in_a_list, False, "parameter ages: nothing would check .*ge=0"),
        (unchecked_field, False, "parameter person.age: nothing would check .*ge=0"),
        (
            field_of_the_other,
            False,
            "parameter person.age: nothing would check .*ge=0.* here; use conditions of msgspec, or check",
        ),
        (
            other_of_the_other,
            False,
            "parameter person.age: nothing would check .*ge=0.* here; use conditions of pydantic, or check",
        ),
        (answers_conditions, False, "the result: nothing would check .*ge=0.* put it into a pydantic model"),
        (answers_conditions_in_a_batch, True, "the result: nothing would check .*ge=0"),
        (answers_unchecked, False, "the result.age: nothing would check .*ge=0.* put it into a pydantic"),
        (answers_with_meta, False, "the result.age: nothing would check .*ge=0.* put it into a pydantic"),
        (aliased, False, "Aliased.age has the alias 'Age', .* set populate_by_name=True"),
        (needs_more, False, r"NeedsMore\(\) takes unit, which is not a field"),
        (takes_other, False, r"TakesOther.age is a field, but TakesOther\(\) does not take it"),
        (a_shape_of_a_number, False, r"the shape \(3,\) needs 1 lists in one another, got 0"),
        (a_size_below_one, False, r"expected a shape of sizes from 1 .* got \(-1, 28\)"),
        (abstract, False, "parameter image: expected .*floating"),
        (abstract_number, False, "parameter image: expected .*floating"),
        (any_array, False, "parameter image: expected .*Any"),
        (
            WithoutCall,
            False,
            "^endpoint f: the class WithoutCall has no __call__; define it, or serve an object of the class",
        ),
        (
            names_nothing,
            False,
            "endpoint f: an annotation cannot be read, of person: 'Nobody': name 'Nobody' is",
        ),
        (
            names_nothing_in_a_class,
            False,
            "parameter person: an annotation cannot be read, of friend: 'Nobody'",
        ),
        (answers_none, False, "the result: expected .*; values cannot be None: .* NaN"),
        (answers_none_in_a_field, False, "the result.age: expected .*; values cannot be None: .* NaN"),
        (
            maybe_false,
            False,
            r"old: .*, got bool \| None; only float, int, str and bytes may be None",
        ),
        (maybe_either, False, r"age: expected .*, got int \| str \| None; only float, .* may be None"),
        (maybe_no_list, False, r"ages: expected .* only float, .*, also in a list: list\[float \| None\]"),
        (with_another_default, False, "parameter age has the default 0.0, .* remove the default"),
        (with_none_for_a_number, False, "parameter age has the default None, .* remove the default"),
        (with_none_for_a_list, False, "parameter ages has the default None, .* remove the default"),
        (yields, False, r"the result: expected Iterator\[…\] .* the function yields, got <class 'float'>"),
        (yields_later, False, r"the result: expected .* AsyncIterator\[…\] .* yields, got <class 'float'>"),
        (yields_anything, False, "the result: expected .* with the type of a part"),
        (yields_none, False, "the result: expected .*; values cannot be None"),
        (returns_an_iterator, False, "the result: expected a function that yields, .* annotate a list"),
    ],
)
def test_what_cannot_be_an_endpoint_says_why(function: Callable[..., Any], batch: bool, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        describe(function, batch=batch, name="f")


def test_metadata_that_only_describe_and_results_that_check_themselves_are_accepted() -> None:
    def described(person: Described) -> Described:
        raise AssertionError

    def checked(person: CheckedModel) -> CheckedModel:
        raise AssertionError

    assert [name for name, *_ in describe(described, batch=False, name="f").outputs] == ["age", "height"]
    assert [name for name, *_ in describe(checked, batch=False, name="f").outputs] == ["age"]


@pytest.mark.parametrize("name", ["prix_été", "my model", "a/b", "..", "1", ".x", "x" * 129])
def test_a_name_that_no_model_can_have_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a model's name: .*; set it with @headrace.endpoint\(name=…\)"
    ):

        @headrace.endpoint(name=name)
        def double(x: float) -> float:
            return 2 * x
