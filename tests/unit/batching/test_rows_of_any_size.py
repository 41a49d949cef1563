"""Where batches of rows run whose size may differ."""

from __future__ import annotations

import numpy as np

from tests.unit.batching.stage import Stage


def test_rows_of_another_size_do_not_run_in_the_serving_thread_before_they_were_quick_in_another() -> None:
    """What short rows cost says nothing about long ones: attention grows with the square of a row."""
    with Stage() as stage:
        stage.batcher._inline_seconds = 10.0
        stage.knows_cost(0.0, 0.0001)
        for rows, in_thread in ((1, True), (1, False), (2, True), (2, False), (1, False)):
            for row in ([1.0], [1.0] * 5000):
                stage.model.gated = in_thread
                asked = stage.ask(np.array([row] * rows, np.float32))
                stage.turn(enter=int(in_thread))
                if in_thread:
                    stage.finish()
                assert asked.answered_right


def test_long_rows_that_took_long_stay_out_of_the_serving_thread() -> None:
    with Stage() as stage:
        stage.batcher._inline_seconds = 0.001
        stage.knows_cost(0.0, 0.0)
        stage.model.spend = lambda rows: stage.clock.spend(0.5)
        for _ in range(3):
            asked = stage.ask(np.ones((1, 5000), np.float32))
            stage.turn(enter=1)
            stage.finish()
            assert asked.answered_right
            stage.knows_cost(0.0, 0.0)  # as many requests of short rows would teach it
