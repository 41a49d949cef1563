"""Explanations in the queue of a model: what they cost is learnt apart from what predictions cost."""

from __future__ import annotations

from headrace.model.servable import EXPLAIN_SIGNATURE, Signature
from tests.unit.batching.stage import SUMS, Model, Stage

EXPLAIN = Signature(EXPLAIN_SIGNATURE, SUMS.inputs, SUMS.outputs)


def test_a_slow_explanation_does_not_make_predictions_look_slow() -> None:
    with Stage(model=Model(EXPLAIN)) as stage:
        asked = stage.ask([1.0])
        stage.turn(enter=1)
        stage.clock.spend(9.0)
        stage.finish()
        assert asked.answered_right
        assert not stage.batcher.cost.known


def test_the_cost_of_explanations_is_learnt() -> None:
    with Stage(model=Model(EXPLAIN)) as stage:
        for _ in range(3):
            stage.ask([1.0])
            stage.turn(enter=1)
            stage.clock.spend(9.0)
            stage.finish()
        (busy,) = stage.occupy()
        late = stage.ask([1.0], within=5.0)
        assert "deadline" in late.error.message
        stage.finish()
        assert busy.answered_right
