"""Examples read from where they lie: the same as if all had been parsed, at a cost that is limited before."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.base.tensors import STRING, Array
from headrace.config import Limits
from headrace.frontends.tfserving.message_examples import find_examples, read_columns
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_fields import length_prefix
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import run
from headrace.model.servable import Signature, TensorSpec
from tests.unit.frontends.oip.doubles import spec
from tests.unit.frontends.tfserving.doubles import ServiceDouble, call, classifier, message

Request = protos.message("tensorflow.serving.ClassificationRequest")
Input = protos.message("tensorflow.serving.Input")
Example = protos.message("tensorflow.Example")
SIGNATURE = Signature("serving_default", (spec("n", "FP32", 2), spec("city", "BYTES")), ())
MIB = 1 << 20


def example(**features: list[Any]) -> Any:
    kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
    return Example(
        features={
            "feature": {
                name: {kinds[type(values[0])]: {"value": values}} if values else {}
                for name, values in features.items()
            }
        }
    )


def with_context(context: Any, *examples: Any) -> bytes:
    given = {"example_list_with_context": {"context": context, "examples": examples}}
    written: bytes = Request(input=given).SerializeToString()
    return written


def read(data: bytes, limits: Limits | None = None) -> dict[str, Array]:
    budget = RequestBudget(limits or Limits())
    return run(read_columns(SIGNATURE, data, run(find_examples(data, budget)), budget))


def test_what_the_context_says_stands_only_where_an_example_says_nothing() -> None:
    columns = read(
        with_context(
            example(n=[7, 8], city=[b"Ulm"], other=[b"x" * 1000]),
            example(n=[1.5, 2.5]),
            example(city=[b"B"], other=[1, 2, 3]),
            example(n=[]),
        )
    )
    assert columns["n"].tolist() == [[1.5, 2.5], [7, 8], [7, 8]]
    assert columns["city"].tolist() == [b"Ulm", b"B", b"Ulm"]
    assert columns["city"].dtype == STRING


def test_a_column_of_the_context_alone_holds_its_texts_once() -> None:
    columns = read(with_context(example(n=[1, 2], city=[b"c" * 1000]), *[Example()] * 500))
    assert columns["city"].shape == (500,)
    assert all(text is columns["city"][0] for text in columns["city"])


def test_the_numbers_of_a_long_example_are_counted_before_anything_is_made_of_them() -> None:
    data = with_context(Example(), example(n=[0.5] * 1_100_000))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match=r"limits\.max_values"):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
    finally:
        tracemalloc.stop()


def test_the_numbers_of_a_long_example_never_are_a_list() -> None:
    long = Signature("serving_default", (spec("n", "FP32", None),), ())
    many = [[0.5] * 100_000, [0.25] * 100_000]
    data = with_context(example(n=[1.0] * 100_000), example(n=many[0]), Example(), example(n=many[1]))
    tracemalloc.start()
    try:
        budget = RequestBudget(Limits())
        columns = run(read_columns(long, data, run(find_examples(data, budget)), budget))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()
    assert columns["n"].tolist() == [many[0], [1.0] * 100_000, many[1]]
    texts, given = (
        Signature("serving_default", (spec("n", "BYTES", None),), ()),
        find_examples(data, budget),
    )
    steps = read_columns(texts, data, run(given), budget)
    with pytest.raises(
        InvalidRequest, match=r"n: example 0: expected text \(BYTES\), got 0\.5; send it as text"
    ):
        run(steps)


def test_many_values_are_read_in_pieces() -> None:
    given = [example(n=[float(row), row + 0.5], city=[b"%d" % row]) for row in range(10_000)]
    columns = read(Request(input={"example_list": {"examples": given}}).SerializeToString())
    assert columns["n"].tolist() == [[row, row + 0.5] for row in range(10_000)]
    assert columns["city"].tolist() == [b"%d" % row for row in range(10_000)]


def test_where_something_stands_for_missing_values_examples_may_have_fewer() -> None:
    tags = TensorSpec("tags", np.dtype(np.int64), (3,), absent=-1, shorter=True)
    pair = TensorSpec("pair", np.dtype(np.float32), (2,), absent=0.0)
    city = TensorSpec("city", STRING, (), absent="")
    signature = Signature("serving_default", (tags, pair, city), ())
    given = [example(tags=[1], city=[b"B"]), example(pair=[1.0, 2.0]), example(tags=[1, 2, 3], pair=[])]
    data = with_context(example(tags=[7, 8]), *given)
    budget = RequestBudget(Limits())
    columns = run(read_columns(signature, data, run(find_examples(data, budget)), budget))
    checked = signature.check(columns)
    assert columns["tags"].tolist() == [[1, -1, -1], [7, 8, -1], [1, 2, 3]]
    assert columns["pair"].tolist() == [[0, 0], [1, 2], [0, 0]]
    assert columns["city"].tolist() == [b"B", b"", b""]
    assert checked.rows == 3
    for wrong in (example(tags=[1, 2, 3, 4]), example(pair=[1.0])):
        data = with_context(Example(), wrong)
        found = run(find_examples(data, budget))
        with pytest.raises(InvalidRequest, match=r"expected (tags|pair) .*, got [14] values in an example"):
            run(read_columns(signature, data, found, budget))


def test_filling_up_is_limited_before_it_is_paid() -> None:
    wide = TensorSpec("tags", np.dtype(np.int64), (1 << 20,), absent=-1, shorter=True)
    signature = Signature("serving_default", (wide,), ())
    for data in (
        with_context(Example(), *[example(tags=[1])] * 500),
        with_context(Example(), *[Example()] * 500),
    ):
        budget = RequestBudget(Limits(max_values=65_536))
        found = run(find_examples(data, budget))
        with pytest.raises(TooLarge, match="tags: expected at most 65536 values"):
            run(read_columns(signature, data, found, budget))


def test_the_first_example_that_lacks_something_is_named() -> None:
    with pytest.raises(InvalidRequest, match="city: example 1 lacks it; each example needs the feature"):
        read(with_context(example(n=[1, 2]), example(city=[b""]), Example(), Example()))
    with pytest.raises(InvalidRequest, match=r"n: examples have \[2, 3\] values; they need the same number"):
        read(with_context(example(n=[1, 2, 3], city=[b""]), example(n=[1, 2]), Example()))


inputs = st.builds(
    lambda kind, examples, context: Input(
        **{
            kind: {"examples": [example(n=[float(one), 0.0], city=[b"%d" % one]) for one in examples]}
            | ({"context": example(n=[context], city=[b"c"])} if kind.endswith("context") and context else {})
        }
    ),
    st.sampled_from(["example_list", "example_list_with_context"]),
    st.lists(st.integers(0, 9), max_size=3),
    st.integers(0, 3),
)


@for_all(st.lists(inputs, max_size=4), st.lists(st.integers(0, 30), max_size=4))
def test_parts_that_come_more_than_once_are_merged_as_protobuf_has_it(
    parts: list[Any], junk: list[int]
) -> None:
    spec_bytes = Request(model_spec={"name": "m"}).SerializeToString()
    data = spec_bytes + b"".join(Request(input=part).SerializeToString() for part in parts)
    data += b"".join(length_prefix(100, 1) + bytes([one]) for one in junk)
    whole = Request.FromString(data).input
    kind = whole.WhichOneof("kind")
    wanted = list(getattr(whole, kind).examples) if kind else []
    if not wanted:
        with pytest.raises(InvalidRequest, match="at least one example"):
            run(find_examples(data, RequestBudget(Limits())))
        return
    found = run(find_examples(data, RequestBudget(Limits())))
    assert Request.FromString(found.request).model_spec.name == "m"
    assert not Request.FromString(found.request).HasField("input")
    spans = [
        Example.FromString(data[start:stop]) for start, stop in zip(found.starts, found.stops, strict=True)
    ]
    assert spans == wanted
    context = whole.example_list_with_context.context if kind == "example_list_with_context" else Example()
    assert Example.FromString(found.context) == context


@pytest.mark.parametrize(
    "data", [b"\x12", b"\x12\x02\x0a\x05", b"\x12\x04\x0a\x02\x0a\x05", b"\x13\x14"], ids=repr
)
def test_what_is_cut_off_or_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="expected a protobuf message"):
        run(find_examples(data, RequestBudget(Limits())))


def test_an_example_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"expected a tensorflow.Example message"):
        read(length_prefix(2, 5) + length_prefix(1, 3) + b"\x0a\x01\x0a")


def within(*path: int, value: bytes) -> bytes:
    for number in reversed(path):
        value = length_prefix(number, len(value)) + value
    return value


HOSTILE = {
    "empty examples": within(2, 1, value=b"\x0a\x00" * MIB),
    "nothing that is known": within(2, 1, value=b"\x7a\x00" * MIB),
    "not even in the input": b"\x7a\x00" * MIB,
    "one example's features": within(2, 2, 1, 1, value=b"\x0a\x00" * MIB),
    "the context's features": with_context(Example(), Example())
    + within(2, 2, 2, 1, value=b"\x0a\x00" * MIB),
    "one feature's values": with_context(Example(), example(n=[1] * 2 * MIB)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_too_many_values_are_refused_before_they_are_paid(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="at most 65536 values in a request"):
            read(HOSTILE[name], Limits(max_values=65_536))
        assert tracemalloc.get_traced_memory()[1] < 12 * MIB
    finally:
        tracemalloc.stop()


def test_a_text_of_the_context_counts_for_each_example_before_it_is_repeated() -> None:
    data = with_context(example(n=[1, 2], city=[b"x" * MIB]), *[Example()] * 500)
    with pytest.raises(TooLarge, match="city: what came once would take 524300000 bytes or more"):
        read(data)


def test_a_task_that_comes_again_and_again_is_refused_the_second_time() -> None:
    people = {"example_list": {"examples": [example(age=[1.0], city=[b"B"])]}}
    task = {"model_spec": {"name": "people"}, "method_name": "tensorflow/serving/classify"}
    asked = message("MultiInferenceRequest", tasks=[task] * 1000, input=people)
    with pytest.raises(InvalidRequest, match="asked for twice"):
        call(ServiceDouble(classifier()), "MultiInference", asked)


def test_large_requests_are_answered_as_small_ones() -> None:
    people = [example(age=[float(age % 7)], city=[b"x" * 50]) for age in range(3000)]
    asked = message(
        "RegressionRequest", model_spec={"name": "people"}, input={"example_list": {"examples": people}}
    )
    assert asked.ByteSize() > 3 * 65536
    found = call(ServiceDouble(classifier()), "Regress", asked).result.regressions
    assert np.array([one.value for one in found]).tolist() == [2.0 * (age % 7) for age in range(3000)]
