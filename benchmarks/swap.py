"""A new version under load: the p99 of requests that were open while it loads, beside the p99 before."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.h2load import Calls, H2load
from benchmarks.models import CACHE, model_file
from benchmarks.processes import Server, running
from benchmarks.rounds import Effort, middle, print_lines, verdict
from benchmarks.rows import Reference
from benchmarks.sides import TOLERANCE, Contender, headrace, model_path

CONNECTIONS = 8
BUSY_SHARE = 0.6
"""The part of the server's core that the requests take: the rest is the idle time that a load may use."""
TRIAL_SECONDS = 2.0
FIRST_TRIAL_PER_SECOND = 1500.0
BEFORE_SECONDS = 10.0
BETWEEN_SECONDS = 1.0
POLL_SECONDS = 0.01
AFTERWARDS_SECONDS = 0.1
SLICE_SECONDS = 0.4
LIMIT_SECONDS = 20.0
FIRST_VERSION = 100
"""Three digits throughout: then all answers have one size, and the bytes received count the good ones."""
TARGET = 1.2


@dataclass(frozen=True)
class Window:
    """One load of a version, in seconds since the epoch.

    Attributes:
        begins: When the server last answered without a sign of the new version.
        available: When it was available.
        ends: When the old version was gone, or a little after `available` if that was later.
    """

    begins: float
    available: float
    ends: float


