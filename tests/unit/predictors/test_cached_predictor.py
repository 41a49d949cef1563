"""The prediction cache: what is equal is computed once, answered to all, and kept within bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.base.errors import ConfigError, DeadlineExceeded, ModelError, Overloaded, Unavailable
from headrace.batching.request import NO_DEADLINE, Answer, BatchOutputs, Origin, Request, Settlement, Timings
from headrace.batching.statistics import VersionStatistics
from headrace.config import BatchingPolicy, CachePolicy
from headrace.model.servable import Signature, TensorSpec
from headrace.predictors.cached_predictor import Cached
from headrace.predictors.default_answers import DefaultValues, default_rows
from tests.unit.batching.stage import SUMS, Asked, Stage
from tests.unit.predictors.doubles import FLOAT, ONE, Around, answer_of, asked_by, of_priority, turns
from tests.virtual_clock import VirtualClock

FROM = Origin("m", 3)
MEBIBYTE = 1 << 20


class Asking:
    """A cache around a Predictor that the test answers."""

    def __init__(self, refusal: Exception | None = None, *, most_rows: int = 10_000, **policy: float) -> None:
        self.clock = VirtualClock(1000.0)
        self.around = Around(refusal)
        self.statistics = VersionStatistics()
        self.cache = Cached(
            self.around,
            CachePolicy(**{"size_bytes": MEBIBYTE, **policy}),  # type: ignore[arg-type]
            origin=FROM,
            statistics=self.statistics,
            clock=self.clock,
            most_waiting_rows=most_rows,
        )

    def ask(
        self,
        value: float = 1.0,
        rows: int = 2,
        deadline: float = NO_DEADLINE,
        *,
        priority: int | None = None,
    ) -> tuple[Request, list[Settlement]]:
        settlements: list[Settlement] = []
        inputs = ONE.check({"x": np.full((rows, 2), value, FLOAT)})
        request = Request(*inputs, settlements.append, deadline=deadline)
        request.call = None if priority is None else of_priority(priority)
        self.cache.submit(request)
        return request, settlements

    def counts(self) -> tuple[int, int, int]:
        of = self.statistics
        return of.cache_hits, of.cache_joined, of.cache_misses


def values(settlements: list[Settlement]) -> list[float]:
    (answer,) = settlements
    assert isinstance(answer, Answer), answer
    found: list[float] = answer.tensor("y").tolist()
    return found


def test_an_equal_request_is_answered_from_the_cache_with_that_origin() -> None:
    asking = Asking()
    _, first = asking.ask()
    (computed,) = asking.around.requests
    assert computed.settle(answer_of(computed, 2.0))
    _, second = asking.ask()
    assert values(first) == values(second) == [2.0, 2.0]
    assert len(asking.around.requests) == 1
    assert [one.origin for one in (*first, *second) if isinstance(one, Answer)] == [
        FROM,
        Origin("m", 3, is_cached=True),
    ]
    assert asking.counts() == (1, 0, 1)
    assert (asking.statistics.requests, asking.statistics.rows) == (
        1,
        2,
    )  # the first is the Batcher's to count


@pytest.mark.parametrize(("value", "rows"), [(1.5, 2), (1.0, 3), (-1.0, 2)])
def test_different_requests_are_computed(value: float, rows: int) -> None:
    asking = Asking()
    asking.ask()
    asking.ask(value, rows)
    assert len(asking.around.requests) == 2
    assert asking.counts() == (0, 0, 2)


def test_zero_and_negative_zero_are_not_the_same_question() -> None:
    asking = Asking()
    asking.ask(0.0)
    asking.ask(-0.0)
    assert len(asking.around.requests) == 2


def test_a_cached_answer_is_a_read_only_copy() -> None:
    asking = Asking()
    _, first = asking.ask()
    (computed,) = asking.around.requests
    batch = np.arange(1000, dtype=FLOAT)
    computed.settle(Answer(BatchOutputs({"y": batch}, FROM), 10, 12, Timings(0.0, 1000, 500)))
    batch[:] = -1.0
    (answer,) = first
    assert isinstance(answer, Answer)
    with pytest.raises(ValueError, match="read-only"):
        answer.tensor("y")[0] = 7.0
    _, again = asking.ask()
    assert values(again) == [10.0, 11.0]
    assert answer.outputs.tensors["y"].nbytes == 8


def test_a_caller_that_changes_its_arrays_changes_no_answer() -> None:
    asking = Asking()
    own = np.ones((2, 2), FLOAT)
    asking.cache.submit(Request(*ONE.check({"x": own}), lambda _: None))
    own[:] = 5.0
    (computed,) = asking.around.requests
    assert np.frombuffer(computed.columns[0], FLOAT).tolist() == [1.0] * 4
    texts = Signature("s", (TensorSpec("t", np.dtype(object), ()),), ONE.outputs)
    words = np.array([b"a", b"b"], object)
    asking.cache.submit(Request(*texts.check({"t": words}), lambda _: None))
    words[0] = b"z"
    assert np.asarray(asking.around.requests[1].columns[0]).tolist() == [b"a", b"b"]


def test_equal_requests_wait_for_one_answer() -> None:
    asking = Asking()
    asked = [asking.ask() for _ in range(100)]
    (computed,) = asking.around.requests
    computed.settle(answer_of(computed, 2.0))
    assert {tuple(values(settlements)) for _, settlements in asked} == {(2.0, 2.0)}
    assert asking.counts() == (0, 99, 1)
    assert asking.statistics.requests == 99


def test_a_request_keeps_its_priority_class() -> None:
    asking = Asking()
    for value, priority in ((1.0, 3), (2.0, None), (3.0, 1)):
        asking.ask(value, priority=priority)
    assert [priority for priority, _ in turns(asking.around.requests)] == [1, 2, 3]


def test_a_higher_class_does_not_wait_for_an_equal_request_of_a_lower_one() -> None:
    asking = Asking()
    asked = [asking.ask(priority=priority) for priority in (3, 3, None, 2, 1, 3)]
    assert [priority for priority, _ in turns(asking.around.requests)] == [1, 2, 3]
    assert asking.counts() == (0, 3, 3)
    for computed in reversed(asking.around.requests):
        computed.settle(answer_of(computed, 2.0))
    assert {tuple(values(settlements)) for _, settlements in asked} == {(2.0, 2.0)}


def test_a_request_that_is_submitted_again_is_its_own_callers() -> None:
    asking = Asking(most_rows=2)
    with asked_by("early"):
        asking.ask(deadline=1001.0)
    (first,) = asking.around.requests
    with asked_by("late"):
        asking.ask(deadline=1009.0, priority=3)
    asking.clock.advance(1.0)
    with asked_by("passer-by"):
        first.settle(DeadlineExceeded("late"))
    assert turns(asking.around.requests[1:]) == [(3, "late")]


def test_rows_that_are_submitted_again_still_count_as_waiting() -> None:
    asking = Asking(most_rows=4)
    for deadline in (1001.0, 1009.0, 1009.0):
        asking.ask(deadline=deadline)
    asking.clock.advance(1.0)
    asking.around.requests[0].settle(DeadlineExceeded("late"))
    assert asking.counts() == (0, 2, 1)
    asking.ask(deadline=1009.0)
    asking.ask(deadline=1009.0)  # of the two submitted again one waits, and a third fits beside it
    assert asking.counts() == (0, 3, 2)
    for computed in asking.around.requests[1:]:
        computed.settle(answer_of(computed, 2.0))
    asking.ask(3.0, rows=4)
    asking.ask(3.0, rows=4)
    assert asking.counts() == (0, 4, 3)


def test_more_rows_than_may_wait_go_their_own_way() -> None:
    asking = Asking(most_rows=5)
    for _ in range(4):
        asking.ask()
    first, own = asking.around.requests
    assert own.rows == 2
    first.settle(answer_of(first, 2.0))
    asking.ask(9.0)
    asking.ask(9.0)
    assert len(asking.around.requests) == 3  # there is room again


def test_an_error_goes_to_all_waiting_requests_and_is_not_cached() -> None:
    asking = Asking()
    asked = [asking.ask() for _ in range(3)]
    (computed,) = asking.around.requests
    computed.settle(error := ModelError("broken"))
    assert [settlements for _, settlements in asked] == [[error]] * 3
    assert asking.statistics.failures == 2
    asking.ask()
    assert len(asking.around.requests) == 2


def test_a_refusal_is_not_kept_either() -> None:
    asking = Asking(refusal := Overloaded("full", retry_after_seconds=1.0))
    assert [asking.ask()[1] for _ in range(2)] == [[refusal], [refusal]]
    assert len(asking.around.requests) == 2


def test_requests_that_wait_for_a_refused_one_count_as_refused() -> None:
    asking = Asking()
    asked = [asking.ask()[1] for _ in range(4)]
    (computed,) = asking.around.requests
    computed.settle(refusal := Overloaded("full", retry_after_seconds=1.0))
    assert asked == [[refusal]] * 4
    assert (asking.statistics.refused, asking.statistics.failures) == (3, 0)  # the first: the Batcher's
    assert asking.statistics.failure_seconds == 0.0


def test_a_caller_that_leaves_does_not_affect_the_others() -> None:
    asking = Asking()
    (first, none), (_, answered), (third, neither) = asking.ask(), asking.ask(), asking.ask()
    first.abandon()
    third.abandon()
    (computed,) = asking.around.requests
    assert computed.wanted
    assert computed.settle(answer_of(computed, 2.0))
    assert values(answered) == [2.0, 2.0]
    assert none == neither == []
    assert asking.statistics.cancelled == 2


def test_a_shared_request_without_waiting_callers_is_not_computed() -> None:
    asking = Asking()
    asked = [asking.ask(), asking.ask()]
    for request, _ in asked:
        request.abandon()
    (computed,) = asking.around.requests
    assert not computed.wanted
    assert not computed.settle(DeadlineExceeded("nobody waits"))
    assert asking.statistics.cancelled == 1  # the other one is the Batcher's to count
    asking.ask()
    assert len(asking.around.requests) == 2


def test_each_request_has_its_own_deadline_and_the_latest_is_that_of_the_shared_one() -> None:
    asking = Asking()
    _, early = asking.ask(deadline=1001.0)
    (computed,) = asking.around.requests
    assert computed.deadline == 1001.0
    _, late = asking.ask(deadline=1003.0)
    _, middle = asking.ask(deadline=1002.0)
    assert computed.deadline == 1003.0
    asking.clock.advance(1.0)
    assert [type(one) for one in early] == [DeadlineExceeded]
    assert (late, middle) == ([], [])
    asking.clock.advance(1.0)
    assert [type(one) for one in middle] == [DeadlineExceeded]
    assert computed.settle(answer_of(computed, 2.0))
    assert values(late) == [2.0, 2.0]
    assert asking.statistics.failures == 2
    assert asking.clock.timers == 0


def test_a_waiting_request_without_a_deadline_outlives_that_of_the_first() -> None:
    asking = Asking()
    _, first = asking.ask(deadline=1001.0)
    _, second = asking.ask()
    asking.clock.advance(2.0)
    assert [type(one) for one in first] == [DeadlineExceeded]
    (computed,) = asking.around.requests
    assert computed.deadline == math.inf
    computed.settle(answer_of(computed, 2.0))
    assert values(second) == [2.0, 2.0]


def test_requests_with_time_left_are_resubmitted_when_the_shared_one_expires() -> None:
    """Parts of a large request are held to the deadline that it had when it was cut."""
    asking = Asking()
    asking.ask(deadline=1001.0)
    waiting = [asking.ask(deadline=deadline)[1] for deadline in (1002.0, 1003.0)]
    gone, _ = asking.ask()
    gone.abandon()
    asking.clock.advance(1.5)
    asking.around.requests[0].settle(DeadlineExceeded("a part was late"))
    assert waiting == [[], []]
    _, again = asking.around.requests
    assert again.deadline == 1003.0
    again.settle(answer_of(again, 2.0))
    assert [values(one) for one in waiting] == [[2.0, 2.0]] * 2
    assert asking.clock.timers == 0


def test_all_waiting_requests_get_the_error_of_a_version_that_ends() -> None:
    asking = Asking()
    waiting = [asking.ask()[1] for _ in range(2000)]
    (computed,) = asking.around.requests
    computed.settle(ended := Unavailable("unloaded"))
    assert waiting == [[ended]] * 2000


def test_an_answer_that_comes_too_late_is_kept_for_the_next() -> None:
    asking = Asking()
    _, first = asking.ask(deadline=1001.0)
    asking.clock.advance(1.0)
    (computed,) = asking.around.requests
    computed.settle(DeadlineExceeded("late"))
    assert not computed.settle(answer_of(computed, 2.0))
    assert [type(one) for one in first] == [DeadlineExceeded]
    _, second = asking.ask()
    assert values(second) == [2.0, 2.0]


def test_a_request_that_comes_too_late_is_refused_as_ever() -> None:
    asking = Asking()
    asking.ask()
    (computed,) = asking.around.requests
    computed.settle(answer_of(computed, 2.0))
    asking.ask(deadline=1000.0)
    assert len(asking.around.requests) == 2


def test_an_answer_is_repeated_for_as_long_as_is_set() -> None:
    asking = Asking(seconds=5.0)
    asking.ask()
    asking.around.requests[0].settle(answer_of(asking.around.requests[0], 2.0))
    asking.clock.advance(4.9)
    asking.ask()
    assert asking.counts() == (1, 0, 1)
    asking.clock.advance(0.1)
    asking.ask()
    assert asking.counts() == (1, 0, 2)
    assert asking.cache.held_bytes == 0


def test_many_cached_answers_do_not_starve_other_tasks() -> None:
    """What is answered at once never waits, so whoever awaits it would keep the loop."""
    asking = Asking()
    asking.ask()
    asking.around.requests[0].settle(answer_of(asking.around.requests[0], 2.0))
    answered = [asking.ask()[1] for _ in range(20)]
    assert [len(one) for one in answered] == [1] * 8 + [0] * 12
    asking.clock.run_ready()
    assert [values(one) for one in answered] == [[2.0, 2.0]] * 20
    assert asking.statistics.requests == 20


def test_inputs_that_take_too_much_go_by() -> None:
    asking = Asking(size_bytes=65536)
    for _ in range(2):
        asking.ask(rows=513)  # 4,104 bytes, and a sixteenth is 4,096
    assert len(asking.around.requests) == 2
    assert asking.counts() == (0, 0, 2)


def test_an_answer_too_large_for_the_cache_goes_to_all_waiting_requests() -> None:
    asking = Asking(size_bytes=65536)
    (_, first), (_, second) = asking.ask(rows=300), asking.ask(rows=300)
    (computed,) = asking.around.requests
    computed.settle(answer_of(computed, 2.0))
    assert values(first) == values(second) == [2.0] * 300
    assert asking.cache.held_bytes == 0


def test_a_default_is_never_kept() -> None:
    asking = Asking(Overloaded("full", retry_after_seconds=1.0))
    default = DefaultValues(
        asking.cache,
        default_rows({"y": 0.5}, {ONE.name: ONE}),
        origin=Origin("m", 0, is_default=True),
        statistics=asking.statistics,
        clock=asking.clock,
        after_seconds=0.5,
    )

    def ask() -> list[Settlement]:
        settlements: list[Settlement] = []
        default.submit(Request(*ONE.check({"x": np.ones((2, 2))}), settlements.append))
        return settlements

    assert values(ask()) == [0.5, 0.5]
    asking.around.refusal = None
    waiting = [ask(), ask()]
    asking.clock.advance(0.5)
    asking.around.requests[1].settle(DeadlineExceeded("late"))
    assert [values(one) for one in waiting] == [[0.5, 0.5]] * 2
    asking.around.requests[1].settle(answer_of(asking.around.requests[1], 2.0))
    assert values(ask()) == [2.0, 2.0]  # the model's own


def test_a_part_of_a_split_request_is_not_cached_as_its_whole_answer() -> None:
    policy = BatchingPolicy(max_batch_rows=8)
    with Stage(policy) as stage:
        cache = Cached(
            stage.batcher,
            CachePolicy(size_bytes=MEBIBYTE),
            origin=FROM,
            statistics=stage.batcher.statistics,
            clock=stage.clock,
            most_waiting_rows=100,
        )
        both = [Asked(np.full((12, 1), 2.0, FLOAT)) for _ in range(2)]
        for asked in both:
            asked.request = Request(*SUMS.check({"x": asked.values}), asked.respond, waiter=asked)
        first, second = both
        assert first.request is not None
        assert second.request is not None
        cache.submit(first.request)
        stage.turn(enter=1)
        stage.finish(enter=1)  # eight rows are there, four are computed
        first.gone = True
        stage.finish()
        cache.submit(second.request)
        while not second.settlements:
            stage.turn(enter=1)
            stage.finish()
        assert second.answered_right


# --- settings ---


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"size_bytes": 1000}, "cache.size_bytes: expected a whole number, 65536 or more"),
        ({"size_bytes": -1}, "cache.size_bytes"),
        ({"seconds": 1.0}, "cache.size_bytes: expected bytes beside seconds"),
        ({"size_bytes": 65536, "seconds": -1.0}, "cache.seconds"),
    ],
)
def test_settings_that_cannot_be(policy: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CachePolicy(**policy)  # type: ignore[arg-type]
