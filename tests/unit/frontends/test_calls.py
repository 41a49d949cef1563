"""The answers of calls: in pieces, which need not be joined."""

from __future__ import annotations

import numpy as np

from headrace.frontends.calls import SLICE_BYTES, Pieces, joined, slices


def test_pieces_are_the_bytes_of_their_parts_in_slices_of_one_size() -> None:
    numbers = np.arange(SLICE_BYTES, dtype=np.float16).reshape(2, -1)
    flags = np.array([True, False])
    answer = Pieces([b"head", numbers, b"between", flags, b"end"])
    whole = b"head" + numbers.tobytes() + b"between\x01\x00end"
    assert len(answer) == len(whole)
    assert joined(answer) == whole
    assert b"".join(slices(answer)) == whole
    sizes = [len(one) for one in slices(answer)]
    assert set(sizes[:-1]) == {SLICE_BYTES}
    assert 0 < sizes[-1] <= SLICE_BYTES


def test_bytes_are_an_answer_too() -> None:
    whole = bytes(2 * SLICE_BYTES)
    assert joined(whole) is whole
    assert [len(one) for one in slices(whole)] == [SLICE_BYTES, SLICE_BYTES]
    assert list(slices(b"")) == []
