"""Which versions a space has: pure decisions, and their record."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.archive.model.catalog import (
    NO_RECORD,
    SpaceRecord,
    SpaceVersion,
    partition,
    with_default,
    with_forgotten,
    with_version,
    without,
)
from headrace.base.errors import FailedPrecondition, NotFound


def version(fingerprint: str) -> SpaceVersion:
    return SpaceVersion(
        number=0, embedder="e", fingerprint=fingerprint, dimension=3, dtype="float32", created=1.0
    )


def record(*fingerprints: str) -> SpaceRecord:
    made = NO_RECORD
    for one in fingerprints:
        made = with_version(made, version(one))
    return made


def test_the_first_version_is_the_default_and_full() -> None:
    made = record("a")
    assert (made.default, made.last, made.versions[0].number, made.versions[0].is_full) == (1, 1, 1, True)


def test_a_further_version_waits_to_be_filled() -> None:
    made = record("a", "b")
    assert made.default == 1
    assert [(one.number, one.is_full) for one in made.versions] == [(1, True), (2, False)]
    assert made.made_by("b") == made.version(2)
    assert made.made_by("c") is None


def test_the_default_moves_to_what_is_full_then() -> None:
    made = with_default(record("a", "b"), 2, 5.0)
    assert made.default == 2
    assert made.versions[1].is_full
    with pytest.raises(NotFound, match="no version 3 of the space; it has versions 1, 2"):
        with_default(made, 3, 6.0)


def test_past_defaults_are_found_by_time() -> None:
    made = with_default(with_default(record("a", "b"), 2, 5.0), 2, 6.0)
    assert made.moves == ((1.0, 1), (5.0, 2))
    times = np.array([0, 999, 1000, 4999, 5000, 9000], np.uint64)
    assert made.defaults_at(times).tolist() == [0, 0, 1, 1, 2, 2]
    assert NO_RECORD.defaults_at(times).tolist() == [0] * 6


def test_version_numbers_are_never_reused() -> None:
    made = without(record("a", "b"), 2)
    assert with_version(made, version("c")).versions[-1].number == 3


def test_the_default_is_not_dropped() -> None:
    with pytest.raises(
        FailedPrecondition,
        match="version 1 is the default; choose another default first: headrace archive default",
    ):
        without(record("a", "b"), 1)


def test_forgetting_increments_the_generation_in_the_catalog() -> None:
    assert with_forgotten(record("a")).generation == 1


def test_every_store_takes_the_name_of_a_partition() -> None:
    assert partition("a" * 32, 12345) == "a" * 32 + "_v12345"
