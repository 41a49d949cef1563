"""What versions have done in all workers: one asks, the supervisor asks the others and adds up."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection

from headrace.batching.counts import VersionCounts, added_up
from headrace.workers.messages import Count, Counted

_PATIENCE_SECONDS = 2.0

Ask = Callable[[Count, int], Collection[int]]
"""Asks all workers that answer, but one, and says which these are."""


class _Question:
    """What is waited for, and what has been told."""

    def __init__(self) -> None:
        self.awaited: set[int] = set()
        self.told: list[VersionCounts] = []
        self.complete = asyncio.Event()


class Counting:
    """Asks for every question anew: what is told is of a moment after it."""

    def __init__(self, ask: Ask) -> None:
        """Begin without any question.

        Args:
            ask: Asks the workers.
        """
        self._ask = ask
        self._numbers = itertools.count()
        self._questions: dict[int, _Question] = {}

    async def others(self, asker: int, asked: Count) -> Counted:
        """What all workers but the one that asks have counted; without those that do not answer in time.

        Args:
            asker: That worker.
            asked: What it asks.
        """
        number = next(self._numbers)
        question = self._questions[number] = _Question()
        question.awaited = set(self._ask(Count(number, asked.models, asked.version), asker))
        try:
            if question.awaited:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await question.complete.wait()
        except TimeoutError:
            pass
        finally:
            del self._questions[number]
        return Counted(asked.number, tuple(added_up(question.told)))

    def told(self, worker: int, counted: Counted) -> None:
        """A worker tells what it has counted."""
        question = self._questions.get(counted.number)
        if question is not None and worker in question.awaited:
            question.told += counted.counts
            self._leave(question, worker)

    def pass_over(self, worker: int) -> None:
        """A worker is waited for no longer: it does not answer, or has ended."""
        for question in self._questions.values():
            self._leave(question, worker)

    def _leave(self, question: _Question, worker: int) -> None:
        question.awaited.discard(worker)
        if not question.awaited:
            question.complete.set()
