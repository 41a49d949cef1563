"""Classify and Regress of models that read Examples themselves."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.config import Limits
from headrace.frontends.tfserving import examples
from headrace.frontends.tfserving.message_examples import find_examples, read_columns
from headrace.frontends.wire import protos
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import run
from headrace.model.servable import Signature
from tests.unit.frontends.oip.doubles import spec

SIGNATURE = Signature(
    "serving_default", (spec("inputs", "BYTES"),), (spec("outputs", "FP32"),), kind="regress", examples=True
)
Example = protos.message("tensorflow.Example")
Input = protos.message("tensorflow.serving.Input")


def example(**features: Any) -> Any:
    return Example(
        features={"feature": {name: {kind: {"value": values}} for name, (kind, values) in features.items()}}
    )


def read(inputs: Any) -> list[dict[str, list[Any]]]:
    """What a model reads of each row."""
    rows = []
    for row in inputs.columns[0]:
        features = Example.FromString(row).features.feature
        rows.append(
            {name: list(getattr(one, one.WhichOneof("kind")).value) for name, one in features.items()}
        )
    return rows


def of_message(given: Any, budget: RequestBudget) -> Any:
    message = protos.message("tensorflow.serving.RegressionRequest")(input=given).SerializeToString()
    found = run(find_examples(message, budget))
    return SIGNATURE.check(run(read_columns(SIGNATURE, message, found, budget)))


def budget(**limits: Any) -> RequestBudget:
    return RequestBudget(Limits(**limits))


def test_each_example_is_a_row_and_what_it_says_goes_before_the_context() -> None:
    given = Input(
        example_list_with_context={
            "context": example(city=("bytes_list", [b"Ulm"]), age=("float_list", [9.0])),
            "examples": [example(age=("float_list", [1.5])), example(), example(city=("bytes_list", [b"B"]))],
        }
    )
    rows = read(of_message(given, budget()))
    assert rows == [
        {"city": [b"Ulm"], "age": [1.5]},
        {"city": [b"Ulm"], "age": [9.0]},
        {"city": [b"B"], "age": [9.0]},
    ]


def test_features_of_json_become_examples_of_their_kinds() -> None:
    given = [{"ages": [1, 2]}, {"ages": [1, 2.5], "none": []}, {"city": [b"B"]}]
    shared = {"city": [b"Ulm"], "ages": [9]}
    rows = read(SIGNATURE.check(run(examples.of_features(SIGNATURE, given, shared, budget()))))
    assert rows == [
        {"city": [b"Ulm"], "ages": [1, 2]},
        {"city": [b"Ulm"], "ages": [1.0, 2.5], "none": []},
        {"city": [b"B"], "ages": [9]},
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, b"a"], "mixed: expected values of one kind, got texts and numbers"),
        ([1 << 63], "mixed: expected integers of at most 64 bits"),
    ],
)
def test_features_that_no_example_can_hold_are_explained(values: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        run(examples.of_features(SIGNATURE, [{"mixed": values}], {}, budget()))


def test_a_large_context_for_many_examples_is_refused_before_it_is_copied() -> None:
    context = example(text=("bytes_list", [b"x" * 1000]))
    given = Input(example_list_with_context={"context": context, "examples": [example()] * 1001})
    with pytest.raises(TooLarge, match=r"^context: .*max_expanded_bytes"):
        of_message(given, budget(max_expanded_bytes=1_000_000))
    shared, limited = {"text": [b"x" * 1000]}, budget(max_expanded_bytes=1_000_000)
    with pytest.raises(TooLarge, match=r"^context: .*max_expanded_bytes"):
        run(examples.of_features(SIGNATURE, [{}] * 1001, shared, limited))


def test_no_examples_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one example"):
        of_message(Input(example_list={}), budget())
