"""What processes tell of themselves, put together: rates are of one stretch of time for all of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.archive.lookup.reports import SLICE_SECONDS, Report, Reporter, Slice, reports
from headrace.archive.lookup.space_reader import Counts
from headrace.archive.operations.status import look, of_space
from headrace.base.errors import ConfigError, Unavailable
from headrace.storage.queues.memory import MemoryMessages
from headrace.storage.settings import MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from headrace.storage.stores.store import Page
from tests.unit.archive.filling_parts import open_parts, status_of
from tests.waiting import until

NOW = 1_000_003.0
NEWEST = int(NOW // SLICE_SECONDS)


def report(*slices: tuple[int, Counts], is_over: bool = False, fills: bool = False) -> Report:
    return Report(
        instance="one",
        written=NOW,
        slices=tuple(Slice(number=number, lookups={"texts": counts}, fills={}) for number, counts in slices),
        spaces=("texts",),
        filled_spaces=("texts",) if fills else (),
        is_over=is_over,
    )


def test_a_process_that_lived_for_three_seconds_counts_with_what_it_did() -> None:
    """Its 630 keys are 10 a second of the last 63 s, and not 210."""
    long = report(*((NEWEST - back, Counts(keys=90, cached=90)) for back in range(7)), fills=True)
    short = report((NEWEST - 2, Counts(keys=630, missing=630)), is_over=True)
    status, seen = of_space("texts", [long, short], NOW)
    assert seen.seconds == 63.0
    assert status.keys_per_second == pytest.approx(20.0)
    assert (status.keys, status.hit_rate, status.missing_rate) == (1260, 0.5, 0.5)
    assert (status.processes, status.fillers, seen.slices) == (1, 1, 7)


def test_older_counts_are_left_out() -> None:
    told = report((NEWEST - 7, Counts(keys=1000)), (NEWEST - 6, Counts(keys=1)))
    status, seen = of_space("texts", [told], NOW)
    assert (status.keys, seen.lately.keys) == (1, 0)


def told_by(store: InMemoryStore) -> Report:
    (found,) = reports(store)
    return found


def test_counts_are_reported_within_a_second_and_add_up() -> None:
    """A process tells what is new each second, so a look right after is not of long ago."""
    store, counts = InMemoryStore(MemoryStore()), Counts()
    reporter = Reporter(store, {"texts": counts}, {}, {})
    for keys in (5, 12, 12):
        counts.keys = keys
        reporter._due = 0.0
        reporter.report()
        assert sum(one.lookups["texts"].keys for one in told_by(store).slices) == keys


def test_a_process_that_ends_before_its_first_report_reports_nothing(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as archive:
        store = archive.store
        other = Reporter(store, {"texts": Counts()}, {}, {})
        other.report(is_over=True)
        assert not any(one.is_over for one in reports(store))


def test_a_young_archive_in_which_all_was_missing_at_first_is_no_alarm(tmp_path: Path) -> None:
    with open_parts(tmp_path, "lmdb", {"dimension": 4}) as archive:
        archive.lookup("texts", [f"film {number}" for number in range(2000)])
        archive._reporter._due = 0.0
        archive._reporter.report()
        (space,) = status_of(archive).spaces
        assert (space.keys, space.missing_rate, space.warnings) == (2000, 1.0, ())


# ---- What does not answer ----


def closed() -> MemoryMessages:
    raise Unavailable("nobody listens")


class StoreThatFell(InMemoryStore):
    """A store that answers no more, and counts how often it is asked."""

    asked = 0

    def scan(self, partition: str, cursor: bytes, limit: int) -> Page:
        self.asked += 1
        raise Unavailable("the store is down")


def test_the_status_has_the_stores_numbers_if_the_queue_does_not_answer(tmp_path: Path) -> None:
    with open_parts(tmp_path, "memory") as archive:
        archive.lookup("texts", ["a"])
        archive._reporter._due = 0.0
        archive._reporter.report()
        status = look(archive.config, lambda: archive.store, closed)
    assert (status.queue_messages, status.dead_letters) == (None, 0)
    assert (status.spaces[0].keys, status.spaces[0].version) == (1, 1)
    assert msgspec.to_builtins(status.unanswered) == ({"part": "queue", "reason": "nobody listens"},)


def test_a_store_that_does_not_answer_is_asked_once_and_the_queue_is_told_of(tmp_path: Path) -> None:
    store = StoreThatFell(MemoryStore())
    with open_parts(tmp_path, "memory") as archive:
        archive.want("texts", ["a", "b"])
        status = look(archive.config, lambda: store, lambda: archive.queue)
    assert (status.queue_messages, status.dead_letters, store.asked) == (2, None, 1)
    assert [one.part for one in status.unanswered] == ["store"]
    assert [one.space for one in status.spaces] == ["texts"]


def test_settings_that_are_wrong_are_an_error(tmp_path: Path) -> None:
    def wrong() -> InMemoryStore:
        raise ConfigError("store.path: it is a file")

    with open_parts(tmp_path, "memory") as archive, pytest.raises(ConfigError):
        look(archive.config, wrong, lambda: archive.queue)


# ---- Who holds what waits ----


@pytest.mark.parametrize(("visibility_seconds", "expected"), [(60.0, 0), (1.0, 2)])
def test_messages_with_a_silent_filler_are_told(
    tmp_path: Path, visibility_seconds: float, expected: int
) -> None:
    queue = {"kind": "lmdb", "visibility_seconds": visibility_seconds}
    with open_parts(tmp_path, "lmdb", queue=queue) as archive:
        archive.want("texts", ["a", "b", "c"])
        archive.queue.receiver().receive(2, 0.0)  # it says nothing more
        until(lambda: status_of(archive).queue_silent == expected)
        status = status_of(archive)
    assert (status.queue_messages, status.queue_held) == (3, 2)
    told = [one for one in status.warnings if "with a filler that has been silent for" in one]
    assert len(told) == bool(expected)
    assert all(one.startswith("2 keys are with a filler") for one in told)
