"""What a soak does is a pure function of its seed."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.soak.plan import (
    ABUSE,
    CHANGES,
    DEADLY,
    HARSH,
    MODELS,
    SERVERS,
    Draw,
    drawn,
    planned,
)

TEN_MINUTES = 600.0
DEADLY_AIMS = set(DEADLY.aims)


def test_the_same_seed_gives_the_same_plan_and_another_gives_another() -> None:
    assert planned(1, TEN_MINUTES) == planned(1, TEN_MINUTES)
    assert planned(1, TEN_MINUTES) != planned(2, TEN_MINUTES)


@pytest.mark.parametrize("seed", range(20))
def test_in_ten_minutes_each_thing_is_done_to_each_and_in_its_time(seed: int) -> None:
    steps = planned(seed, TEN_MINUTES, clock=True)
    done = Counter((step.kind, step.target) for step in steps)
    for strand in (DEADLY, HARSH, ABUSE, CHANGES):
        assert set(strand.aims) <= done.keys()
    assert done["clock jump", "plain"] > 3
    assert [step.at_seconds for step in steps] == sorted(step.at_seconds for step in steps)
    for step in steps:
        last = DEADLY.last if (step.kind, step.target) in DEADLY_AIMS else 0.93
        assert 0 < step.at_seconds + step.seconds < last * TEN_MINUTES + 3
        assert 0 < step.seconds <= 3


@pytest.mark.parametrize("seed", range(20))
def test_a_short_one_has_fewer_steps_and_shorter_ones(seed: int) -> None:
    steps = planned(seed, 30.0)
    assert 10 < len(steps) < 30
    assert all(step.at_seconds < 30 and step.seconds <= 0.75 for step in steps)
    assert any((step.kind, step.target) in DEADLY_AIMS for step in steps)


def test_without_a_clock_to_move_none_is_moved() -> None:
    assert all(step.kind != "clock jump" for step in planned(1, TEN_MINUTES))


def test_what_a_client_asks_depends_on_the_seed_its_name_and_the_number() -> None:
    assert drawn(1, "a", 0) == drawn(1, "a", 0)
    others = [drawn(2, "a", 0), drawn(1, "b", 0), drawn(1, "a", 1)]
    assert all(isinstance(one, Draw) for one in others)
    assert drawn(1, "a", 0) not in others


def test_all_models_sizes_and_flaws_are_drawn() -> None:
    draws = [drawn(1, "a", number) for number in range(3000)]
    assert {draw.model for draw in draws} == set(MODELS)
    assert {draw.rows for draw in draws} == {1, 2, 7, 32, 100, 333, 1000}
    assert {draw.flaw for draw in draws} == {"", "no such model", "wrong shape", "no such input", "poison"}
    assert 0.02 < sum(bool(draw.flaw) for draw in draws) / len(draws) < 0.04
    assert {draw.numbered for draw in draws} == {True, False}
    assert all(0 <= draw.pause_seconds <= 0.6 for draw in draws)
    assert {target for _, target in (*DEADLY.aims, *HARSH.aims, *ABUSE.aims)} == set(SERVERS)
