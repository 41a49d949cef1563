"""The order across partitions: when it waits, and that what chance has decided is recorded and repeated."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.stream.kafka.message_order import Merge, Message, OrderLog, Picked


def test_a_torn_last_line_does_not_count_and_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "order-clicks-0.log"
    path.write_text("picked 1233 11\npicked 1234 1")
    log = OrderLog(tmp_path, "clicks", 0)
    assert log.known.picked == {1233: 11}
    log.picked(1234, 12)
    log.close()
    assert path.read_text() == "picked 1233 11\npicked 1234 12\n"


def test_a_line_that_fits_only_in_part_is_reported_and_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "order-clicks-0.log"
    log = OrderLog(tmp_path, "clicks", 0)
    log.picked(1233, 11)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 13, before[1]))
    try:
        log.picked(1234, 12)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert OrderLog(tmp_path, "clicks", 0).known.picked == {1233: 11}
    assert "cannot be written" in caplog.text
    log.picked(1235, 13)
    log.close()
    assert path.read_text() == "picked 1233 11\npicked 1235 13\n"


def test_files_of_a_topic_with_a_longer_name_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "order-a-1-5.log"
    other.write_text("picked 5 1\n")
    log = OrderLog(tmp_path, "a", 0)
    assert log.known.picked == {}
    for number in (10, 20, 30):
        log.saved(number)
    assert other.exists()


Came = list[tuple[int, int]]
"""Partition and timestamp of messages, in the order in which they came."""


def never(_: int) -> bool:
    return False


def always(_: int) -> bool:
    return True


def fed(merge: Merge, came: Came) -> Merge:
    counts: dict[int, int] = {}
    for partition, timestamp in came:
        offset = counts.setdefault(partition, 0)
        counts[partition] += 1
        merge.add(Message(partition, offset, timestamp, b"x"))
    return merge


def all_of(merge: Merge, silent: Callable[[int], bool]) -> list[Picked]:
    found = []
    while (picked := merge.pick(silent)) is not None:
        found.append(picked)
    return found


def merge_of(partitions: int, known: dict[int, int] | None = None, number: int = 0) -> Merge:
    merge = Merge(number, known)
    merge.join(range(partitions), 0)
    return merge


def test_the_oldest_comes_first_then_the_lowest_partition_however_they_came() -> None:
    came = [(1, 5), (0, 5), (2, 3), (2, 9), (0, 6), (1, 7)]
    orders = set()
    for seed in range(20):
        shuffled = [came[at] for at in np.random.default_rng(seed).permutation(len(came))]
        by_partition = sorted(shuffled, key=came.index)
        first = [one for one in by_partition if one[0] == seed % 3]
        rest = [one for one in by_partition if one[0] != seed % 3]
        picked = all_of(fed(merge_of(3), first + rest), never)
        orders.add(tuple((one.message.partition, one.message.timestamp) for one in picked))
    assert orders == {((2, 3), (0, 5), (1, 5), (0, 6))}  # then partition 0 could still have something older


def test_it_waits_for_a_partition_without_messages_unless_that_is_silent() -> None:
    merge = fed(merge_of(2), [(0, 1), (0, 2)])
    assert merge.pick(never) is None
    picked = merge.pick(lambda partition: partition == 1)
    assert picked is not None
    assert (picked.message.timestamp, picked.number, picked.by_chance) == (1, 0, True)
    merge.add(Message(1, 0, 0, b"late"))
    late = merge.pick(never)
    assert late is not None
    assert (late.message.partition, late.by_chance) == (1, False)


def test_a_replay_repeats_the_recorded_order_of_messages(tmp_path: Path) -> None:
    log = OrderLog(tmp_path, "clicks", 0)
    live, told = merge_of(2), []
    live.add(Message(0, 0, 10, b"a"))
    told += all_of(live, always)  # partition 1 is silent
    live.add(Message(0, 1, 11, b"b"))
    told += all_of(live, always)
    live.add(Message(1, 0, 1, b"older than both, but late"))
    live.add(Message(0, 2, 12, b"c"))
    told += all_of(live, always)
    for picked in told:
        if picked.by_chance:
            log.picked(picked.number, picked.message.partition)
    log.close()

    again = OrderLog(tmp_path, "clicks", 0)
    merge = fed(merge_of(2, again.known.picked), [(1, 1), (0, 10), (0, 11), (0, 12)])
    repeated = all_of(merge, always)
    assert [one.message[:3] for one in repeated] == [one.message[:3] for one in told]
    assert OrderLog(tmp_path, "other", 0).known.picked == {}


def test_while_it_repeats_no_other_decision_is_made() -> None:
    merge = merge_of(2, {1: 0})
    merge.add(Message(0, 0, 1, b"x"))
    assert merge.pick(always) is None  # message 0 was picked when both were there: it comes
    merge.add(Message(1, 0, 0, b"x"))
    assert [one.message.partition for one in all_of(merge, never)] == [1, 0]


def test_a_later_partition_takes_part_from_its_number_on() -> None:
    merge = fed(merge_of(1), [(0, 5), (0, 6)])
    merge.join([1], 1)
    merge.add(Message(1, 0, 0, b"x"))
    assert [one.message.partition for one in all_of(merge, never)] == [0, 1]


def test_files_of_the_order_stay_while_a_kept_checkpoint_needs_them(tmp_path: Path) -> None:
    log = OrderLog(tmp_path, "clicks", 0)
    for number in range(30):
        log.picked(number, number % 2)
        if number in (9, 19, 29):
            log.saved(number - 1)  # the reader is ahead of the learner
    log.close()
    again = OrderLog(tmp_path, "clicks", 18)
    assert again.known.picked == {number: number % 2 for number in range(18, 30)}
    assert len(list(tmp_path.iterdir())) < 4
