"""Answers that name the classes with the highest scores."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import ModelError, NotLoadable
from headrace.base.tensors import Array, Tensors
from headrace.model.labelled_servable import LabelledServable, highest
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec

FLOAT32 = np.dtype(np.float32)


class Scoring:
    """Gives the scores that it gets."""

    platform = "test"

    def __init__(self, *outputs: TensorSpec, classes: int | None = 3) -> None:
        given = outputs or (TensorSpec("rank", FLOAT32, ()), TensorSpec("probabilities", FLOAT32, (classes,)))
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, (TensorSpec("x", FLOAT32, (None,)),), given),
            "other": Signature(
                "other", (TensorSpec("x", FLOAT32, (None,)),), (TensorSpec("n", FLOAT32, ()),)
            ),
        }
        self.is_closed = False

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> dict[str, Array]:
        x = inputs["x"]
        return {"n": x[:, 0]} if signature == "other" else {"rank": x[:, 0], "probabilities": x}

    def close(self) -> None:
        self.is_closed = True


SCORES = np.array([[0.1, 0.7, 0.2], [0.4, 0.2, 0.4]], np.float32)


def test_one_class_is_a_value_of_a_row() -> None:
    servable = LabelledServable(Scoring(), "", ("cat", "dog", "Kühe"), 1)
    outputs = servable.predict({"x": SCORES})
    assert outputs["label"].tolist() == [b"dog", b"cat"]
    np.testing.assert_array_equal(outputs["score"], SCORES[[0, 1], [1, 0]])
    np.testing.assert_array_equal(outputs["probabilities"], SCORES)
    specs = servable.signatures[DEFAULT_SIGNATURE].outputs
    assert [str(spec) for spec in specs[2:]] == ["label BYTES [rows]", "score FP32 [rows]"]


def test_several_classes_are_ranked_by_score_and_then_by_place() -> None:
    servable = LabelledServable(Scoring(classes=None), "probabilities", ("cat", "dog", "Kühe"), 3)
    outputs = servable.predict({"x": SCORES})
    assert outputs["label"].tolist() == [
        [b"dog", "Kühe".encode(), b"cat"],
        [b"cat", "Kühe".encode(), b"dog"],
    ]
    np.testing.assert_array_equal(outputs["score"], -np.sort(-SCORES, axis=1))
    assert str(servable.signatures[DEFAULT_SIGNATURE].outputs[2]) == "label BYTES [rows, 3]"


def test_a_score_that_is_no_number_is_the_lowest() -> None:
    scores = np.array([[np.nan, -np.inf, -1.0], [np.nan, np.nan, np.nan]])
    assert highest(scores, 1).tolist() == [[2], [0]]
    assert highest(scores, 2)[0, 0] == 2


def test_signatures_without_the_scores_stay_as_they_are() -> None:
    model = Scoring()
    servable = LabelledServable(model, "", ("cat", "dog", "cow"), 1)
    assert servable.signatures["other"] is model.signatures["other"]
    assert servable.predict({"x": SCORES}, "other").keys() == {"n"}
    servable.close()
    assert model.is_closed


def test_labels_that_do_not_fit_are_refused() -> None:
    own = TensorSpec("label", np.dtype(np.int64), ()), TensorSpec("probabilities", FLOAT32, (3,))
    cases = [
        (Scoring(), "", 2, 1, "signature.labels: expected 3 names, one per class of probabilities, got 2"),
        (Scoring(), "rank", 3, 1, r"signature.scores: expected an output of floats .*rank.*, got 'rank'"),
        (Scoring(), "logits", 3, 1, "signature.scores: expected .* got 'logits'"),
        (Scoring(TensorSpec("n", FLOAT32, ())), "", 3, 1, "signature.scores: expected an output of floats"),
        (
            Scoring(TensorSpec("n", np.dtype(np.int64), ())),
            "",
            2,
            1,
            r"classes\], or \[rows\] for two classes",
        ),
        (Scoring(), "", 3, 4, "signature.top: expected at most 3, one per label, got 4"),
        (Scoring(*own), "", 3, 1, "signature.top: the model has an output 'label' of its own"),
    ]
    for model, scores, labels, top, said in cases:
        with pytest.raises(NotLoadable, match=said):
            LabelledServable(model, scores, ["name"] * labels, top)


class Probability(Scoring):
    """Gives the first number that it gets, as the probability of the second of two classes."""

    def __init__(self) -> None:
        super().__init__(TensorSpec("prediction", FLOAT32, ()))

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> dict[str, Array]:
        return {"prediction": inputs["x"][:, 0]}


@pytest.mark.parametrize("scores", ["", "prediction"])
def test_a_single_probability_is_that_of_the_second_of_two_classes(scores: str) -> None:
    given = {"x": np.array([[0.25], [0.75], [0.5]], np.float32)}
    outputs = LabelledServable(Probability(), scores, ("leaves", "stays"), 1).predict(given)
    assert outputs["prediction"].tolist() == [0.25, 0.75, 0.5]
    assert outputs["label"].tolist() == [b"leaves", b"stays", b"leaves"]
    assert outputs["score"].tolist() == [0.75, 0.75, 0.5]
    both = LabelledServable(Probability(), scores, ("leaves", "stays"), 2)
    assert both.predict(given)["label"][1].tolist() == [b"stays", b"leaves"]
    assert both.predict(given)["score"][1].tolist() == [0.75, 0.25]
    assert both.signatures[DEFAULT_SIGNATURE].outputs[2].dtype == FLOAT32


def test_another_number_of_scores_than_declared_is_the_models_error() -> None:
    servable = LabelledServable(Scoring(classes=None), "", ("cat", "dog"), 1)
    with pytest.raises(
        ModelError, match=r"expected 2 scores per row, one per label, got probabilities \[2, 3\]"
    ):
        servable.predict({"x": SCORES})
