"""Sum the counts of versions over all workers: one worker asks, and the supervisor asks the others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection

from headrace.batching.version_counts import VersionCounts, added_up
from headrace.workers.messages import Count, Counted

_PATIENCE_SECONDS = 2.0

Ask = Callable[[Count, int], Collection[int]]
"""Requests counts from all workers that answer beats except one, and returns the numbers of these workers."""


class _Question:
    """A request in progress: the workers awaited, and the counts received."""

    def __init__(self) -> None:
        self.awaited: set[int] = set()
        self.told: list[VersionCounts] = []
        self.complete = asyncio.Event()


class Counting:
    """Requests counts afresh for each question, so that they are no older than the question."""

    def __init__(self, ask: Ask) -> None:
        """Begin without requests.

        Args:
            ask: Requests the workers' counts.
        """
        self._ask = ask
        self._numbers = itertools.count()
        self._questions: dict[int, _Question] = {}

    async def others(self, asker: int, asked: Count) -> Counted:
        """Return the counts of all workers except the asking one and those that do not answer in time.

        Args:
            asker: Number of the asking worker.
            asked: Its request.
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
        """Add a worker's counts to the request that they belong to."""
        question = self._questions.get(counted.number)
        if question is not None and worker in question.awaited:
            question.told += counted.counts
            self._leave(question, worker)

    def pass_over(self, worker: int) -> None:
        """Stop waiting for a worker that does not answer or has ended."""
        for question in self._questions.values():
            self._leave(question, worker)

    def _leave(self, question: _Question, worker: int) -> None:
        question.awaited.discard(worker)
        if not question.awaited:
            question.complete.set()
