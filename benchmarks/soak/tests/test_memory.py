"""Growth is told from noise, by processes that lived long enough."""

from __future__ import annotations

import random
import subprocess
import sys
from subprocess import PIPE

import pytest

from benchmarks.soak.memory import MIB, Sample, sample, slope, trends


def samples(
    mib_an_hour: float, descriptors_an_hour: float = 0.0, threads_an_hour: float = 0.0, seconds: int = 300
) -> list[Sample]:
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
            int(20 + threads_an_hour * at / 3600 + (30 if at % 50 == 0 else 0)),
        )
        for at in map(float, range(0, seconds, 2))
    ]


def test_a_slope_is_found_in_spite_of_what_sticks_out() -> None:
    points = [(float(x), 3.0 * x + (1000.0 if x % 7 == 0 else 0.0)) for x in range(100)]
    assert slope(points) == pytest.approx(3.0, rel=0.05)
    assert slope([(1.0, 5.0)]) == 0.0


@pytest.mark.parametrize(
    ("an_hour", "flat"),
    [
        ((0.0, 0.0, 0.0), [True, True, True]),
        ((60.0, 0.0, 0.0), [True, True, True]),
        ((240.0, 0.0, 0.0), [False, True, True]),
        ((-240.0, 0.0, 0.0), [True, True, True]),
        ((0.0, 240.0, 0.0), [True, False, True]),
        ((0.0, 0.0, 240.0), [True, True, False]),
        ((0.0, 0.0, -240.0), [True, True, True]),
    ],
)
def test_what_grows_is_not_flat(an_hour: tuple[float, float, float], flat: list[bool]) -> None:
    found = trends(samples(*an_hour), 0.0, 10.0, 60.0)
    assert [trend.what for trend in found] == ["plain 7, memory", "plain 7, descriptors", "plain 7, threads"]
    assert [trend.is_flat for trend in found] == flat
    assert found[0].slope * 3600 == pytest.approx(an_hour[0], abs=25)


def test_warm_up_and_short_lives_are_not_judged() -> None:
    assert trends(samples(1000.0), 290.0, 10.0, 60.0) == []
    assert trends(samples(1000.0), 0.0, 250.0, 60.0) == []
    assert trends(samples(1000.0, seconds=40), 0.0, 10.0, 60.0) == []


PROGRAM = """
import sys, threading
ends = threading.Event()
threads = [threading.Thread(target=ends.wait) for _ in range(3)]
for one in threads:
    one.start()
print("ready", flush=True)
sys.stdin.read()
ends.set()
"""


def test_a_sample_has_memory_descriptors_and_threads_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        found = sample(1.0, "plain", process.pid, "plain")
        process.stdin.close()
    assert found is not None
    assert found.pss_bytes > MIB
    assert found.descriptors == 3
    assert found.threads == 4


def test_there_is_no_sample_of_a_process_that_has_ended() -> None:
    assert sample(1.0, "plain", 2**22 + 1, "plain") is None
