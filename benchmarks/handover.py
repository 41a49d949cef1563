"""Ports are handed over from one server to the next: what does it cost callers, in requests and in time?"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.rounds import Effort, verdict
from tests.earlier_release import EarlierRelease, oldest_that_hands_over
from tests.faults.still_serves import MODEL
from tests.faults.strict_callers import Callers, Tally, grpc_unary, http1, http2
from tests.faults.test_handover import http1_new
from tests.model_directories import affine, write
from tests.running_server import RunningServer

REQUESTS = 100_000
_CALLERS = 8
_EVERY = 20_000
_MOST_SECONDS = 600.0


class _Way(NamedTuple):
    """How is asked, of how many workers, and whether an earlier release takes turns with today's."""

    caller: Callable[[RunningServer, Tally, float], None]
    workers: str = "1"
    takes_turns: bool = False


_WAYS = {
    "REST, kept connections": _Way(http1),
    "REST, a connection for each request": _Way(http1_new),
    "REST over HTTP/2": _Way(http2),
    "gRPC": _Way(grpc_unary),
    "REST, a connection for each request, 2 workers": _Way(http1_new, "2"),
    "gRPC, 2 workers": _Way(grpc_unary, "2"),
    "REST, an earlier release and today's in turns": _Way(http1, takes_turns=True),
    "gRPC, an earlier release and today's in turns": _Way(grpc_unary, takes_turns=True),
}


class _Rate:
    """How many requests were answered in each tenth of a second."""

    def __init__(self, tally: Tally) -> None:
        self.counts: list[int] = []
        self._tally = tally
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count)

    def _count(self) -> None:
        before = self._tally.answered
        while not self._ended.wait(0.1):
            now = self._tally.answered
            self.counts.append(now - before)
            before = now

    def __enter__(self) -> _Rate:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def run(effort: Effort) -> None:
    """Have servers follow one another under load, each after a fifth of the requests.

    Args:
        effort: How much measuring is done; this one counts requests, not rounds.
    """
    print(
        f"  {_CALLERS} callers without pauses, {REQUESTS} requests each way; a server follows every {_EVERY}"
    )
    print(
        f"  {'':<48}{'answered':>10}{'lost':>6}{'refused':>9}{'servers':>9}{'longest silence':>17}{'time':>8}"
    )
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        earlier = EarlierRelease(Path(folder, "earlier"), oldest_that_hands_over())
        for number, (name, way) in enumerate(_WAYS.items()):
            place = Path(folder, str(number))
            place.mkdir()
            lost += _one(name, way, place, [earlier.environment, None] if way.takes_turns else [None])
    verdict(f"no request of {REQUESTS} is lost", lost == 0, f"{lost} lost")


def _one(name: str, way: _Way, place: Path, environments: Sequence[Mapping[str, str] | None]) -> int:
    write(place / "models", MODEL, 1, affine(1.0, 1.0))
    (place / "run").mkdir(mode=0o700)
    options = (
        "--workers",
        way.workers,
        "--handover",
        str(place / "run/handover"),
        "--drain-lead-seconds",
        "1",
    )
    began = time.monotonic()
    turns = itertools.cycle(environments)
    with ExitStack() as running:

        def another() -> RunningServer:
            return running.enter_context(RunningServer(place / "models", *options, environment=next(turns)))

        server = first = another()
        tally = running.enter_context(Callers(way.caller, first, _CALLERS))
        rate = running.enter_context(_Rate(tally))
        followed = 0
        while tally.answered < REQUESTS:
            wanted = min(REQUESTS, (followed + 1) * _EVERY)
            server.wait_for(lambda wanted=wanted: tally.answered >= wanted, "the load", _MOST_SECONDS)
            if wanted < REQUESTS:
                before, server = server, another()
                before.wait_until_ended()
                followed += 1
        tally.ended.set()
        silence = _longest_silence(rate.counts)
    bad = len(tally.lost) + tally.refused
    print(f"  {name:<48}{tally.answered:>10}{len(tally.lost):>6}{tally.refused:>9}{followed + 1:>9}", end="")
    print(f"{silence:>15.1f} s{time.monotonic() - began:>6.0f} s", flush=True)
    return bad


def _longest_silence(counts: list[int]) -> float:
    longest = now = 0
    for count in counts:
        now = 0 if count else now + 1
        longest = max(longest, now)
    return longest * 0.1
