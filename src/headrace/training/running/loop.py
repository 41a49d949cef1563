"""The loop over the blocks of a stream, until the stream ends or the run is stopped.

Runs and searches share this loop; they differ in the object that takes the blocks. Ctrl-C and SIGTERM
(``Interruptions``) end a run between two blocks, so that its progress is saved. Its publications and
checkpoints are due by rows or by time (``is_due``): pure decisions from the run's progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import NamedTuple, Protocol, TypeVar

from headrace.base.errors import HeadraceError, ModelError
from headrace.base.stop_signals import StopSignals
from headrace.stream.block import Block

_log = logging.getLogger(__name__)

EXIT_CODES = {"end": 0, "rows": 0, "error": 1, "diverged": 1, "interrupt": 130, "terminate": 143}
"""Exit code of the process, by the reason for which the run ended."""


class Every(NamedTuple):
    """Interval of a recurring action.

    Attributes:
        rows: Interval in rows: due when the stream's rows pass a multiple of it; 0 for never.
        seconds: Interval in seconds since the last time; 0 for never.
    """

    rows: int = 0
    seconds: float = 0.0


NEVER = Every()


class Mark(NamedTuple):
    """A point in a run.

    Attributes:
        rows: Rows taken from the stream.
        seconds: Time since the run started, including earlier parts of a resumed run.
    """

    rows: int = 0
    seconds: float = 0.0


def is_due(every: Every, last: Mark, now: Mark) -> bool:
    """Return whether a recurring action is due now.

    Multiples of rows count from the stream's first row, so that a resumed run acts at the same rows as an
    uninterrupted one. Without new rows nothing is due.

    Args:
        every: Interval of the action.
        last: Point at which the action was last taken.
        now: Current point of the run.
    """
    passed = every.rows > 0 and now.rows // every.rows > last.rows // every.rows
    return passed or seconds_until(every, last, now) == 0.0


def seconds_until(every: Every, last: Mark, now: Mark) -> float | None:
    """Return the seconds until a recurring action is due if no more rows arrive; None for never.

    Args:
        every: Interval of the action.
        last: Point at which the action was last taken.
        now: Current point of the run.
    """
    if not every.seconds or now.rows <= last.rows:
        return None
    return max(0.0, every.seconds - (now.seconds - last.seconds))


class Blocks(Protocol):
    """The rows of a stream, in blocks, as ``headrace.stream.block_reader`` reads them."""

    @property
    def idle_seconds(self) -> float:
        """Time that the learner has waited for rows, in seconds."""

    @property
    def stream_bytes(self) -> int:
        """Number of bytes read."""

    def wait(self, seconds: float) -> bool:
        """Wait for the next block, or the end of the stream; return False after the timeout."""

    def __iter__(self) -> Iterator[Block]:
        """Yield each block, numbered from the stream's first row."""


class BlockConsumer(Protocol):
    """An object that learns from blocks, and takes the actions due after each."""

    @property
    def rows(self) -> int:
        """Number of rows of the stream taken."""

    def take(self, block: Block) -> None:
        """Learn from a block; any exception ends the loop."""

    def act(self) -> float | None:
        """Take the actions that are due.

        Returns:
            Seconds after which to call this again if no block arrives; None for never.
        """

    def explain(self, error: Exception) -> str:
        """Return the error text of the exception that ended the loop."""


class LoopResult(NamedTuple):
    """The end of the loop.

    Attributes:
        stopped: Reason, a key of ``EXIT_CODES``.
        error: Error text; None if nothing went wrong.
    """

    stopped: str
    error: str | None = None


def run_loop(
    blocks: Blocks, taker: BlockConsumer, most_rows: int | None, interruptions: Interruptions
) -> LoopResult:
    """Take blocks until the stream ends, ``most_rows`` is reached, an error occurs, or a signal arrives.

    Args:
        blocks: Rows of the stream.
        taker: Object that learns from them.
        most_rows: Number of rows of the stream after which to stop; None for all.
        interruptions: Signal handlers.
    """
    try:
        return LoopResult(_run_loop(blocks, taker, most_rows, interruptions))
    except Interrupted:
        return LoopResult("terminate" if interruptions.terminated else "interrupt")
    except ModelError as raised:
        return LoopResult("diverged", taker.explain(raised))
    except Exception as raised:  # noqa: BLE001  # Any error ends the run; its progress is kept.
        return LoopResult("error", taker.explain(raised))


def _run_loop(
    blocks: Blocks, taker: BlockConsumer, most_rows: int | None, interruptions: Interruptions
) -> str:
    remaining, due = iter(blocks), None
    while most_rows is None or taker.rows < most_rows:
        if due is not None and not interruptions.wait_for(partial(blocks.wait, due)):
            due = taker.act()
            continue
        block = interruptions.wait_for(lambda: next(remaining, None))
        if block is None:
            return "end"
        if most_rows is not None and block.first_row + len(block) > most_rows:
            block = block.part(0, most_rows - block.first_row)
        taker.take(block)
        due = taker.act()
    return "rows"


def error_text(error: Exception) -> str:
    """Return the text of an error in one line; log an unexpected error with its traceback."""
    if isinstance(error, HeadraceError):
        return error.message
    _log.error("an unexpected error in training", exc_info=error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


Result = TypeVar("Result")


class Interrupted(KeyboardInterrupt):
    """The run was asked to end."""


class Interruptions(StopSignals):
    """Signal handlers; the first signal also abandons a step that blocks."""

    def __init__(self) -> None:
        """Create the handlers without installing them."""
        super().__init__()
        self._waiting = False

    def wait_for(self, step: Callable[[], Result]) -> Result:
        """Run a step that may block, and that can be abandoned at any point.

        Raises:
            Interrupted: A signal was received before or during the step.
        """
        try:
            self._waiting = True
            if self.number is not None:
                raise Interrupted
            return step()
        finally:
            self._waiting = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        super()._note(number, frame)
        if self._waiting:
            raise Interrupted
