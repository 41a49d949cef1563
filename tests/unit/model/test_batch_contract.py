"""The batch contract: which models are found to give callers each other's numbers."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.base.tensors import STRING, Array, Tensors
from headrace.model import batch_contract
from headrace.model.batch_contract import Findings, check_contract
from headrace.model.servable import DEFAULT_SIGNATURE, EXPLAIN_SIGNATURE, Signature, TensorSpec

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)


def signature(dtype: np.dtype[np.generic] = F32, shape: tuple[int | None, ...] = (3,)) -> Signature:
    """One input of three numbers a row, and an output that may be anything."""
    return Signature(
        DEFAULT_SIGNATURE, (TensorSpec("x", F32, (3,)),), (TensorSpec("y", np.dtype(dtype), shape),)
    )


def check(
    answer: Callable[[Array], Array],
    of: Signature | None = None,
    sizes: tuple[int, ...] = (),
    recorded: tuple[Tensors, ...] = (),
) -> Findings:
    def predict(inputs: Tensors) -> Tensors:
        return {"y": np.asarray(answer(inputs["x"]))}

    return check_contract(predict, of or signature(), sizes, recorded, math.inf)


def scaled_by_the_batch(x: Array) -> Array:
    """As dynamic quantisation does: by the largest number of all rows."""
    scale = np.abs(x).max() / 127
    return np.round(x / scale) * scale


WEIGHTS = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)

INDEPENDENT: dict[str, Callable[[Array], Array]] = {
    "a product": lambda x: x @ WEIGHTS,
    "rounded by size": lambda x: (x @ WEIGHTS) * np.float32(1 + 1e-5 * (len(x) == 1)),
    "half precision": lambda x: (x @ WEIGHTS).astype(np.float16),
    "normalised within the row": lambda x: x / np.abs(x).sum(axis=1, keepdims=True),
    "not a number": lambda x: np.full((len(x), 2), np.nan, np.float32),
    "one answer for all": lambda x: np.zeros((len(x), 1), np.float32),
}

DEPENDENT: dict[str, Callable[[Array], Array]] = {
    "softmax over the rows": lambda x: np.exp(x) / np.exp(x).sum(axis=0),
    "normalised over the batch": lambda x: (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-3),
    "time as the first axis": lambda x: np.cumsum(x, axis=0),
    "from the last to the first": lambda x: np.cumsum(x[::-1], axis=0)[::-1],
    "quantised by the batch": scaled_by_the_batch,
    "sorted": lambda x: np.sort(x, axis=0),
    "how many rows there are": lambda x: np.full((len(x), 1), len(x), np.float32),
    "scaled by large numbers only": lambda x: x / np.maximum(np.abs(x).max(), 20.0),
    "a ten thousandth of the mean": lambda x: x + x.mean(axis=0) * np.float32(1e-4),
    "a hundredth more in a batch": lambda x: x * np.float32(1 + 0.01 * (len(x) > 1)),
    "the last row has the first": lambda x: x + x[:1] * (np.arange(len(x)) == len(x) - 1)[:, None],
    "the first row has the last": lambda x: x + x[-1:] * (np.arange(len(x)) == 0)[:, None],
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_rows_that_do_not_depend_on_each_other_are_accepted(name: str) -> None:
    found = check(INDEPENDENT[name])
    assert (found.breach, found.unchecked, found.refused) == ("", [], None)


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_depend_on_each_other_are_found(name: str) -> None:
    assert "depend on each other" in check(DEPENDENT[name]).breach


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: np.stack([x, x]), "a batch of 4 rows with 2"),
        (lambda x: np.stack([x] * 4), "a batch of 7 rows with 4"),  # as many targets as rows, by chance
        (lambda x: np.concatenate([x, x]), "a batch of 4 rows with 8"),
        (lambda x: x.sum(), "no rows"),
    ],
)
def test_rows_out_are_rows_in(answer: Callable[[Array], Array], said: str) -> None:
    assert said in check(answer).breach


def test_of_random_answers_only_the_rows_are_counted() -> None:
    random = np.random.default_rng(0)
    found = check(lambda x: x + random.normal(size=x.shape).astype(np.float32))
    assert found.breach == ""
    assert "answered differently each time" in found.unchecked[0]
    assert check(lambda x: random.normal(size=(2, 3))).breach


def test_of_a_model_with_state_only_the_rows_are_counted() -> None:
    calls = itertools.count()
    found = check(lambda x: np.full((len(x), 1), next(calls), np.float32))
    assert (found.breach, len(found.unchecked)) == ("", 1)


def test_a_tie_that_flips_once_is_no_breach() -> None:
    """Integers and texts count only where they differ in most of the draws."""
    flips = itertools.chain([0] * 5, [1], itertools.repeat(0))

    def labels(x: Array) -> Array:
        made = (x.sum(axis=1) > 0).astype(np.int64)
        made[0] ^= next(flips)
        return made

    assert check(labels, signature(I64, ())).breach == ""


LABELS: dict[str, Callable[[Array], Array]] = {
    "above the mean of the batch": lambda x: (x.sum(axis=1) > x.sum(axis=1).mean()).astype(np.int64),
    "the largest of the batch": lambda x: (x.sum(axis=1) == x.sum(axis=1).max()).astype(np.int64),
    "the best of quantised scores": lambda x: scaled_by_the_batch(x @ WEIGHTS).argmax(axis=1),
    "the size": lambda x: np.full(len(x), len(x)),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_depend_on_the_batch_are_found(name: str) -> None:
    assert "depend on each other" in check(LABELS[name], signature(I64, ())).breach
    texts = check(
        lambda x: np.array([str(one).encode() for one in LABELS[name](x)], STRING), signature(STRING, ())
    )
    assert "depend on each other" in texts.breach


INTEGERS: dict[str, Callable[[Array], Array]] = {
    "scaled by the largest": lambda x: x / max(int(x.max()), 1),
    "from 0 to 1": lambda x: (x - x.min()) / max(int(x.max() - x.min()), 1),
}


@pytest.mark.parametrize("dtype", [np.int64, np.uint8], ids=["int64", "uint8"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_that_are_scaled_by_the_batch_are_found(name: str, dtype: type) -> None:
    made = Signature(DEFAULT_SIGNATURE, (TensorSpec("x", np.dtype(dtype), (3,)),), signature().outputs)

    def scaled(inputs: Tensors) -> Tensors:
        return {"y": INTEGERS[name](inputs["x"].astype(np.int64)).astype(np.float32)}

    assert "depend on each other" in check_contract(scaled, made, (), (), math.inf).breach


def test_a_large_column_hides_no_other() -> None:
    def answer(x: Array) -> Array:
        softmax = np.exp(x) / np.exp(x).sum(axis=0)
        return np.concatenate([softmax, np.full((len(x), 1), 1.7e9)], axis=1).astype(np.float32)

    assert "depend on each other" in check(answer).breach


def addends(scale: float) -> Callable[[Tensors], Tensors]:
    """Contributions, and a rest that depends on the other rows."""

    def answer(inputs: Tensors) -> Tensors:
        x = inputs["x"].astype(np.float64)
        return {"x": x.sum(axis=1), "expected_value": scale * x.max() / (1 + np.abs(x).max(axis=1))}

    return answer


def test_a_rest_of_an_explanation_may_be_all_rounding() -> None:
    """As it is for a network without biases: its logit is the sum of what its inputs add."""
    outputs = tuple(TensorSpec(name, np.dtype(np.float64), ()) for name in ("x", "expected_value"))
    explanation = Signature(EXPLAIN_SIGNATURE, (TensorSpec("x", F32, (3,)),), outputs)
    assert not check_contract(addends(1e-16), explanation, (), (), math.inf).breach
    assert "'expected_value'" in check_contract(addends(1.0), explanation, (), (), math.inf).breach


def test_one_random_output_hides_no_other() -> None:
    random = np.random.default_rng(0)
    made = replace(signature(), outputs=(*signature().outputs, TensorSpec("id", F32, ())))

    def answer(inputs: Tensors) -> Tensors:
        x = inputs["x"]
        return {"y": np.exp(x) / np.exp(x).sum(axis=0), "id": random.random(len(x), np.float32)}

    found = check_contract(answer, made, (), (), math.inf)
    assert "another output 'y'" in found.breach


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(20))
def test_exploration_is_no_breach(share: float, seed: int) -> None:
    random = np.random.default_rng(seed)

    def explore(x: Array) -> Array:
        scores = (x @ WEIGHTS).astype(np.float32)
        chosen = random.random(len(x)) < share
        scores[chosen] = random.random((int(chosen.sum()), 5))
        return scores

    assert check(explore).breach == ""


def test_turns_are_no_breach() -> None:
    turns = itertools.cycle([0.0, 1.0])
    found = check(lambda x: x + np.float32(next(turns)))
    assert (found.breach, len(found.unchecked)) == ("", 1)


def test_a_recording_of_equal_rows_is_not_all_that_is_tried() -> None:
    same = {"x": np.ones((3, 3), np.float32)}
    assert "depend on each other" in check(lambda x: x - x.mean(axis=0), recorded=(same,)).breach


def test_a_model_that_answers_one_row_only_is_found() -> None:
    def answer(x: Array) -> Array:
        return x.reshape(1, 3)

    assert "answers a row alone, and fails a batch of 4 such rows" in check(answer).breach


def test_a_slow_first_call_leaves_time_for_the_others() -> None:
    calls = itertools.count()

    def answer(inputs: Tensors) -> Tensors:
        if next(calls) == 0:
            time.sleep(0.3)
        return {"y": np.cumsum(inputs["x"], axis=0)}

    found = check_contract(answer, signature(), (), (), time.monotonic() + 0.2)
    assert "depend on each other" in found.breach
    assert found.first_seconds >= 0.3


def test_a_slow_model_is_asked_for_the_most_telling_batches_first() -> None:
    calls = itertools.count()

    def answer(x: Array) -> Array:
        next(calls)
        return np.cumsum(x, axis=0)

    assert "depend on each other" in check(answer).breach
    assert next(calls) == 6  # one batch, a pair, that pair again, and more rows


def test_rows_that_cannot_be_varied_are_told() -> None:
    made = Signature(
        DEFAULT_SIGNATURE,
        (TensorSpec("x", STRING, ()),),
        (TensorSpec("y", F32, ()),),
        sample={"x": np.array([b"red"], STRING)},
    )
    found = check_contract(lambda inputs: {"y": np.zeros(len(inputs["x"]), F32)}, made, (), (), math.inf)
    assert "all generated rows are the same" in found.unchecked[0]


def test_texts_are_compared() -> None:
    def words(x: Array) -> Array:
        return np.array([f"{len(x)} rows".encode()] * len(x), STRING)

    assert "alone has another output 'y'" in check(words, signature(STRING, ())).breach


@pytest.mark.parametrize("sizes", [(8,), (2, 16)])
def test_only_sizes_that_the_model_may_see_are_tried(sizes: tuple[int, ...]) -> None:
    seen = set()

    def answer(x: Array) -> Array:
        seen.add(len(x))
        return x

    assert check(answer, sizes=sizes).breach == ""
    assert seen <= set(sizes)


def test_recorded_rows_are_used_where_there_are_some() -> None:
    """Made-up rows would be refused."""
    rows = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)

    def answer(x: Array) -> Array:
        assert all((row == rows).all(axis=1).any() for row in x)
        return x - x.mean(axis=0)

    assert "depend on each other" in check(answer, recorded=({"x": rows},)).breach


def test_rows_that_are_refused_are_generated_otherwise() -> None:
    """At first all numbers are above zero."""
    refused = []

    def answer(x: Array) -> Array:
        if (x > 0).all():
            refused.append(x)
            raise ValueError("expected standardised numbers")
        return x - x.mean(axis=0)

    found = check(answer)
    assert ("depend on each other" in found.breach, found.refused, len(refused)) == (True, None, 1)


def test_a_model_that_refuses_all_that_is_made_up_is_told() -> None:
    def refuse(x: Array) -> Array:
        raise ValueError(f"unknown category {x[0, 0]}")

    found = check(refuse)
    assert (found.breach, "unknown category" in str(found.refused)) == ("", True)


def test_integers_of_a_small_vocabulary_are_found() -> None:
    """A table of two rows refuses larger numbers; so do most lookups, at some size."""
    made = Signature(DEFAULT_SIGNATURE, (TensorSpec("x", I64, (None,)),), (TensorSpec("y", F32, (None,)),))

    def look_up(inputs: Tensors) -> Tensors:
        return {"y": np.array([0.5, 1.5], np.float32)[inputs["x"]]}

    found = check_contract(look_up, made, (), (), math.inf)
    assert (found.breach, found.refused) == ("", None)


def test_when_the_time_is_over_it_says_so() -> None:
    found = check_contract(lambda inputs: {"y": inputs["x"]}, signature(), (), (), -math.inf)
    assert "time" in found.unchecked[0]


def test_the_pairs_that_were_compared_are_those_of_the_last_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the model refuses are replaced by others, whose pairs are counted from the start."""
    calls = itertools.count(1)
    seconds = [0.0]

    def answer(inputs: Tensors) -> Tensors:
        number = next(calls)
        if number == 11:  # after the first rows' four pairs
            raise ValueError("refused")
        seconds[0] += number == 17  # after two pairs of other rows
        return {"y": inputs["x"]}

    monkeypatch.setattr(batch_contract, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    found = check_contract(answer, signature(), (), (), 0.5)
    assert found.unchecked == [
        "the check reached its time limit: the rows of 2 of 4 pairs of batches were compared"
    ]


def test_pairs_that_were_all_compared_are_not_counted_as_some(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]

    def answer(inputs: Tensors) -> Tensors:
        seconds[0] += len(inputs["x"]) == 1  # only the last part of the check sends a row alone
        return {"y": inputs["x"]}

    monkeypatch.setattr(batch_contract, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    found = check_contract(answer, signature(), (), (), 0.5)
    assert found.unchecked == [
        "the check reached its time limit: the rows of a batch were compared beside other rows, but not all "
        "of them with a row alone"
    ]
