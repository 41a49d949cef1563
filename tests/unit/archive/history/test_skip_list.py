"""How replaced values hang together."""

from __future__ import annotations

import bisect
import random
import struct

import pytest

from headrace.archive.history.skip_list import NO_NODE, Node, decoded


def test_any_time_is_found_in_a_few_hops() -> None:
    rng = random.Random(3)
    times = sorted(rng.sample(range(1, 10**6), 5000))
    newest, nodes = NO_NODE, {}
    for time in times:
        newest = nodes[time] = newest.next(time)
    assert max(len(node.pointers) for node in nodes.values()) <= 13  # 5000 has 13 bits
    for _ in range(500):
        wanted = rng.randrange(10**6)
        place = bisect.bisect_right(times, wanted)
        node, hops = newest, 0
        while further := node.towards(wanted):
            node, hops = nodes[further], hops + 1
        if newest.time > wanted:
            assert node.before == (times[place - 1] if place else 0)
        assert hops <= 13


def test_an_entry_is_read_as_it_was_written() -> None:
    node = Node(5).next(7).next(20)
    assert decoded(20, node.encode() + b"record") == (node, b"record")
    assert decoded(20, node.encode()) == (node, b"")


def late(nodes: dict[int, Node], newest: int, time: int) -> int:
    """Put an entry between others; how many hops it was to its place."""
    way = [nodes[newest]]
    while further := way[-1].towards(time):
        way.append(nodes[further])
    nodes[time] = way[-1].late(time)
    for node in way:
        nodes[node.time] = node.seeing(nodes[time])
    return len(way)


@pytest.mark.parametrize("order", ["descending", "random", "between others"])
def test_entries_that_come_late_are_found_in_a_few_hops(order: str) -> None:
    rng = random.Random(5)
    times, newest, nodes = sorted(rng.sample(range(1, 10**6), 4000)), NO_NODE, dict[int, Node]()
    first = times[1::2] if order == "between others" else times[-1:]
    for time in first:
        newest = nodes[time] = newest.next(time)
    rest = sorted(set(times) - set(first), reverse=True)
    if order != "descending":
        rng.shuffle(rest)
    ways = [late(nodes, newest.time, time) for time in rest]
    assert max(ways) < 100
    assert sum(ways) < 30 * len(ways)
    for place, time in enumerate(times):
        assert nodes[time].before == (times[place - 1] if place else 0)
        assert len(nodes[time].pointers) < 64
    after = nodes[times[-1]].next(10**6)  # and what comes then finds them, too
    hops = 0
    for _ in range(500):
        wanted, node = rng.randrange(times[0], 10**6), after
        while further := node.towards(wanted):
            node, hops = nodes[further], hops + 1
        assert node.before == times[bisect.bisect_right(times, wanted) - 1]
    assert hops < 30 * 500


def test_entries_without_heights_are_read_and_extended() -> None:
    old = struct.pack("<5Q", 6, 3, 50, 40, 1) + b"record"  # the seventh points at numbers 5, 4 and 0
    node, record = decoded(60, old)
    assert (record, node.number, node.pointers) == (b"record", 6, (50, 40, 1))
    assert node.next(70).pointers == (60, 40, 1)
    assert node.next(70).next(80).pointers == (70, 60, 40, 1)
    assert decoded(70, node.next(70).encode()) == (node.next(70), b"")


def test_malformed_entries_are_not_decoded() -> None:
    assert decoded(20, b"") is None
    assert decoded(20, Node(20, 1, (7,), 1).encode()) is not None
    assert decoded(20, Node(20, 1, (7,), 1).encode()[:-1]) is None
    assert decoded(20, Node(20, 1, (7,), 3).encode()) is None
    assert decoded(20, bytes(8) + b"\xff" * 8) is None
    assert decoded(20, Node(20, 1, (20,), 1).encode()) is None  # it would be walked for ever
    assert decoded(20, Node(20, 2, (7, 9), 3).encode()) is None
