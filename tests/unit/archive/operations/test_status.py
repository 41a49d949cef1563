"""Each warning of an archive's status: what shows it, and what is close to that and does not."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.archive.lookup.reports import FillCounts
from headrace.archive.lookup.space_reader import Counts
from headrace.archive.model.archive_toml import SpaceSettings
from headrace.archive.operations.status import Seen, warnings
from headrace.storage.queues.queue import Depth

EMBEDDED: dict[str, Any] = {"embedder": "minilm"}


def told(settings: dict[str, Any], seen: Seen) -> tuple[str, ...]:
    return tuple(warnings(SpaceSettings(**settings), seen))


def asked(slices: int = 7, fillers: int = 1, **counts: int) -> Seen:
    """So much looked up in a minute, a quarter of it lately."""
    lately = Counts(**{name: count // 4 for name, count in counts.items()})
    return Seen(60.0, Counts(**counts), lately, slices, fillers=fillers)


@pytest.mark.parametrize(
    ("seen", "is_told"),
    [
        (asked(keys=1000, new=300, missing=300), True),
        (asked(keys=1000, new=200, missing=200), False),  # few are new
        (asked(keys=999, new=999, missing=999), False),  # too little to say so
        (asked(slices=2, keys=9000, new=9000, missing=9000), False),  # an archive that has just begun
        (asked(keys=9000, new=9000, missing=9000)._replace(lately=Counts(keys=3000)), False),  # it is over
        (asked(keys=9000, new=9000, missing=9000)._replace(lately=Counts()), False),  # nobody asks any more
    ],
)
def test_keys_must_repeat(seen: Seen, is_told: bool) -> None:
    found = told(EMBEDDED, seen)
    assert any("of the keys are new" in one for one in found) == is_told, found


@pytest.mark.parametrize(
    ("filled", "late_seconds", "ttl_seconds", "is_told"),
    [
        (10, 1010.0, 1000.0, True),
        (10, 990.0, 1000.0, False),
        (9, 9000.0, 1000.0, False),  # too few to say so
        (10, 9000.0, 0.0, False),  # they are worth having for ever
    ],
)
def test_a_late_vector_must_be_worth_having(
    filled: int, late_seconds: float, ttl_seconds: float, is_told: bool
) -> None:
    seen = Seen(fills=FillCounts(filled=filled, late_seconds=late_seconds), fillers=1)
    found = told({**EMBEDDED, "ttl_seconds": ttl_seconds}, seen)
    assert found == (
        ("vectors arrive 101 s late and expire after 1,000 s: late vectors serve few lookups",)
        if is_told
        else ()
    )


@pytest.mark.parametrize(
    ("oldest_seconds", "filled", "is_told"), [(601.0, 5, True), (599.0, 5, False), (601.0, 0, False)]
)
def test_new_keys_must_be_fewer_than_are_filled(oldest_seconds: float, filled: int, is_told: bool) -> None:
    seen = asked(keys=5, new=5, missing=5)
    seen = seen._replace(depth=Depth(40, oldest_seconds), fills=FillCounts(filled=filled))
    found = told(EMBEDDED, seen)
    assert any("new keys arrive faster than they are filled" in one for one in found) == is_told, found


@pytest.mark.parametrize(
    ("oldest_seconds", "fillers", "new", "filled", "expected"),
    [
        (5.0, 0, 3, 0, "40 keys wait, the oldest for 5 s, and no process fills this space: "),
        (4.0, 0, 3, 0, ""),  # it may be about to begin
        (5.0, 1, 3, 0, ""),
        (5.0, 0, 0, 0, ""),  # they are of another space
        (60.0, 1, 3, 0, "40 keys wait, the oldest for 60 s, and nothing was filled in the last 60 s: "),
        (60.0, 1, 3, 1, ""),
        (59.0, 1, 3, 0, ""),
    ],
)
def test_somebody_must_fill(
    oldest_seconds: float, fillers: int, new: int, filled: int, expected: str
) -> None:
    seen = asked(keys=new, new=new, missing=new, fillers=fillers)
    found = told(EMBEDDED, seen._replace(depth=Depth(40, oldest_seconds), fills=FillCounts(filled=filled)))
    assert found == () if not expected else found[0].startswith(expected), found


def test_a_queue_that_does_not_answer_or_is_empty_warns_of_nothing() -> None:
    for depth in (None, Depth(0, 0.0)):
        assert told(EMBEDDED, asked(keys=5, new=5, missing=5, fillers=0)._replace(depth=depth)) == ()


@pytest.mark.parametrize(
    ("settings", "seen", "expected"),
    [
        (EMBEDDED, asked(keys=1000, missing=510)._replace(depth=Depth(1, 1.0)), "1 key waits in the queue"),
        (EMBEDDED, asked(keys=1000, missing=510)._replace(dead_letters=2), "there are 2 dead letters"),
        (EMBEDDED, asked(keys=1000, missing=510), ""),  # they have all been filled meanwhile
        (EMBEDDED, asked(keys=1000, missing=490)._replace(dead_letters=2), ""),
        (EMBEDDED, asked(keys=999, missing=999)._replace(dead_letters=2), ""),
        (
            {"dimension": 3},
            asked(keys=1000, missing=510),
            "51% of the keys have no vector, and no embedder makes any",
        ),
        ({"dimension": 3}, asked(keys=1000, missing=490), ""),
        ({"dimension": 3}, asked(slices=2, keys=1000, missing=510), ""),
        ({"columns": ()}, asked(keys=1000, missing=510), "51% of the keys have no row: is the table"),
        ({"columns": ()}, asked(keys=1000, missing=490), ""),
    ],
)
def test_most_keys_must_have_a_vector(settings: dict[str, Any], seen: Seen, expected: str) -> None:
    found = told(settings, seen)
    assert found == () if not expected else expected in found[0], found


@pytest.mark.parametrize(
    ("lookups", "late", "is_told"), [(1000, 11, True), (1000, 9, False), (99, 99, False)]
)
def test_the_store_must_answer_in_time(lookups: int, late: int, is_told: bool) -> None:
    lately = Counts(lookups=lookups, late=late)
    for now, is_still in ((lately, True), (Counts(lookups=lookups), False)):
        seen = Seen(60.0, Counts(lookups=lookups, late=late), now, 7)
        found = told(EMBEDDED, seen)
        assert any("slow or down" in one for one in found) == (is_told and is_still), found


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (Counts(damaged=1), "1 value of the store was not a vector of this space; who else writes to it?"),
        (Counts(damaged=2), "2 values of the store were not vectors of this space; who else writes to it?"),
        (Counts(over_quota=1), "1 new key was over the caller's quota, and not queued"),
        (Counts(over_quota=1200), "1,200 new keys were over the caller's quota, and not queued"),
        (Counts(), ""),
    ],
)
def test_damage_and_quotas_are_told_from_the_first_one_on(counts: Counts, expected: str) -> None:
    assert told(EMBEDDED, Seen(lookups=counts)) == ((expected,) if expected else ())
