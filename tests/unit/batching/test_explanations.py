"""Explanations in the queue of a model: what they cost is learnt apart from what predictions cost."""

from __future__ import annotations

from headrace.config import BatchingPolicy
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


def test_one_explanation_runs_at_a_time() -> None:
    """The library locks out a second one, which would occupy an instance that could predict."""
    with Stage(model=Model(EXPLAIN), policy=BatchingPolicy(max_batch_rows=1), instances=2) as stage:
        first, second = stage.ask([1.0]), stage.ask([2.0])
        stage.turn(enter=1)
        assert len(stage.batcher._running) == 1
        stage.finish(enter=1)
        assert first.answered_right
        stage.finish()
        assert second.answered_right


def test_an_explanation_is_not_refused_for_predictions_that_are_ahead() -> None:
    with Stage(model=Model(EXPLAIN)) as stage:
        for _ in range(3):
            stage.ask([1.0])
            stage.turn(enter=1)
            stage.clock.spend(9.0)
            stage.finish()
        stage.model.signatures = {SUMS.name: SUMS}
        stage.batcher._signatures = {SUMS.name: SUMS, EXPLAIN.name: EXPLAIN}
        (busy,) = stage.occupy()
        stage.model.signatures = {EXPLAIN.name: EXPLAIN}
        explained = stage.ask([1.0], within=10.0)
        assert not explained.settlements
        stage.finish(enter=1)
        stage.finish()
        assert busy.answered_right
        assert explained.answered_right
