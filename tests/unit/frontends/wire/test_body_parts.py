"""Parts joined in small steps."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from headrace.frontends.wire.cooperative_steps import joined, run


@pytest.mark.parametrize("sizes", [[], [0], [1, 0, 2], [3_000_000], [100_000] * 30, [300_000, 5, 600_000]])
def test_parts_are_joined_in_small_steps_and_given_back(sizes: list[int]) -> None:
    parts = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    given: list[bytes | memoryview] = [*parts]
    count = 0

    def counted() -> Generator[None, None, bytes]:
        nonlocal count
        for_count = joined(given)
        while True:
            try:
                yield next(for_count)
            except StopIteration as end:
                whole: bytes = end.value
                return whole
            count += 1

    assert run(counted()) == b"".join(parts)
    assert count >= sum(sizes) // (512 * 1024)
    assert not any(given)
