"""The Batcher's five laws, one section each."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import DeadlineExceeded, InvalidRequest, InvalidRows, ModelError, Unavailable
from headrace.base.tensors import Tensors
from headrace.batching.request import NO_DEADLINE
from headrace.config import BatchingPolicy
from tests.unit.batching.stage import Model, Stage


def sums(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"].sum(axis=1, dtype=np.float32)}


def failing_on(value: float, error: BaseException) -> Model:
    """A model that fails whenever a row begins with a value."""

    def answer(inputs: Tensors) -> Tensors:
        if (inputs["x"][:, 0] == value).any():
            raise error
        return sums(inputs)

    return Model(answer=answer)


# --- 1. An item is answered exactly once ---


def test_a_deadline_that_passes_while_the_batch_runs_is_answered_then_and_the_result_dropped() -> None:
    with Stage() as stage:
        late = stage.ask([1.0], within=0.010)
        patient = stage.ask([2.0])
        stage.turn(enter=1)
        stage.clock.advance(0.009)
        assert late.settlements == []
        stage.clock.advance(0.002)
        assert isinstance(late.error, DeadlineExceeded)
        assert patient.settlements == []
        stage.finish()
        assert isinstance(late.error, DeadlineExceeded)
        assert patient.sums == [2.0]
        assert stage.idle()
        assert (stage.batcher.statistics.requests, stage.batcher.statistics.failures) == (1, 1)


def test_closing_settles_what_waits_and_lets_what_runs_be_answered() -> None:
    with Stage() as stage:
        (running,) = stage.occupy()
        waiting = stage.ask([1.0])
        stage.batcher.close()
        assert isinstance(waiting.error, Unavailable)
        assert isinstance(stage.ask([2.0]).error, Unavailable)
        assert running.settlements == []
        stage.finish()
        assert running.sums == [-1.0]
        assert stage.idle()
        assert stage.model.rows == [1]
        stage.clock.advance(10.0)


def test_closing_settles_the_parts_of_a_large_request_that_have_not_entered_the_queue_yet() -> None:
    with Stage(BatchingPolicy(max_batch_rows=4)) as stage:
        large = stage.ask([1.0] * 20)
        stage.turn(enter=1)
        stage.batcher.close()
        assert isinstance(large.error, Unavailable)
        stage.finish()
        assert stage.idle()


def test_closing_twice_is_closing_once() -> None:
    with Stage() as stage:
        waiting = stage.ask([1.0])
        stage.batcher.close()
        stage.batcher.close()
        assert isinstance(waiting.error, Unavailable)
        stage.turn()
        assert stage.model.rows == []


# --- 2. Nothing overtakes an item that did not fit ---


def test_a_small_request_does_not_pass_a_large_one_that_did_not_fit() -> None:
    with Stage(BatchingPolicy(max_batch_rows=8)) as stage:
        stage.occupy()
        stage.ask([1.0] * 6)
        stage.ask([2.0] * 6)
        stage.ask([3.0])
        stage.finish(enter=1)
        stage.finish(enter=1)
        stage.finish()
        assert [call[:, 0].tolist() for call in stage.model.calls[1:]] == [[1.0] * 6, [2.0] * 6 + [3.0]]


# --- 3. An item nobody waits for is never run ---


@pytest.mark.parametrize("leave", ["waiter", "abandon"])
def test_who_leaves_while_waiting_is_never_computed(leave: str) -> None:
    with Stage() as stage:
        stage.occupy()
        gone, stays = stage.ask([1.0]), stage.ask([2.0])
        if leave == "waiter":
            gone.gone = True
        else:
            assert gone.request is not None
            gone.request.abandon()
        stage.finish(enter=1)
        stage.finish()
        assert stays.sums == [2.0]
        assert gone.settlements == []
        assert not stage.model.ran(1.0)
        assert stage.batcher.statistics.cancelled == 1
        assert stage.idle()


def test_who_expires_while_waiting_is_never_computed_and_told_in_time() -> None:
    with Stage() as stage:
        stage.occupy()
        expiring = stage.ask([1.0], within=0.005)
        stage.clock.advance(0.006)
        assert isinstance(expiring.error, DeadlineExceeded)
        stage.finish()
        assert not stage.model.ran(1.0)
        assert stage.batcher.statistics.failures == 1
        assert stage.idle()


def test_the_deadline_is_looked_at_when_the_batch_is_formed() -> None:
    """Even when the timer that watches deadlines comes too late, because the serving thread was busy."""
    with Stage() as stage:
        stage.occupy()
        expired = stage.ask([1.0], within=0.005)
        stage.clock.spend(0.005)
        stage.model.let_pass()
        assert stage.clock.arrived.acquire(timeout=30)
        stage.turn()
        assert isinstance(expired.error, DeadlineExceeded)
        assert not stage.model.ran(1.0)


def test_a_request_whose_deadline_has_passed_is_not_even_queued() -> None:
    with Stage() as stage:
        assert isinstance(stage.ask([1.0], within=0.0).error, DeadlineExceeded)
        assert isinstance(stage.ask([1.0], within=-1.0).error, DeadlineExceeded)
        stage.turn()
        assert stage.model.rows == []
        assert stage.idle()


def test_a_retry_leaves_out_who_is_gone_by_then() -> None:
    """A batch that fails is retried request by request: only for those who still wait, and can."""
    with Stage(model=failing_on(666.0, ValueError())) as stage:
        bad, gone, late, stays = (
            stage.ask([value], within=within)
            for value, within in [(666.0, NO_DEADLINE), (1.0, NO_DEADLINE), (2.0, 0.010), (3.0, NO_DEADLINE)]
        )
        stage.turn(enter=1)
        gone.gone = True
        stage.clock.advance(0.020)
        stage.finish()
        assert [call[:, 0].tolist() for call in stage.model.calls] == [[666.0, 1.0, 2.0, 3.0], [666.0], [3.0]]
        assert isinstance(bad.error, ModelError)
        assert gone.settlements == []
        assert isinstance(late.error, DeadlineExceeded)
        assert stays.sums == [3.0]
        counted = stage.batcher.statistics
        assert (counted.requests, counted.failures, counted.cancelled) == (1, 2, 1)
        assert stage.idle()


# --- 4. One item's failure or departure never touches its neighbours ---


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("error", [ValueError("secret: /etc/x"), SystemExit(3), KeyError("x")], ids=repr)
def test_one_bad_request_fails_alone_and_without_the_models_internals(
    error: BaseException, inline: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Stage(model=failing_on(666.0, error), inline=inline) as stage:
        before, bad, after = stage.ask([1.0, 2.0]), stage.ask([3.0, 666.0]), stage.ask([4.0])
        stage.turn(enter=0 if inline else 1)
        if not inline:
            stage.finish()
        assert before.sums == [1.0, 2.0]
        assert after.sums == [4.0]
        assert isinstance(bad.error, ModelError)
        assert type(error).__name__ in bad.error.message
        assert "secret" not in bad.error.message
        assert stage.model.rows == [5, 2, 2, 1]
        assert "an unexpected error" in caplog.text
        counted = stage.batcher.statistics
        assert (counted.requests, counted.rows, counted.failures, counted.batches) == (2, 3, 1, 2)
        assert stage.idle()
        again = stage.ask([5.0])
        stage.turn(enter=0 if inline else 1)
        if not inline:
            stage.finish()
        assert again.sums == [5.0]


def test_a_models_own_typed_error_reaches_its_request_as_it_is() -> None:
    with Stage(model=failing_on(666.0, ModelError("the image has no pixels")), inline=True) as stage:
        bad, good = stage.ask([666.0]), stage.ask([1.0])
        stage.turn()
        assert bad.error.message == "the image has no pixels"
        assert good.sums == [1.0]


def test_a_respond_callback_that_raises_does_not_touch_its_neighbours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug of the caller")

    with Stage(inline=True) as stage:
        bad, good = stage.ask([1.0], then=fail), stage.ask([2.0])
        stage.turn()
        assert (bad.sums, good.sums) == ([1.0], [2.0])
        assert "a bug of the caller" in caplog.text
        assert stage.idle()


def test_a_neighbour_that_leaves_while_the_batch_runs_is_not_noticed() -> None:
    with Stage() as stage:
        first, gone, last = stage.ask([1.0]), stage.ask([2.0, 2.5]), stage.ask([3.0])
        stage.turn(enter=1)
        gone.gone = True
        stage.finish()
        assert (first.sums, last.sums) == ([1.0], [3.0])
        assert gone.settlements == []
        assert stage.batcher.statistics.cancelled == 1
        assert stage.idle()


def test_retries_see_allowed_sizes_only() -> None:
    """A model that takes certain sizes takes no others when its batch is retried request by request."""
    policy = BatchingPolicy(max_batch_rows=8, allowed_batch_rows=(4, 8))
    with Stage(policy, model=failing_on(666.0, ValueError()), inline=True) as stage:
        bad, good = stage.ask([666.0] * 3), stage.ask([1.0] * 5)
        stage.turn()
        assert isinstance(bad.error, ModelError)
        assert good.sums == [1.0] * 5
        assert stage.model.rows == [8, 4, 8]


def naming_bad_rows(inputs: Tensors) -> Tensors:
    """A model that refuses rows below zero, and names them all."""
    bad = np.flatnonzero(inputs["x"][:, 0] < 0)
    if len(bad):
        raise InvalidRows.of({int(row): ("x", f": got {inputs['x'][row, 0]}") for row in bad})
    return sums(inputs)


def test_where_the_model_names_the_wrong_rows_the_others_are_computed_once_more_together() -> None:
    with Stage(model=Model(answer=naming_bad_rows), inline=True) as stage:
        values = [[1.0, 2.0], [3.0, -4.0, -5.0], [6.0], [-7.0], [8.0]]
        asked = [stage.ask(rows) for rows in values]
        stage.turn()
        assert [one.answered_right for one in (asked[0], asked[2], asked[4])] == [True] * 3
        for one, message in ((asked[1], "x: row 1: got -4.0"), (asked[3], "x: row 0: got -7.0")):
            assert isinstance(one.error, InvalidRequest)
            assert one.error.message == message
        assert stage.model.rows == [8, 4]
        counted = stage.batcher.statistics
        assert (counted.batches, counted.requests, counted.failures) == (1, 3, 2)
        assert counted.batch_rows.keys() == {4}
        assert stage.idle()


def test_so_are_rows_of_different_lengths_padded_to_allowed_sizes() -> None:
    policy = BatchingPolicy(max_batch_rows=8, allowed_batch_rows=(2, 8), pad_variable_length=True)
    with Stage(policy, model=Model(answer=naming_bad_rows), inline=True) as stage:
        asked = [stage.ask(rows) for rows in ([[1.0, 2.0, 3.0]], [[-1.0, 0.0]], [[4.0, 5.0]])]
        stage.turn()
        assert (asked[0].sums, asked[2].sums) == ([6.0], [9.0])
        assert asked[1].error.message == "x: row 0: got -1.0"
        assert stage.model.rows == [8, 2]


def test_a_padded_row_blames_only_the_request_that_it_repeats() -> None:
    policy = BatchingPolicy(max_batch_rows=8, allowed_batch_rows=(2, 8))
    with Stage(policy, model=Model(answer=naming_bad_rows), inline=True) as stage:
        asked = [stage.ask([1.0, 2.0]), stage.ask([-3.0])]
        stage.turn()
        assert asked[0].answered_right
        assert asked[1].error.message == "x: row 0: got -3.0"


def test_when_those_without_named_rows_fail_again_each_is_computed_alone() -> None:
    def answer(inputs: Tensors) -> Tensors:
        if (inputs["x"] == 666).any():
            raise ModelError("poison")
        return naming_bad_rows(inputs)

    def named_first(inputs: Tensors) -> Tensors:
        return naming_bad_rows(inputs) if (inputs["x"] < 0).any() else answer(inputs)

    with Stage(model=Model(answer=named_first), inline=True) as stage:
        asked = [stage.ask([value]) for value in (1.0, -2.0, 666.0, 3.0)]
        stage.turn()
        assert [asked[0].sums, asked[3].sums] == [[1.0], [3.0]]
        assert isinstance(asked[1].error, InvalidRequest)
        assert asked[2].error.message == "poison"
        assert stage.model.rows == [4, 3, 1, 1, 1]
        assert stage.batcher.statistics.batches == 2
        assert stage.idle()


# --- 5. Rows out equal rows in, or the batch fails loudly ---


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"y": np.ones(2, np.float32)}, "a batch of 3 rows"),
        ({"y": np.ones(4, np.float32)}, "a batch of 3 rows"),
        ({"y": np.float32(1.0).reshape(())}, "a batch of 3 rows"),
        ({"z": np.ones(3, np.float32)}, "did not give its output 'y'"),
        ({}, "did not give its output 'y'"),
        ({"y": np.ones(3, np.float64)}, "which it declares as y FP32"),
        ({"y": np.ones(3, np.dtype(">f4"))}, "which it declares as y FP32"),
        ({"y": np.ones((3, 1), np.float32)}, "which it declares as y FP32"),
        ({"y": [1.0, 1.0, 1.0]}, "AttributeError"),
        (None, "AttributeError"),
    ],
    ids=[
        "too few",
        "too many",
        "no axis",
        "another name",
        "nothing",
        "dtype",
        "byte order",
        "shape",
        "a list",
        "None",
    ],
)
@pytest.mark.parametrize("requests", [[3], [1, 1, 1]])
def test_outputs_that_break_the_signature_fail_loudly(
    outputs: Tensors, said: str, requests: list[int]
) -> None:
    with Stage(model=Model(answer=lambda inputs: outputs), inline=True) as stage:
        asked = [stage.ask([1.0] * rows) for rows in requests]
        stage.turn()
        for one in asked:
            assert isinstance(one.error, ModelError)
        if requests == [3]:
            assert said in asked[0].error.message
        assert stage.batcher.statistics.failures == len(requests)
        assert stage.batcher.statistics.batches == 0
        assert stage.idle()


def test_what_the_signature_does_not_declare_goes_no_further() -> None:
    model = Model(answer=lambda inputs: {**sums(inputs), "debug": np.zeros(()), "attention": [[1]]})
    with Stage(BatchingPolicy(max_batch_rows=2), model=model, inline=True) as stage:
        asked = stage.ask([1.0, 2.0, 3.0])
        stage.turn()
        assert asked.sums == [1.0, 2.0, 3.0]
        assert list(asked.settlement.tensors()) == ["y"]
