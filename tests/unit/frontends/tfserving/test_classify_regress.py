"""Classify, Regress and MultiInference, over both protocols."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import FailedPrecondition, InvalidRequest, ModelError, TooLarge, Unsupported
from headrace.base.tensors import Tensors
from headrace.config import Limits, SignatureConfig
from headrace.frontends.tfserving.json_bodies import examples_of
from headrace.frontends.wire import protos
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.model.servable import Signature
from tests.unit.frontends.oip.doubles import LoadedDouble, ctr, echo, spec
from tests.unit.frontends.tfserving.doubles import (
    ServiceDouble,
    call,
    classifier,
    configured,
    http,
    message,
    rows_model,
)
from tests.unit.frontends.turns import CountingLane

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
EXAMPLES = [{"age": 1.5, "city": "Ulm"}, {"age": [2], "city": {"b64": "Qg=="}, "ignored": [1, 2]}]


def example(**features: Any) -> Any:
    kinds = {float: "float_list", int: "int64_list", bytes: "bytes_list"}
    made = protos.message("tensorflow.Example")()
    for name, values in features.items():
        getattr(made.features.feature[name], kinds[type(values[0])]).value.extend(values)
    return made


def given(*examples: Any, context: Any = None) -> dict[str, Any]:
    if context is None:
        return {"example_list": {"examples": examples}}
    return {"example_list_with_context": {"examples": examples, "context": context}}


PEOPLE = given(example(age=[1.5], city=[b"Ulm"]), example(age=[2], city=[b"B"], ignored=[1, 2]))


def ask(method: str, model: Any, people: Any = PEOPLE, **model_spec: Any) -> Any:
    name = "ClassificationRequest" if method == "Classify" else "RegressionRequest"
    asked = message(name, model_spec={"name": model.name, **model_spec}, input=people)
    return call(ServiceDouble(model), method, asked)


def post(method: str, model: Any, **body: Any) -> Any:
    return http(ServiceDouble(model), "POST", f"/v1/models/{model.name}:{method}", body)


def test_classify_answers_names_and_scores() -> None:
    response = ask("Classify", classifier())
    rows = [
        [(one.label, round(one.score, 6)) for one in row.classes] for row in response.result.classifications
    ]
    assert rows == [[("a", 1.5), ("b", 0.15), ("c", 0)], [("a", 2), ("b", 0.2), ("c", 0)]]
    assert (response.model_spec.version.value, response.model_spec.signature_name) == (3, "serving_default")


def test_classify_over_rest_answers_pairs() -> None:
    answer = post("classify", classifier(), examples=EXAMPLES)
    assert answer == {"results": [[["a", 1.5], ["b", 0.15], ["c", 0]], [["a", 2], ["b", 0.2], ["c", 0]]]}


def test_labels_come_from_the_settings_or_are_empty() -> None:
    model = classifier(SignatureConfig(labels=("x", "y", "z"), scores="scores"))
    assert post("classify", model, examples=EXAMPLES[:1]) == {
        "results": [[["x", 1.5], ["y", 0.15], ["z", 0]]]
    }
    assert post("classify", ctr(), examples=[{"cat": [1] * 26, "dense": [0.5] * 13}]) == {
        "results": [[["", 32.5]]]
    }


def two_classes(settings: SignatureConfig) -> LoadedDouble:
    """A model of boosted trees: the probability of the second of two classes."""
    labelled = (spec("label", "BYTES"), spec("score", "FP32")) if settings.top else ()
    signature = Signature("serving_default", (spec("age", "FP32"),), (spec("prediction", "FP32"), *labelled))

    def model(inputs: Tensors) -> Tensors:
        age = inputs["age"]
        return {"prediction": age, "label": np.full(len(age), b"stays", object), "score": age}

    return configured(LoadedDouble(signature, model, name="people"), settings)


@pytest.mark.parametrize("top", [0, 1])
def test_one_probability_is_that_of_the_second_of_two_named_classes(top: int) -> None:
    model = two_classes(SignatureConfig(labels=("leaves", "stays"), top=top))
    answer = post("classify", model, examples=[{"age": 0.25}, {"age": 1}])
    assert answer == {"results": [[["leaves", 0.75], ["stays", 0.25]], [["leaves", 0], ["stays", 1]]]}
    assert post("regress", model, examples=[{"age": 0.25}]) == {"results": [0.25]}
    with pytest.raises(FailedPrecondition, match=r"scores must come .*got prediction FP32 \[rows\]; name"):
        post("classify", two_classes(SignatureConfig()), examples=[{"age": 0.25}])


def only(*outputs: str) -> LoadedDouble:
    """The classifier with some of its outputs."""
    whole = classifier()
    specs = tuple(one for one in whole.signatures["serving_default"].outputs if one.name in outputs)
    signature = Signature("serving_default", whole.signatures["serving_default"].inputs, specs)
    return LoadedDouble(
        signature, lambda inputs: {name: whole.model(inputs)[name] for name in outputs}, name="people"
    )


def test_classes_without_scores_have_the_score_0() -> None:
    response = ask("Classify", only("classes"))
    rows = [[(one.label, one.score) for one in row.classes] for row in response.result.classifications]
    assert rows == [[("a", 0), ("b", 0), ("c", 0)]] * 2
    answer = post("classify", only("classes"), examples=EXAMPLES)
    assert answer == {"results": [[["a", 0], ["b", 0], ["c", 0]]] * 2}


def test_scores_without_classes_have_no_label() -> None:
    response = ask("Classify", only("scores"))
    assert [one.label for one in response.result.classifications[0].classes] == [""] * 3
    answer = post("classify", only("scores"), examples=EXAMPLES[:1])
    assert answer == {"results": [[["", 1.5], ["", 0.15], ["", 0]]]}


def test_classes_must_be_a_row_of_names() -> None:
    signature = Signature("serving_default", (spec("x", "FP32"),), (spec("classes", "BYTES"),))
    flat = LoadedDouble(signature, lambda inputs: {"classes": inputs["x"].astype(object)}, name="flat")
    with pytest.raises(FailedPrecondition, match=r"got classes BYTES \[rows\]; name it"):
        post("classify", flat, examples=[{"x": 1}])
    labelled = configured(only("classes"), SignatureConfig(labels=("x", "y", "z")))
    with pytest.raises(FailedPrecondition, match="scores must come from an output of floats"):
        post("classify", labelled, examples=EXAMPLES)


def test_regress_answers_one_value_an_example() -> None:
    response = ask("Regress", classifier())
    assert [one.value for one in response.result.regressions] == [3, 4]
    assert response.model_spec.name == "people"
    assert post("regress", classifier(), examples=EXAMPLES) == {"results": [3, 4]}


def test_the_context_holds_for_examples_that_do_not_say_otherwise() -> None:
    people = given(
        example(age=[1.5]), example(age=[2.0], city=[b"B"]), context=example(city=[b"Ulm"], age=[9.0])
    )
    assert [one.value for one in ask("Regress", classifier(), people).result.regressions] == [3, 4]
    answer = post("regress", classifier(), context={"city": "Ulm", "age": 9}, examples=[{"age": 1.5}, {}])
    assert answer == {"results": [3, 18]}


@pytest.mark.parametrize(
    ("people", "text"),
    [
        (given(), "at least one example"),
        ({}, "at least one example"),
        (given(example(age=[1.0])), r"city: example 0 lacks it"),
        (
            given(example(age=[1.0, 2.0], city=[b""])),
            r"age: expected age FP32 \[rows\], got 2 values in an example",
        ),
        (
            given(example(age=[b"1"], city=[b""])),
            r"age: example 0: expected a number \(FP32\), got '1'; send it as a number",
        ),
        (
            given(example(age=[1.0], city=[1])),
            r"city: example 0: expected text \(BYTES\), got 1; send it as text",
        ),
        (given(example(age=[1.0], city=[b""]), example(age=[1.0], city=[b"", b""])), "the same number"),
    ],
)
def test_wrong_examples_are_explained(people: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        ask("Classify", classifier(), people)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "examples: expected a list of at least one example, got none"),
        ({"examples": []}, "got none"),
        ({"examples": {}}, "got an object"),
        ({"examples": [1]}, r"examples\[0\]: expected an object, got a number"),
        ({"examples": [{"age": None, "city": ""}]}, "age: example 0 lacks it"),
        ({"examples": [{"age": [[1]], "city": ""}]}, "got a list"),
        (
            {"examples": [{"age": 1, "city": ""}, {"age": "a", "city": ""}]},
            r"age: example 1: expected a number \(FP32\), got 'a'$",
        ),
        (
            {
                "context": {"age": 2},
                "examples": [{"age": 1, "city": ""}, {"city": ""}, {"age": "7", "city": ""}],
            },
            r"age: example 2: expected a number \(FP32\), got '7'; send it as a number$",
        ),
        (
            {"examples": [{"age": 1, "city": ""}, {"age": 10**40, "city": ""}]},
            r"^age: example 1: expected a number \(FP32\) from -3\.4028e\+38 to .*, got a larger number$",
        ),
        (
            {"context": {"age": -(10**40)}, "examples": [{"city": ""}]},
            r"^age: context: expected a number \(FP32\) from .*, got a smaller number$",
        ),
        (
            {"context": {"age": "x"}, "examples": [{"city": ""}]},
            r"age: context: expected a number \(FP32\), got 'x'$",
        ),
        ({"examples": [{"age": 1}], "context": 1}, "context: expected an object"),
    ],
)
def test_wrong_examples_over_rest_are_explained(body: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        post("classify", classifier(), **body)


def test_floats_may_be_sent_as_integers_of_more_than_64_bits() -> None:
    examples = [{"x": 1.5}, {"x": 2**64}, {"x": -(2**70)}]
    assert post("regress", echo("FP64"), examples=examples) == {"results": [1.5, 2**64, -(2**70)]}


def test_fractions_are_no_integers() -> None:
    with pytest.raises(InvalidRequest, match="cat"):
        post("classify", ctr(), examples=[{"cat": [1.5] * 26, "dense": [0.5] * 13}])


def test_a_free_dimension_is_found_out() -> None:
    signature = Signature("serving_default", (spec("x", "FP32", None, 2),), (spec("y", "FP32"),))
    model = LoadedDouble(signature, lambda inputs: {"y": inputs["x"].sum(axis=(1, 2))}, name="free")
    assert post("regress", model, examples=[{"x": [1, 2, 3, 4]}]) == {"results": [10]}
    with pytest.raises(InvalidRequest, match="got 3 values"):
        post("regress", model, examples=[{"x": [1, 2, 3]}])


def test_a_signature_of_one_kind_refuses_the_other() -> None:
    assert ask("Classify", classifier(kind="classify")).result.classifications
    with pytest.raises(InvalidRequest, match="is for classify, not for regress; use Classify or Predict"):
        ask("Regress", classifier(kind="classify"))


def test_outputs_that_do_not_fit_are_for_the_operator_to_name() -> None:
    signature = Signature("serving_default", (spec("x", "FP32"),), (spec("a", "FP32"), spec("b", "FP32", 1)))
    model = LoadedDouble(signature, lambda inputs: {"a": inputs["x"], "b": inputs["x"][:, None]}, name="two")
    with pytest.raises(FailedPrecondition, match=r"the only such output.*name it in the model's"):
        post("regress", model, examples=[{"x": 1}])
    assert post("regress", configured(model, SignatureConfig(scores="a")), examples=[{"x": 1}]) == {
        "results": [1]
    }
    with pytest.raises(FailedPrecondition, match=r"got a FP32 \[rows\]; name it"):
        post("classify", model, examples=[{"x": 1}])
    with pytest.raises(FailedPrecondition, match="name the output 'c'"):
        post("regress", configured(model, SignatureConfig(scores="c")), examples=[{"x": 1}])


def test_the_wrong_number_of_labels_is_the_models_fault() -> None:
    with pytest.raises(ModelError, match="3 scores per row, but there are 1 labels"):
        ask("Classify", classifier(SignatureConfig(labels=("x",))))


def task(method: str, **model_spec: Any) -> dict[str, Any]:
    return {"model_spec": {"name": "people", **model_spec}, "method_name": method}


def multi(*tasks: Any, people: Any = PEOPLE) -> Any:
    asked = message("MultiInferenceRequest", tasks=tasks, input=people)
    return call(ServiceDouble(classifier()), "MultiInference", asked).results


def test_several_tasks_are_answered_in_order() -> None:
    first, second = multi(task(REGRESS), task(CLASSIFY))
    assert [one.value for one in first.regression_result.regressions] == [3, 4]
    assert len(second.classification_result.classifications[1].classes) == 3
    assert (first.model_spec.name, first.model_spec.version.value) == ("people", 3)


@pytest.mark.parametrize(
    ("tasks", "error", "text"),
    [
        ((), InvalidRequest, "at least one task"),
        ((task(REGRESS), task(REGRESS, name="other")), InvalidRequest, "same model"),
        ((task(REGRESS), task(REGRESS)), InvalidRequest, "asked for twice"),
        ((task("tensorflow/serving/predict"),), Unsupported, "tensorflow/serving/predict"),
        ((task(REGRESS, signature_name="none"),), InvalidRequest, "signature 'none' not found"),
    ],
)
def test_wrong_tasks_are_explained(tasks: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        multi(*tasks)


def sliced(model: Any) -> ServiceDouble:
    """A door at which every body counts as large."""
    service = ServiceDouble(model)
    service.at_once_bytes = 0
    return service


@pytest.mark.parametrize("door", [ServiceDouble, sliced])
def test_large_bodies_are_answered_as_small_ones(door: Callable[[Any], ServiceDouble]) -> None:
    body = {"context": {"city": "Ulm", "age": 9}, "examples": [{"age": 1.5}, {}] * 300}
    answer = http(door(classifier()), "POST", "/v1/models/people:regress", body)
    assert answer == {"results": [3, 18] * 300}
    scores = http(door(classifier()), "POST", "/v1/models/people:classify", body)
    assert len(scores["results"]) == 600
    with pytest.raises(InvalidRequest, match=r"examples\[1\]: expected an object"):
        http(door(classifier()), "POST", "/v1/models/people:regress", {"examples": [{"age": 1}, 2]})


@pytest.mark.parametrize("door", [ServiceDouble, sliced])
def test_a_text_of_the_context_counts_for_each_example(door: Callable[[Any], ServiceDouble]) -> None:
    """50 MB in the context of 500 examples cost 39 s and 12.6 GB."""
    service = door(classifier())
    service.limits = Limits(max_expanded_bytes=100_000)
    body = {"context": {"city": "x" * 1001}, "examples": [{"age": 1}] * 100}
    with pytest.raises(TooLarge, match=r"^city: .*100900 bytes.*max_expanded_bytes"):
        http(service, "POST", "/v1/models/people:regress", body)
    body["context"] = {"city": "x" * 500, "no input": "y" * 100_000}  # which is left out, so costs nothing
    assert len(http(service, "POST", "/v1/models/people:regress", body)["results"]) == 100


def test_values_of_the_context_count_for_each_example() -> None:
    body = {"context": {"city": ["x"] * 1000}, "examples": [{"age": 1}] * 1100}
    with pytest.raises(TooLarge, match=r"^context\.city: .*1048576 values"):
        http(ServiceDouble(classifier()), "POST", "/v1/models/people:regress", body)


def test_a_feature_without_values_in_the_context_counts_for_each_example() -> None:
    """19 KB took 1.3 s and 180 MB, and 58 KB took 10 s and 0.9 GB."""
    signature = Signature("serving_default", (spec("rows", "BYTES"),), (spec("y", "FP32"),), examples=True)
    model = LoadedDouble(signature, lambda inputs: {"y": np.zeros(len(inputs["rows"]), np.float32)}, name="m")
    context = {str(number): [] for number in range(1100)}
    for door in (ServiceDouble, sliced):
        with pytest.raises(TooLarge, match=r"^context\.\d+: .*1048576 values"):
            http(door(model), "POST", "/v1/models/m:regress", {"context": context, "examples": [{}] * 1000})
        assert len(post("regress", model, context=context, examples=[{}] * 900)["results"]) == 900


def test_examples_share_what_the_context_says() -> None:
    document = {"context": {"city": ["Ulm"] * 100}, "examples": [{"age": 1}, {}]}
    signature, budget = classifier().signatures["serving_default"], RequestBudget(Limits())
    assert examples_of(document, signature, budget) == ([{"age": [1]}, {}], {"city": [b"Ulm"] * 100})


def test_an_absent_feature_counts_for_each_example() -> None:
    inputs = tuple(replace(spec(f"f{number}", "FP32"), absent=0.0) for number in range(1100))
    model = rows_model(*inputs, outputs=(spec("y", "FP32"),))
    assert len(post("regress", model, examples=[{}] * 10)["results"]) == 10
    with pytest.raises(TooLarge, match=r"^examples: .*1048576 values"):
        post("regress", model, examples=[{}] * 1000)
    context = {one.name: 1 for one in inputs[1:]}
    with pytest.raises(TooLarge, match=r"^context\.f\d+: .*1048576 values"):
        post("regress", model, context=context, examples=[{}] * 1000)


def steps_in_the_lane(model: Any, body: dict[str, Any]) -> int:
    """How many steps of a short body's decoding are done in the time slicer."""
    service, lane = ServiceDouble(model), CountingLane()
    service.slicer = lane
    assert len(json.dumps(body)) < service.at_once_bytes
    assert len(http(service, "POST", f"/v1/models/{model.name}:regress", body)["results"])
    return lane.steps


