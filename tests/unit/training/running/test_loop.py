"""The loop, whatever takes its blocks: how many it takes, why it ends, what it says; what is due when."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from headrace.base.errors import ConfigError, FailedPrecondition, ModelError, StreamError
from headrace.stream.block import Block
from headrace.training.running.loop import (
    EXIT_CODES,
    Every,
    Interruptions,
    LoopResult,
    Mark,
    error_text,
    is_due,
    run_loop,
    seconds_until,
)
from tests.unit.training.running.small_models import make_blocks


class Blocks:
    """Blocks of 40 rows, then what is raised, if anything."""

    idle_seconds = 0.0
    stream_bytes = 0

    def __init__(self, rows: int = 200, raised: Exception | None = None) -> None:
        self._rows = rows
        self._raised = raised

    def wait(self, seconds: float) -> bool:
        raise AssertionError("nothing is due at a time")

    def __iter__(self) -> Iterator[Block]:
        yield from make_blocks(self._rows, 40)
        if self._raised is not None:
            raise self._raised


class Counting:
    """Counts rows; fails, or sends a signal to its own process, at the block that begins with a row."""

    def __init__(self, at: int | None = None, does: Exception | signal.Signals | None = None) -> None:
        self.rows = 0
        self._at = at
        self._does = does

    def take(self, block: Block) -> None:
        if block.first_row == self._at:
            if isinstance(self._does, Exception):
                raise self._does
            os.kill(os.getpid(), self._does or 0)
        self.rows = block.first_row + len(block)

    def act(self) -> None:
        pass

    def explain(self, error: Exception) -> str:
        return f"explained: {error_text(error)}"


@pytest.mark.parametrize(
    ("most", "rows", "stopped"),
    [(None, 200, "end"), (100, 100, "rows"), (200, 200, "rows"), (900, 200, "end")],
)
def test_it_takes_as_many_rows_as_there_are_or_as_are_wanted(
    most: int | None, rows: int, stopped: str
) -> None:
    taker = Counting()
    with Interruptions() as interruptions:
        assert run_loop(Blocks(), taker, most, interruptions) == LoopResult(stopped)
    assert taker.rows == rows


@pytest.mark.parametrize(
    ("does", "rows", "ended"),
    [
        (ModelError("no number"), 80, LoopResult("diverged", "explained: no number")),
        (FailedPrecondition("no room"), 80, LoopResult("error", "explained: no room")),
        (ValueError("odd"), 80, LoopResult("error", "explained: ValueError: odd")),
        (signal.SIGINT, 120, LoopResult("interrupt")),
        (signal.SIGTERM, 120, LoopResult("terminate")),
    ],
)
def test_the_loop_returns_why_it_stopped_and_keeps_the_rows_taken(
    does: Exception | signal.Signals, rows: int, ended: LoopResult
) -> None:
    taker = Counting(80, does)
    with Interruptions() as interruptions:
        assert run_loop(Blocks(), taker, None, interruptions) == ended
    assert taker.rows == rows
    assert ended.stopped in EXIT_CODES


def test_it_acts_when_no_block_arrives_in_time() -> None:
    events = list[str]()

    class Silent(Blocks):
        def wait(self, seconds: float) -> bool:
            events.append(f"wait {seconds}")
            return len(events) > 3

    class Acting(Counting):
        def act(self) -> float | None:  # type: ignore[override]
            events.append(f"act after {self.rows}")
            return 5.0 if self.rows < 80 else None

    with Interruptions() as interruptions:
        assert run_loop(Silent(), Acting(), 120, interruptions) == LoopResult("rows")
    assert events == ["act after 40", "wait 5.0", "act after 40", "wait 5.0", "act after 80", "act after 120"]


@pytest.mark.parametrize("raised", [StreamError("it is cut", row=200), ConfigError("odd")])
def test_a_stream_that_fails_ends_it_as_what_learns_does(raised: StreamError | ConfigError) -> None:
    taker = Counting()
    with Interruptions() as interruptions:
        ended = run_loop(Blocks(raised=raised), taker, None, interruptions)
    assert ended == LoopResult("error", f"explained: {raised.message}")
    assert taker.rows == 200


@pytest.mark.parametrize(
    ("every", "last", "now", "due"),
    [
        (Every(), Mark(0, 0.0), Mark(10**9, 1e9), False),
        (Every(rows=100), Mark(0, 0.0), Mark(99, 0.0), False),
        (Every(rows=100), Mark(0, 0.0), Mark(100, 0.0), True),
        (Every(rows=100), Mark(130, 0.0), Mark(199, 0.0), False),
        (Every(rows=100), Mark(130, 0.0), Mark(201, 0.0), True),
        (Every(seconds=5.0), Mark(1, 0.0), Mark(2, 4.9), False),
        (Every(seconds=5.0), Mark(1, 0.0), Mark(2, 5.0), True),
        (Every(seconds=5.0), Mark(2, 0.0), Mark(2, 99.0), False),
        (Every(rows=100, seconds=5.0), Mark(0, 0.0), Mark(1, 6.0), True),
        (Every(rows=100, seconds=5.0), Mark(0, 0.0), Mark(100, 0.1), True),
    ],
)
def test_rows_count_from_the_start_and_seconds_from_the_last_time(
    every: Every, last: Mark, now: Mark, due: bool
) -> None:
    assert is_due(every, last, now) is due


@pytest.mark.parametrize(
    ("every", "last", "now", "seconds"),
    [
        (Every(rows=100), Mark(0, 0.0), Mark(99, 9.0), None),
        (Every(seconds=5.0), Mark(1, 1.0), Mark(2, 2.0), 4.0),
        (Every(seconds=5.0), Mark(1, 1.0), Mark(2, 99.0), 0.0),
        (Every(seconds=5.0), Mark(2, 1.0), Mark(2, 99.0), None),
    ],
)
def test_without_more_rows_only_seconds_pass(
    every: Every, last: Mark, now: Mark, seconds: float | None
) -> None:
    assert seconds_until(every, last, now) == seconds
