"""The loop: blocks of a stream are taken one by one, until there are no more or something ends that.

There is no other: a run and a search differ in what takes the blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from headrace.errors import HeadraceError, ModelError
from headrace.stream.block import Block
from headrace.training.running.interruptions import Interrupted, Interruptions

_log = logging.getLogger(__name__)

EXIT_CODES = {"end": 0, "rows": 0, "error": 1, "diverged": 1, "interrupt": 130, "terminate": 143}
"""What the process answers, by why the run ended."""


class Blocks(Protocol):
    """The rows of a stream, in blocks; what ``headrace.stream.reader`` gives."""

    @property
    def idle_seconds(self) -> float:
        """How long the learner has waited for rows."""

    @property
    def stream_bytes(self) -> int:
        """How many bytes were read."""

    def __iter__(self) -> Iterator[Block]:
        """Each block, numbered from the stream's first row."""


class Taker(Protocol):
    """What learns from blocks, and does what else is due after each."""

    @property
    def rows(self) -> int:
        """How many rows of the stream it has taken."""

    def take(self, block: Block) -> None:
        """Learn from a block; whatever it raises ends the loop."""

    def explain(self, error: Exception) -> str:
        """What ended the loop, for people."""


class Ended(NamedTuple):
    """How the loop ended.

    Attributes:
        stopped: Why; a key of ``EXIT_CODES``.
        error: What went wrong; None if nothing did.
    """

    stopped: str
    error: str | None = None


def take_all(blocks: Blocks, taker: Taker, most_rows: int | None, interruptions: Interruptions) -> Ended:
    """Take blocks until the stream ends, enough rows were taken, or something ends it.

    Args:
        blocks: The stream's rows.
        taker: What learns from them.
        most_rows: After how many rows of the stream to stop; None for all.
        interruptions: What hears signals.
    """
    try:
        return Ended(_take_all(iter(blocks), taker, most_rows, interruptions))
    except Interrupted:
        return Ended("terminate" if interruptions.terminated else "interrupt")
    except ModelError as raised:
        return Ended("diverged", taker.explain(raised))
    except Exception as raised:  # noqa: BLE001  # The run's end, whatever is wrong: what was learnt is kept.
        return Ended("error", taker.explain(raised))


def _take_all(
    blocks: Iterator[Block], taker: Taker, most_rows: int | None, interruptions: Interruptions
) -> str:
    while most_rows is None or taker.rows < most_rows:
        block = interruptions.wait_for(lambda: next(blocks, None))
        if block is None:
            return "end"
        if most_rows is not None and block.first_row + len(block) > most_rows:
            block = block.part(0, most_rows - block.first_row)
        taker.take(block)
    return "rows"


def for_people(error: Exception) -> str:
    """An error in a line; one that nobody expected is logged with its traceback."""
    if isinstance(error, HeadraceError):
        return error.message
    _log.error("an unexpected error in training", exc_info=error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
