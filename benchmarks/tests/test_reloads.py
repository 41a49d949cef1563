"""A thousand versions of a model come and go under requests: a server stays as it was."""

from __future__ import annotations

import pytest

from benchmarks.reloads import MOST_GROWTH_BYTES, MOST_P99, RELOADS, measured


@pytest.mark.timing
def test_a_thousand_reloads_leave_memory_descriptors_and_p99_as_they_were() -> None:
    found = measured()
    assert found.count == RELOADS, "it took too long for all of them"
    assert not found.failed, found.failed[:3]
    assert found.growth_bytes <= MOST_GROWTH_BYTES
    assert found.more_descriptors <= 0
    assert found.p99_ratio <= MOST_P99
