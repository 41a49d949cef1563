"""The load: callers that each ask as soon as they are answered, until told to stop; and what they saw."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import grpc
import numpy as np

from demo.clients import Answer, Client
from demo.scores import Numbers

PAUSE_AFTER_FAILURE_SECONDS = 0.01


@dataclass(slots=True)
class Tally:
    """What the callers of one protocol saw.

    Attributes:
        rows: How many different rows there are to ask about.
        requests: Answered requests by version.
        predictions: Answered rows by version.
        latencies_seconds: Of every answered request.
        failures: What failed, with how often.
        answers: By version, the latest answer for each row, or NaN.
    """

    rows: int
    requests: Counter[int] = field(default_factory=Counter)
    predictions: Counter[int] = field(default_factory=Counter)
    latencies_seconds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    answers: dict[int, Numbers] = field(default_factory=dict)

    def add(self, answer: Answer, seconds: float) -> None:
        """Count one answer."""
        self.requests[answer.version] += 1
        self.predictions[answer.version] += len(answer.liked)
        self.latencies_seconds.append(seconds)
        known = self.answers.setdefault(answer.version, np.full(self.rows, np.nan))
        known[answer.first_row : answer.first_row + len(answer.liked)] = answer.liked

    def share(self, version: int) -> float:
        """Give the share of all rows that a version has answered so far."""
        return float(np.mean(~np.isnan(self.answers[version]))) if version in self.answers else 0.0


async def caller(client: Client, tally: Tally, stop: asyncio.Event) -> None:
    """Ask until told to stop; a failure is counted, and the next request goes its own way."""
    while not stop.is_set():
        began = time.perf_counter()
        try:
            answer = await client.ask()
        except (OSError, EOFError, TimeoutError, grpc.aio.AioRpcError) as error:
            tally.failures[f"{type(error).__name__}: {error}"[:200]] += 1
            await client.close()
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
        else:
            tally.add(answer, time.perf_counter() - began)


async def reached(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait until something is so."""
    deadline = time.perf_counter() + seconds
    while not condition():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}, in vain")
        await asyncio.sleep(0.05)


class Load:
    """All callers together, from entering to leaving a ``async with``."""

    def __init__(self, clients: Iterable[tuple[Client, Tally]]) -> None:
        """Prepare the load.

        Args:
            clients: Each caller with the tally that it counts in.
        """
        self.clients = list(clients)
        self.stop = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.began = 0.0
        self.seconds = 0.0

    async def __aenter__(self) -> Load:
        """Start all callers."""
        self.began = time.perf_counter()
        self.tasks = [asyncio.create_task(caller(*client, self.stop)) for client in self.clients]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let every caller get its last answer, and leave."""
        self.stop.set()
        await asyncio.gather(*self.tasks)
        self.seconds = time.perf_counter() - self.began
        for client, _tally in self.clients:
            await client.close()
