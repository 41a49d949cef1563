"""The replay: every page is asked about first, and only then learnt from, while versions come and go."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import grpc
import numpy as np

from demo.clients import Answer, GrpcClient, RestClient
from demo.features import Page
from demo.scores import Numbers
from demo.trainer import Trainer
from headrace.versions.layout import MANIFEST_FILE

FROZEN = "frozen"
"""The label of the version that goes on being served, and asked too, as if nobody had trained any further."""
NEWEST, SINGLE = "newest", "one film"
KINDS = (NEWEST, FROZEN, SINGLE)
"""What is asked: the newest version about whole pages, the frozen one too, the newest about one film."""

STEP_ROWS = 250
GRPC_CALLERS = 8
SINGLE_EVERY_PAGES = 3


@dataclass(slots=True)
class Tally:
    """What the callers of one kind saw.

    Attributes:
        latencies_seconds: Of every answered request.
        predictions: How many films were answered about.
        failures: What failed, with how often.
    """

    latencies_seconds: list[float] = field(default_factory=list)
    predictions: int = 0
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Version:
    """A version, as its callers and its manifest know it.

    Attributes:
        rows: From how many rows it has learnt.
        size_bytes: What its files take.
        published: When it was published.
        answered: When it first answered.
    """

    rows: int
    size_bytes: int
    published: datetime
    answered: datetime

    @classmethod
    def of(cls, directory: Path) -> Version:
        """Describe a version that answers for the first time now."""
        manifest = directory / MANIFEST_FILE
        described = json.loads(manifest.read_bytes())
        size = sum(one["bytes"] for one in described["files"].values())
        # Its own time has whole seconds; the file's has all of it.
        published = datetime.fromtimestamp(manifest.stat().st_mtime, UTC)
        return cls(described["metadata"]["training"]["rows"], size, published, datetime.now(UTC))


@dataclass(slots=True)
class Record:
    """Everything that was answered, by row.

    Attributes:
        liked: The truth: 0.0 or 1.0.
        newest: What the version answered that was the newest at that moment; NaN where none was asked.
        version: Which one that was; 0 where none was asked.
        frozen: What the frozen version answered.
        single: What was answered about one film over REST; NaN where that was not asked.
        single_version: Which version that was.
        versions: The versions that answered, by number.
        tallies: What the callers saw, by how they asked.
        seconds: How long all that took.
    """

    liked: Numbers
    newest: Numbers
    version: Numbers
    frozen: Numbers
    single: Numbers
    single_version: Numbers
    versions: dict[int, Version] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    seconds: float = 0.0

    @classmethod
    def of(cls, pages: Sequence[Page]) -> Record:
        """Start with no answers."""
        liked = np.array([liked for page in pages for liked in page.liked], np.float64)
        nothing, zero = np.full(len(liked), np.nan), np.zeros(len(liked))
        return cls(liked, nothing, zero, nothing.copy(), nothing.copy(), zero.copy())

    @property
    def failures(self) -> Counter[str]:
        """What failed, with how often."""
        return sum((tally.failures for tally in self.tallies.values()), Counter())


def steps(pages: Sequence[Page]) -> Iterator[list[Page]]:
    """Cut pages into groups of some rows, which are asked about and learnt from together."""
    group: list[Page] = []
    for page in pages:
        group.append(page)
        if sum(len(one.liked) for one in group) >= STEP_ROWS:
            yield group
            group = []
    if group:
        yield group


class Replay:
    """Asks about pages with several callers at once, and keeps what they answered."""

    def __init__(self, rest: Sequence[RestClient], candidates: GrpcClient, directory: Path) -> None:
        """Prepare the callers.

        Args:
            rest: The callers with one film a request, each with a connection.
            candidates: What the callers with whole pages share.
            directory: The model's directory, to look up what a version is.
        """
        self.rest = rest
        self.candidates = candidates
        self.directory = directory

    async def run(self, record: Record, pages: Sequence[Page], trainer: Trainer, seconds: float) -> None:
        """Ask about each page, then let the trainer learn from it, at an even pace.

        Args:
            record: Where the answers go.
            pages: What to ask about.
            trainer: Who learns from it.
            seconds: How long all of it shall take, if the machine is fast enough.
        """
        self.record = record
        pace = sum(len(page.liked) for page in pages) / seconds
        began = time.perf_counter()
        asked = 0
        for group in steps(pages):
            await self.ask(group)
            await trainer.learn(group)
            asked += sum(len(page.liked) for page in group)
            await asyncio.sleep(began + asked / pace - time.perf_counter())
        record.seconds = time.perf_counter() - began

    async def ask(self, pages: Sequence[Page]) -> None:
        """Let all callers together ask about pages: each takes the next one when it is answered."""
        whole, single = iter(pages), iter(pages[::SINGLE_EVERY_PAGES])
        await asyncio.gather(
            *(self.ask_whole(whole) for _ in range(GRPC_CALLERS)),
            *(self.ask_single(client, single) for client in self.rest),
        )

    async def ask_whole(self, pages: Iterator[Page]) -> None:
        """Ask the newest version and the frozen one about pages."""
        record, ask = self.record, self.candidates.ask
        for page in pages:
            rows = slice(page.first_row, page.first_row + len(page.liked))
            request = self.candidates.request(page)
            if newest := await self.timed(NEWEST, ask(request)):
                record.newest[rows], record.version[rows] = newest.liked, newest.version
                self.meet(newest.version)
            if frozen := await self.timed(FROZEN, ask(request, FROZEN)):
                record.frozen[rows] = frozen.liked

    async def ask_single(self, client: RestClient, pages: Iterator[Page]) -> None:
        """Ask the newest version about the first film of pages."""
        for page in pages:
            if answer := await self.timed(SINGLE, client.ask(page.first())):
                self.record.single[page.first_row] = answer.liked[0]
                self.record.single_version[page.first_row] = answer.version
            else:
                await client.close()

    async def timed(self, kind: str, answering: Awaitable[Answer]) -> Answer | None:
        """Wait for an answer, and count it; a failure is counted too, and fails nothing else."""
        tally = self.record.tallies[kind]
        began = time.perf_counter()
        try:
            answer = await answering
        except (OSError, EOFError, TimeoutError, grpc.aio.AioRpcError) as error:
            tally.failures[f"{type(error).__name__}: {error}"[:200]] += 1
            return None
        tally.latencies_seconds.append(time.perf_counter() - began)
        tally.predictions += len(answer.liked)
        return answer

    def meet(self, number: int) -> None:
        """Look up a version that answers for the first time."""
        if number not in self.record.versions:
            self.record.versions[number] = Version.of(self.directory / str(number))