def test_a_short_body_with_many_rows_of_many_inputs_goes_on_in_slices() -> None:
    """15 KB stopped all others for 84 ms."""
    inputs = tuple(spec(f"f{number}", "FP32") for number in range(39))
    model = rows_model(*inputs, outputs=(spec("y", "FP32"),))
    values = {one.name: 1 for one in inputs}
    assert steps_in_the_lane(model, {"context": values, "examples": [{}] * 2000}) > 39 * 2000 // 1024
    assert steps_in_the_lane(model, {"context": values, "examples": [{}] * 50}) == 0
    assert steps_in_the_lane(model, {"examples": [values] * 30}) == 0


def test_examples_with_a_long_context_are_made_in_slices() -> None:
    """10 KB stopped all others for 0.4 s."""
    signature = Signature("serving_default", (spec("rows", "BYTES"),), (spec("y", "FP32"),), examples=True)
    model = LoadedDouble(signature, lambda inputs: {"y": np.zeros(len(inputs["rows"]), np.float32)}, name="m")
    context = {str(number): 1 for number in range(500)}
    assert steps_in_the_lane(model, {"context": context, "examples": [{}] * 2000}) > 20
    assert steps_in_the_lane(model, {"context": {"a": 1}, "examples": [{"b": 1.5}] * 100}) == 0
