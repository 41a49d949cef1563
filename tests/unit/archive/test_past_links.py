"""How replaced values hang together."""

from __future__ import annotations

import bisect
import random

from headrace.archive.past_links import NO_NODE, Node, decoded


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


def test_what_is_no_entry_is_none() -> None:
    assert decoded(20, b"") is None
    assert decoded(20, Node(20, 1, (7,)).encode()[:-1]) is None
    assert decoded(20, bytes(8) + b"\xff" * 8) is None
    assert decoded(20, Node(20, 1, (20,)).encode()) is None  # it would be walked for ever
    assert decoded(20, Node(20, 2, (7, 9)).encode()) is None
