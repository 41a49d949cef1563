"""Growth is told from noise, by processes that lived long enough."""

from __future__ import annotations

import os
import random

import pytest

from benchmarks.soak.memory import MIB, Sample, sample, slope, trends


def samples(mib_an_hour: float, descriptors_an_hour: float = 0.0, seconds: int = 300) -> list[Sample]:
    """A process of 100 MiB that grows like this, with noise and some spikes."""
    chance = random.Random(0)
    return [
        Sample(
            at,
            "plain",
            "plain",
            7,
            int(MIB * (100 + mib_an_hour * at / 3600 + chance.gauss(0, 1) + (60 if at % 50 == 0 else 0))),
            int(50 + descriptors_an_hour * at / 3600),
        )
        for at in map(float, range(0, seconds, 2))
    ]


def test_a_slope_is_found_in_spite_of_what_sticks_out() -> None:
    points = [(float(x), 3.0 * x + (1000.0 if x % 7 == 0 else 0.0)) for x in range(100)]
    assert slope(points) == pytest.approx(3.0, rel=0.05)
    assert slope([(1.0, 5.0)]) == 0.0


@pytest.mark.parametrize(
    ("mib_an_hour", "descriptors_an_hour", "flat"),
    [
        (0.0, 0.0, [True, True]),
        (60.0, 0.0, [True, True]),
        (240.0, 0.0, [False, True]),
        (-240.0, 0.0, [True, True]),
        (0.0, 240.0, [True, False]),
    ],
)
def test_what_grows_is_not_flat(mib_an_hour: float, descriptors_an_hour: float, flat: list[bool]) -> None:
    found = trends(samples(mib_an_hour, descriptors_an_hour), 0.0, 10.0, 60.0)
    assert [trend.is_flat for trend in found] == flat
    assert found[0].slope * 3600 == pytest.approx(mib_an_hour, abs=25)


def test_warm_up_and_short_lives_are_not_judged() -> None:
    assert trends(samples(1000.0), 290.0, 10.0, 60.0) == []
    assert trends(samples(1000.0), 0.0, 250.0, 60.0) == []
    assert trends(samples(1000.0, seconds=40), 0.0, 10.0, 60.0) == []


def test_this_process_has_memory_and_descriptors() -> None:
    found = sample(1.0, "plain", os.getpid(), "plain")
    assert found is not None
    assert found.pss_bytes > MIB
    assert found.descriptors > 2
    assert sample(1.0, "plain", 2**22 + 1, "plain") is None
