"""Whether a start is over is found out by looking at each model a few times, not at all of them each time."""

from __future__ import annotations

from collections import Counter

from headrace.lifecycle.model_records import Unsettled


def test_start_up_is_complete_when_all_models_have_settled() -> None:
    settled: dict[str, bool] = {}
    unsettled = Unsettled(lambda: settled, lambda name: settled.get(name, True))
    assert unsettled.is_none()
    settled |= {"a": False, "b": False}
    assert not unsettled.is_none()
    settled["b"] = True
    assert not unsettled.is_none()
    settled |= {"a": True, "b": False}  # the one that was left is done, but the other has lost it again
    assert not unsettled.is_none()
    del settled["b"]
    assert unsettled.is_none()


def test_checks_grow_linearly_with_the_models_in_any_load_order() -> None:
    models = 500
    for step in (1, -1, 7):
        asked: Counter[str] = Counter()
        settled = dict.fromkeys(map(str, range(models)), False)

        def is_settled(name: str, asked: Counter[str] = asked, settled: dict[str, bool] = settled) -> bool:
            asked[name] += 1
            return settled[name]

        unsettled = Unsettled(lambda settled=settled: settled, is_settled)  # type: ignore[misc]
        for number in range(models):
            assert not unsettled.is_none()
            settled[str(number * step % models)] = True
        assert unsettled.is_none()
        assert asked.total() <= 5 * models, step