def run(effort: Effort) -> None:
    """Send requests at random moments that leave the server's core some time; publish versions meanwhile.

    Args:
        effort: How much measuring is done: a round is about as long as four turns elsewhere.
    """
    with _model_directory() as directory, tempfile.TemporaryDirectory() as folder:
        side = headrace("grpc", directory, "headrace while versions change")
        with running(side.command) as server:
            contender = Contender(side, server, 1)
            contender.load(1.0)
            bodies = [body for body in contender.bodies for _ in range(CONNECTIONS // len(contender.bodies))]
            per_second = _rate(contender, bodies)
            calls_wanted = round(per_second * (BEFORE_SECONDS + 4 * effort.rounds * effort.seconds))
            load = H2load(Path(folder), server.ports["grpc"], bodies, calls_wanted)
            before = server.counters().cpu_seconds
            try:
                load.open_loop(per_second, seed=0)
                _poll_for(server, BEFORE_SECONDS)
                busy = (server.counters().cpu_seconds - before) / BEFORE_SECONDS
                windows = _publish_while(load, server, directory)
                calls = load.finish(contender.answer_bytes)
            finally:
                load.stop()
            _check_last(contender, len(windows))
    print(f"  {busy:.0%} of the server's core was busy before")
    _report(calls, windows)


def _rate(contender: Contender, bodies: list[bytes]) -> float:
    """How many requests a second to ask for, so that they take the part of the core that is meant."""
    per_second = FIRST_TRIAL_PER_SECOND
    for seed in (1, 2):  # a request costs less where more come
        with tempfile.TemporaryDirectory() as folder:
            trial = H2load(
                Path(folder), contender.server.ports["grpc"], bodies, round(per_second * TRIAL_SECONDS)
            )
            before, began = contender.server.counters().cpu_seconds, time.monotonic()
            try:
                trial.open_loop(per_second, seed)
                trial.finish(contender.answer_bytes)
            finally:
                trial.stop()
            used = contender.server.counters().cpu_seconds - before
        per_second *= BUSY_SHARE / (used / (time.monotonic() - began))
    return per_second


def now() -> float:
    """Seconds since the epoch: h2load's log knows no other clock."""
    return datetime.now(UTC).timestamp()


@contextmanager
def _model_directory() -> Iterator[Path]:
    """A model directory of its own, on the file system of the models, so that they need no copy."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="swap-") as folder:
        directory = Path(folder, "models")
        prepare(Path(folder, "next"), 0).rename(_made(directory / "ctr") / str(FIRST_VERSION))
        yield directory


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def _model(number: int) -> Path:
    """The file of the number-th version: every other one has other weights."""
    return Path(model_path()) if number % 2 == 0 else model_file(CACHE / "second" / "model.onnx", seed=1)


def prepare(directory: Path, number: int) -> Path:
    """Make a directory with the number-th version's file."""
    directory.mkdir()
    os.link(_model(number), directory / "model.onnx")
    return directory


def states(server: Server) -> dict[int, str]:
    """The state of each version, as TensorFlow Serving's status tells it."""
    url = f"http://127.0.0.1:{server.ports['http']}/v1/models/ctr"
    with urllib.request.urlopen(url, timeout=LIMIT_SECONDS) as response:
        listed = json.load(response)["model_version_status"]
    return {int(one["version"]): one["state"] for one in listed}


def _poll_for(server: Server, seconds: float) -> None:
    """Ask for the states as often as while a version loads: the asking is not what is measured."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        states(server)
        time.sleep(POLL_SECONDS)


def _publish_while(load: H2load, server: Server, directory: Path) -> list[Window]:
    windows: list[Window] = []
    while load.under_way:
        windows.append(_publish(server, directory, len(windows) + 1))
        _poll_for(server, BETWEEN_SECONDS)
    return windows


def _publish(server: Server, directory: Path, number: int) -> Window:
    new, old = FIRST_VERSION + number, FIRST_VERSION + number - 1
    prepare(directory.parent / "next", number).rename(directory / "ctr" / str(new))
    deadline = time.monotonic() + LIMIT_SECONDS
    unseen, available = now(), 0.0
    while time.monotonic() < deadline:
        found = states(server)
        moment = now()
        if new not in found:
            unseen = moment
        if found.get(new) == "AVAILABLE":
            available = available or moment
            if found.get(old, "END") == "END" and moment > available + AFTERWARDS_SECONDS:
                shutil.rmtree(directory / "ctr" / str(old))
                return Window(unseen, available, moment)
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"version {new} did not replace {old} within {LIMIT_SECONDS} s: {states(server)}")


def _check_last(contender: Contender, number: int) -> None:
    """See that the last version answers: versions really were swapped."""
    wanted = Reference(_model(number)).answer(contender.requests[0])
    answer = contender.ask(0)
    if not np.allclose(answer, wanted, rtol=0, atol=TOLERANCE):
        raise RuntimeError(f"after {number} versions the answer is {answer}, not the last version's {wanted}")


def _report(calls: Calls, windows: list[Window]) -> None:
    whole = [window for window in windows if window.ends < calls.begins.max()]
    if len(whole) < 2:
        raise SystemExit("too short: fewer than two versions were loaded; give it more rounds or seconds")
    first, ends = calls.begins.min(), calls.begins + calls.spent
    loading = [(ends >= window.begins) & (calls.begins <= window.ends) for window in whole]
    anywhere = np.logical_or.reduce(loading)
    before = _slices(calls, first + 1, first + BEFORE_SECONDS)
    between = [
        part & ~anywhere
        for earlier, later in pairwise(whole)
        for part in _slices(calls, earlier.ends, later.begins)
    ]
    lines: list[tuple[str, ...]] = [
        ("", "requests", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "p99 of the middle slice")
    ]
    pooled, middles = {}, {}
    for name, parts in (("before", before), ("while a version loads", loading), ("between loads", between)):
        spent = calls.spent[np.logical_or.reduce(parts)] * 1e3
        p50, pooled[name], p999 = np.percentile(spent, [50, 99, 99.9])
        middles[name] = middle([np.percentile(calls.spent[part], 99) * 1e3 for part in parts if part.any()])
        numbers = (p50, pooled[name], p999, spent.max(), middles[name])
        lines.append((name, f"{len(spent):,}", *(f"{number:.3f}" for number in numbers)))
    print_lines(lines)
    failed = calls.sent - calls.good
    print(f"  {calls.sent / calls.seconds:,.0f} requests/s at random moments, {failed} failed")
    took = [window.available - window.begins for window in whole]
    times = f"{np.median(took):.2f} s (at most {max(took):.2f} s) after its first sign"
    print(f"  {len(whole)} versions, each available {times}")
    for label, p99 in (("p99", pooled), ("p99 of the middle slice", middles)):
        for quiet in ("before", "between loads"):
            ratio = p99["while a version loads"] / p99[quiet]
            verdict(f"{label} while a version loads ≤ {TARGET} × {quiet}", ratio <= TARGET, f"{ratio:.2f} ×")
    verdict("no request fails while versions change", failed == 0, f"{failed}")


def _slices(calls: Calls, begins: float, ends: float) -> list[npt.NDArray[np.bool_]]:
    """The calls of a quiet time in slices about as long as a load: one disturbed does not move the middle."""
    edges = np.arange(begins, ends, SLICE_SECONDS)
    return [(calls.begins >= one) & (calls.begins < one + SLICE_SECONDS) for one in edges[:-1]]
