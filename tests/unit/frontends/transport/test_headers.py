"""Deadlines from headers: they pass here a little before they pass at the caller."""

from __future__ import annotations

import time

import pytest

from headrace.frontends.transport.headers import deadline_in


@pytest.mark.parametrize(("seconds", "earlier"), [(0.01, 0.001), (0.05, 0.005), (10.0, 0.005)])
def test_a_deadline_passes_before_the_callers_own(seconds: float, earlier: float) -> None:
    """A caller whose deadline passes resets its call, and many resets end the connection."""
    before = time.monotonic()
    deadline = deadline_in(seconds)
    assert before + seconds * 0.9 - 1e-6 <= deadline <= time.monotonic() + seconds - earlier + 1e-6
