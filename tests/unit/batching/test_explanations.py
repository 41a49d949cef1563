"""Explanations in the queue of a model: what they cost is learnt apart from what predictions cost."""

from __future__ import annotations

from headrace.base.errors import DeadlineExceeded
from headrace.config import BatchingPolicy
from headrace.model.servable import EXPLAIN_SIGNATURE, Signature
from tests.unit.batching.stage import SUMS, Asked, Model, Stage

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


class Both(Stage):
    """A stage for predictions and explanations, which are known to take 9 s each."""

    def __init__(self, instances: int = 1) -> None:
        super().__init__(BatchingPolicy(max_batch_rows=1), model=Model(EXPLAIN), instances=instances)
        for _ in range(3):
            self.explain(1.0)
            self.turn(enter=1)
            self.clock.spend(9.0)
            self.finish()
        self.batcher._signatures = {SUMS.name: SUMS, EXPLAIN.name: EXPLAIN}
        self.knows_cost(0.001, 0.0)

    def explain(self, value: float) -> Asked:
        self.model.signatures = {EXPLAIN.name: EXPLAIN}
        return self.ask([value])

    def predict(self, value: float, within: float) -> Asked:
        self.model.signatures = {SUMS.name: SUMS}
        return self.ask([value], within=within)


def test_a_prediction_that_an_explanation_makes_too_late_is_refused_at_once() -> None:
    """It waited until its deadline, and such waits made the Batcher refuse others."""
    with Both() as stage:
        explained = stage.explain(1.0)
        stage.turn(enter=1)
        stage.clock.spend(2.0)
        late, timely = stage.predict(2.0, within=6.9), stage.predict(3.0, within=7.1)
        assert "the answer would take about 7001.0 ms" in late.error.message
        stage.clock.spend(9.0)
        overdue = stage.predict(4.0, within=0.1)  # no longer predicted to take any time
        assert not overdue.settlements
        stage.finish(enter=1)
        assert explained.answered_right
        stage.finish()
        assert isinstance(timely.error, DeadlineExceeded)
        assert overdue.answered_right


def test_explanations_in_the_queue_count_if_they_are_older_than_the_predictions() -> None:
    with Both() as stage:
        explained = [stage.explain(1.0), stage.explain(2.0)]
        stage.turn(enter=1)
        late, timely = stage.predict(3.0, within=17.9), stage.predict(4.0, within=18.1)
        assert "the answer would take about 18001.0 ms" in late.error.message
        stage.clock.spend(1.0)
        explained += [stage.explain(5.0)]  # comes after the prediction that waits, and what joins its batch
        joins = stage.predict(6.0, within=17.1)
        assert not joins.settlements
        for _ in range(4):
            stage.finish(enter=1)
        stage.finish()
        assert all(one.answered_right for one in [*explained, timely, joins])


def test_in_fair_order_explanations_in_the_queue_are_priced_as_well() -> None:
    with Both() as stage:
        stage.batcher.share_fairly()
        stage.batcher._lanes.clear()
        explained = [stage.explain(1.0), stage.explain(2.0), stage.explain(3.0)]
        stage.turn(enter=1)
        late, timely = stage.predict(4.0, within=26.9), stage.predict(5.0, within=27.1)
        assert "the answer would take about 27001.0 ms" in late.error.message
        for _ in range(3):
            stage.finish(enter=1)
        stage.finish()
        assert all(one.answered_right for one in [*explained, timely])


def test_only_the_first_explanations_of_a_long_queue_are_priced() -> None:
    """Otherwise each prediction beside them would take time in proportion to the queue."""
    with Both() as stage:
        for _ in range(301):
            stage.explain(1.0)
        stage.turn(enter=1)
        late, waiting = stage.predict(2.0, within=257 * 9.0 - 0.1), stage.predict(3.0, within=257 * 9.0 + 0.1)
        assert "the answer would take about 2313045.0 ms" in late.error.message
        assert not waiting.settlements


def test_with_two_instances_predictions_do_not_wait_for_explanations() -> None:
    with Both(instances=2) as stage:
        explained, predicted = stage.explain(1.0), stage.predict(2.0, within=0.1)
        stage.turn(enter=2)
        stage.finish(2)
        assert explained.answered_right
        assert predicted.answered_right


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
