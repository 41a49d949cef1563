"""The parts of the demonstration that its table's figures come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from demo import features, scores, training
from demo.data import Film, Person, Ratings


def few_ratings(last_liked: bool) -> Ratings:
    people = {"1": Person(24, "M", "writer"), "2": Person(53, "F", "artist")}
    films = {"a": Film("A", 1995, ("Comedy",)), "b": Film("B", 0, ("Drama", "War"))}
    events = [("1", "a", True), ("2", "a", False), ("1", "b", True), ("2", "b", last_liked)]
    return Ratings(people, films, events, np.array([liked for *_, liked in events], np.float64))


def test_the_scores_are_those_of_scikit_learn_ties_included() -> None:
    generator = np.random.default_rng(7)
    truth = generator.integers(0, 2, 500).astype(np.float64)
    answers = np.round(generator.random(500), 2)
    assert scores.auc(truth, answers) == pytest.approx(roc_auc_score(truth, answers))
    assert scores.logloss(truth, answers) == pytest.approx(log_loss(truth, np.clip(answers, 1e-7, 1 - 1e-7)))


def test_features_never_see_the_rating_they_are_for() -> None:
    np.testing.assert_array_equal(features.build(few_ratings(True)), features.build(few_ratings(False)))


def test_features_see_the_ratings_before() -> None:
    rows = features.build(few_ratings(True))
    assert rows[1, 1] > rows[0, 1], "the film was liked once before the second row"


def test_versions_of_the_model_are_numbered_as_they_come(tmp_path: Path) -> None:
    for number in (1, 2):
        place = training.release(tmp_path, training.Candidate("any", b"model"))
        assert place == tmp_path / "films" / str(number)
        assert (place / "model.onnx").read_bytes() == b"model"
