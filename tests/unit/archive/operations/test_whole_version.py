"""A space version is read whole: every key once, as it is stored, and no more than may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.archive.operations.whole_version import read_whole
from headrace.base.errors import NotFound, TooLarge
from tests.unit.archive.filling_parts import DIMENSION, open_parts

KEYS = [f"key {number}" for number in range(4500)] + ["é" * 5000, "\0", "../"]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_space_version_is_read_as_it_is_stored(tmp_path: Path, kind: str, dtype: str) -> None:
    given = np.random.default_rng(0).standard_normal((len(KEYS), DIMENSION)).astype(np.float32)
    told: list[int] = []
    with open_parts(
        tmp_path, kind, {"dimension": DIMENSION, "dtype": dtype, "max_key_bytes": 10_000}
    ) as archive:
        archive.put("texts", KEYS, given)
        archive.put("texts", KEYS[:1], given[:1])
        archive.invalidate("texts", KEYS[7:9])
        whole = read_whole(archive, "texts", told=told.append)
        answered = archive.lookup("texts", whole.keys[:1000]).vectors
    assert (whole.space, whole.version) == ("texts", 1)
    assert sorted(whole.keys) == sorted(KEYS[:7] + KEYS[9:])
    assert whole.vectors.dtype == np.dtype(dtype)
    numbers = whole.vectors.astype(np.float32)
    if whole.scales is not None:
        numbers *= whole.scales[:, None]
    np.testing.assert_array_equal(numbers[:1000], answered.astype(np.float32))
    places = [KEYS.index(key) for key in whole.keys]
    np.testing.assert_allclose(numbers, given[places], atol=0.02)
    assert told[-1] == len(KEYS) - 2
    assert told == sorted(told)


def test_a_space_without_vectors_is_empty(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory", {"dimension": DIMENSION, "dtype": "int8"}) as archive:
        whole = read_whole(archive, "texts")
    assert whole.keys == []
    assert whole.vectors.shape == (0, DIMENSION)
    assert whole.scales is not None
    assert whole.scales.shape == (0,)


def test_what_is_too_large_or_not_there_is_refused(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory", {"dimension": DIMENSION}) as archive:
        archive.put("texts", KEYS[:100], np.ones((100, DIMENSION)))
        with pytest.raises(TooLarge, match="space: expected at most 3199 bytes of vectors"):
            read_whole(archive, "texts", most_bytes=3199)
        assert len(read_whole(archive, "texts", most_bytes=3200).keys) == 100
        with pytest.raises(NotFound):
            read_whole(archive, "texts", 7)
        with pytest.raises(NotFound):
            read_whole(archive, "images")
