"""gRPC load by h2load: several of them side by side on the load's core, since each sends only one body."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.processes import cores, on_core

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_LIMIT_SECONDS = 300


@dataclass(frozen=True)
class Calls:
    """What a run of h2load saw.

    Attributes:
        sent: How many calls were made.
        good: How many brought an answer.
        begins: When each call was sent, in seconds since the epoch.
        spent: How long each took, in seconds.
    """

    sent: int
    good: int
    begins: npt.NDArray[np.float64]
    spent: npt.NDArray[np.float64]

    @property
    def seconds(self) -> float:
        """From the first call to the last answer."""
        return float((self.begins + self.spent).max() - self.begins.min())


class H2load:
    """A run of h2load that has begun; finish it or stop it."""

    def __init__(
        self, folder: Path, port: int, bodies: Sequence[bytes], calls: int, method: str = METHOD
    ) -> None:
        """Prepare a run.

        Args:
            folder: Where bodies, logs and schedules are put; empty, since h2load appends to its logs.
            port: The server's gRPC port.
            bodies: Framed messages; each goes over a connection of its own.
            calls: How many in all.
            method: What is called.
        """
        self._folder = folder
        self._url = f"http://127.0.0.1:{port}{method}"
        self._bodies = bodies
        self._calls = calls // len(bodies)
        self._started: list[subprocess.Popen[str]] = []

    def closed_loop(self, in_flight: int) -> None:
        """Begin: each answer is followed by the next call.

        Args:
            in_flight: Calls at a time, over all connections.
        """
        streams = max(1, in_flight // len(self._bodies))
        for number in range(len(self._bodies)):
            self._start(number, ["-m", str(streams), self._url])

    def open_loop(self, per_second: float, seed: int) -> None:
        """Begin: calls come at random moments, whatever the answers do.

        Args:
            per_second: Calls asked for in all; fewer come, for h2load's timers are late by up to 1 ms.
            seed: Of the moments.
        """
        random = np.random.default_rng(seed)
        for number in range(len(self._bodies)):
            gaps = random.exponential(1000 * len(self._bodies) / per_second, self._calls)
            schedule = self._folder / f"schedule{number}"
            schedule.write_text("".join(f"{moment:.3f}\t{self._url}\n" for moment in np.cumsum(gaps)))
            self._start(number, ["-m", "64", f"--timing-script-file={schedule}"])

    def _start(self, number: int, how: list[str]) -> None:
        body = self._folder / f"body{number}"
        body.write_bytes(self._bodies[number])
        files = ["-d", str(body), f"--log-file={self._log(number)}"]
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        command = ["h2load", "-n", str(self._calls), "-c", "1", *files, *headers, *how]
        self._started.append(
            subprocess.Popen(
                on_core(cores()[1], command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )

    def _log(self, number: int) -> Path:
        return self._folder / f"log{number}"

    @property
    def under_way(self) -> bool:
        """Whether every connection still has calls to make."""
        return all(process.poll() is None for process in self._started)

    def finish(self, answer_bytes: int) -> Calls:
        """Wait for the end.

        Args:
            answer_bytes: The size of a good answer with its frame. h2load knows nothing of gRPC's status, but
                a call that failed brings no message, so the bytes received tell how many did.

        Returns:
            What was seen.

        Raises:
            RuntimeError: h2load failed.
        """
        sent = good = 0
        for process in self._started:
            said, _ = process.communicate(timeout=_LIMIT_SECONDS)
            if process.returncode:
                raise RuntimeError(f"h2load ended with {process.returncode}:\n{said[-1000:]}")
            received = int(found(r"\((\d+)\) data", said))
            good += min(received // answer_bytes, int(found(r"(\d+) succeeded", said)))
            sent += int(found(r"requests: (\d+) total", said))
        logs = [np.loadtxt(self._log(number), usecols=(0, 2), ndmin=2) for number in range(len(self._bodies))]
        begins, spent = np.concatenate(logs).T / 1e6
        return Calls(sent, good, begins, spent)

    def cut_short(self) -> Calls:
        """End it now; what was answered so far is what was seen, well or not."""
        self.stop()
        lines = [line.split() for number in range(len(self._bodies)) for line in self._lines(number)]
        begins, spent = np.array([(int(line[0]), int(line[2])) for line in lines], float).T / 1e6
        return Calls(len(lines), len(lines), begins, spent)

    def _lines(self, number: int) -> list[str]:
        """The lines of a log but the last, which may be cut."""
        return self._log(number).read_text().splitlines()[:-1]

    def stop(self) -> None:
        """End what has not ended."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()


def found(pattern: str, said: str) -> str:
    """What the pattern's group matches in a program's report.

    Raises:
        RuntimeError: There is no such thing in it.
    """
    match = re.search(pattern, said)
    if match is None:
        raise RuntimeError(f"nothing like {pattern!r} in:\n{said[-1000:]}")
    return match[1]
