"""Texts in a batch: never many megabytes of them in one call, nor in the serving thread."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.tensors import STRING, Array, Tensors
from headrace.batching import text_limits
from headrace.batching.request import Request
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from tests.unit.batching.stage import Asked, Model, Stage

_LENGTHS = Signature(
    DEFAULT_SIGNATURE, (TensorSpec("x", STRING, ()),), (TensorSpec("y", np.dtype(np.float32), ()),)
)
_SOME_LENGTHS = Signature(
    DEFAULT_SIGNATURE, (TensorSpec("x", STRING, ()),), (TensorSpec("y", np.dtype(np.float32), (None,)),)
)


def _lengths(inputs: Tensors) -> Tensors:
    return {"y": np.array([len(one) for one in inputs["x"]], np.float32)}


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_limits, "MOST_BYTES", 100)
    monkeypatch.setattr("headrace.batching.batch_queue.MOST_BYTES", 100)


def _column(*lengths: int) -> Array:
    return np.array([b"w" * length for length in lengths], STRING)


def _ask(stage: Stage, *lengths: int) -> Asked:
    asked = Asked(np.array(lengths, np.float32))
    (signature,) = stage.model.signatures.values()
    layout, columns, rows = signature.check({"x": _column(*lengths)})
    asked.request = Request(layout, columns, rows, asked.respond, waiter=asked)
    stage.batcher.submit(asked.request)
    return asked


@pytest.mark.parametrize(
    ("lengths", "most_rows", "allowed", "counts"),
    [
        ([30, 30, 30, 30], 9, (), [3, 1]),
        ([100, 1, 100], 9, (), [1, 1, 1]),
        ([500, 10, 10, 500], 9, (), [1, 2, 1]),
        ([0] * 5, 2, (), [2, 2, 1]),
        ([30] * 5, 8, (2, 8), [2, 2, 1]),
        ([90] * 5, 8, (4, 8), [4, 1]),
    ],
)
def test_rows_are_cut_by_their_texts(
    lengths: list[int], most_rows: int, allowed: tuple[int, ...], counts: list[int]
) -> None:
    found = text_limits.row_counts([_column(*lengths)], (0,), len(lengths), most_rows, allowed)
    assert found == counts


def test_a_request_of_many_texts_is_answered_in_parts_as_if_it_were_one() -> None:
    with Stage(model=Model(_LENGTHS, _lengths), inline=True) as stage:
        lengths = [40, 50, 60, 1, 2, 300, 7]
        asked = _ask(stage, *lengths)
        stage.turn()
        assert asked.sums == lengths
        assert [sum(map(len, call)) for call in stage.model.calls] == [90, 63, 300, 7]
        assert stage.idle()


def test_a_request_whose_parts_could_be_answered_in_other_shapes_stays_whole() -> None:
    model = Model(_SOME_LENGTHS, lambda inputs: {"y": _lengths(inputs)["y"][:, None]})
    with Stage(model=model, inline=True) as stage:
        _ask(stage, 90, 90)
        stage.turn()
        assert stage.model.rows == [2]


def test_a_batch_ends_before_its_texts_are_too_many() -> None:
    with Stage(model=Model(_LENGTHS, _lengths), inline=True) as stage:
        for length in (60, 30, 30, 400, 1):
            _ask(stage, length)
        stage.turn()
        assert [[len(text) for text in call] for call in stage.model.calls] == [[60, 30], [30], [400], [1]]


def test_long_texts_are_not_computed_in_the_serving_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a batch is predicted to take was learnt from short ones."""
    monkeypatch.setattr(text_limits, "MOST_INLINE_BYTES", 50)
    with Stage(model=Model(_LENGTHS, _lengths), inline=True) as stage:
        _ask(stage, 50)
        stage.turn()
        assert not stage.threads()
        stage.model.gated = True
        asked = _ask(stage, 51)
        stage.turn(enter=1)
        stage.finish()
        assert asked.sums == [51]
        assert stage.threads()
