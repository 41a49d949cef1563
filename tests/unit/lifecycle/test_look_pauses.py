"""How often the model directories are looked at."""

from __future__ import annotations

import pytest

from headrace.lifecycle.source import pause_after


@pytest.mark.parametrize(
    ("cpu_seconds", "poll_seconds", "pause"),
    [
        (0.0, 1.0, 1.0),
        (0.01, 1.0, 1.0),  # 100 models
        (0.1, 1.0, 1.9),  # 1,000 models: a look every 2 s
        (0.1, 60.0, 60.0),
        (1.0, 0.1, 19.0),
    ],
)
def test_looks_take_a_twentieth_of_a_processor_at_the_most(
    cpu_seconds: float, poll_seconds: float, pause: float
) -> None:
    assert pause_after(cpu_seconds, poll_seconds) == pytest.approx(pause)
