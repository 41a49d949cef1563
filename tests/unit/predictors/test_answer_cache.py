"""What a prediction cache holds: equal keys for equal inputs, and no more bytes than it may take."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.batching.request import Answer, BatchOutputs, Origin, Request, Timings
from headrace.model.servable import Signature, TensorSpec
from headrace.predictors.answer_cache import Answers, Kept, copied, key_of, own_columns, size_of
from tests.unit.predictors.doubles import FLOAT, ONE

FROM = Origin("m", 3)
MEBIBYTE = 1 << 20


def kept(answers: Answers, number: int, outputs: int = 1, until: float = math.inf) -> None:
    keep(answers, number, np.full((1, outputs), number, FLOAT), until)


def keep(answers: Answers, number: int, row: Array, until: float = math.inf) -> None:
    request = Request(*ONE.check({"x": np.full((1, 2), number)}), lambda _: None)
    key = key_of(request, answers.most_key_bytes)
    assert key is not None
    answer = Answer(BatchOutputs({"y": row}, FROM), 0, 1, Timings(0.0, 1, 1))
    answers.keep(key, Kept(copied(answer), size_of(key, answer), until))


def found(answers: Answers, number: int, now: float = 0.0) -> bool:
    key = key_of(Request(*ONE.check({"x": np.full((1, 2), number)}), lambda _: None), MEBIBYTE)
    assert key is not None
    return answers.find(key, now) is not None


def test_answers_take_no_more_than_they_may_and_a_scan_displaces_none_that_is_asked_again() -> None:
    answers = Answers(65536)
    for number in range(20):
        kept(answers, number)
        assert found(answers, number)
    for number in range(1000, 3000):
        kept(answers, number)
        assert answers.held_bytes <= 65536
    assert [found(answers, number) for number in range(20)] == [True] * 20
    assert found(answers, 2999)
    assert not found(answers, 1000)


def test_answers_that_are_not_asked_for_any_more_make_room() -> None:
    answers = Answers(65536)
    for number in range(500):
        kept(answers, number)
        assert found(answers, number)
        assert answers.held_bytes <= 65536
    assert found(answers, 499)
    assert not found(answers, 0)
    assert 60 < len(answers) < 100


def test_a_cache_that_was_full_for_long_and_is_emptied_is_as_new() -> None:
    """Whatever came, was asked for again, replaced, displaced or expired: no byte of it is counted after."""
    random, answers = np.random.default_rng(3), Answers(65536)
    for now in range(5000):
        number = int(random.integers(0, 200))
        if random.random() < 0.5:
            outputs, seconds = int(random.integers(1, 400)), float(random.integers(500))
            kept(answers, number, outputs, until=now + seconds)
        else:
            found(answers, number, now)
        assert answers.held_bytes <= 65536
    for number in range(200):
        assert not found(answers, number, now=10_000.0)
    assert (len(answers), answers.held_bytes) == (0, 0)

    def kept_longer(of: Answers) -> list[int]:
        for number in range(100):
            kept(of, number)
            assert found(of, number)
        for number in range(1000, 1200):  # a scan
            kept(of, number)
        return [number for number in range(100) if found(of, number)]

    assert kept_longer(answers) == kept_longer(Answers(65536)) != []


@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_bytes_are_counted_as_python_takes_them(kind: str) -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        answers = Answers(4 * MEBIBYTE)
        for number in range(3000):
            if kind == "numbers":
                kept(answers, number, outputs=50)
            else:
                keep(answers, number, np.array([[b"%06d" % number * 20 for _ in range(10)]], object))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 < (after - before) / answers.held_bytes < 1.05


TEXTS = Signature(
    "s", (TensorSpec("t", np.dtype(object), (2,)), TensorSpec("n", np.dtype(np.int64), ())), ONE.outputs
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([["ab", "c"]], [["a", "bc"]]),
        ([["", "a"]], [["a", ""]]),
        ([["a", "b"], ["c", "d"]], [["a", "b"], ["c", "e"]]),
    ],
)
def test_texts_with_other_boundaries_have_other_keys(one: list[list[str]], other: list[list[str]]) -> None:
    def key(texts: list[list[str]]) -> object:
        checked = TEXTS.check({"t": texts, "n": [7] * len(texts)})
        return key_of(Request(*checked, lambda _: None), 1000)

    assert key(one) == key(one) is not None
    assert key(one) != key(other)


def test_texts_that_take_too_much_are_not_asked_for() -> None:
    checked = TEXTS.check({"t": [["a" * 500, "b" * 500]], "n": [7]})
    assert key_of(Request(*checked, lambda _: None), 1015) is None
    assert key_of(Request(*checked, lambda _: None), 1016) is not None


@pytest.mark.parametrize("as_it_came", [bytes, bytearray, memoryview, lambda raw: np.frombuffer(raw, FLOAT)])
def test_a_question_is_the_same_however_its_bytes_came(as_it_came: Callable[[bytes], object]) -> None:
    layout, (column,), rows = ONE.check({"x": np.ones((2, 2), FLOAT)})
    raw = np.asarray(column).tobytes()
    expected = key_of(Request(layout, (column,), rows, lambda _: None), 1000)
    request = Request(layout, (as_it_came(raw),), rows, lambda _: None)  # type: ignore[arg-type]
    assert key_of(request, 1000) == expected
    assert expected is not None
    assert type(expected.inputs[0]) is bytes
    assert own_columns(expected, request.columns) == (raw,)


def test_texts_of_an_answer_are_copied_as_they_are() -> None:
    names = np.array([b"a", b"bb", b"ccc"], object)
    own = copied(Answer(BatchOutputs({"name": names}, FROM), 1, 3, Timings(0.0, 3, 2)))
    assert own["name"].tolist() == [b"bb", b"ccc"]
    assert own["name"].base is None
