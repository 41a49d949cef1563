"""The servers of a soak: started, killed, started again on the same ports, and asked how they are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import httpx

from benchmarks.soak.plan import ISOLATED, MODELS
from benchmarks.soak.versions import Shelf, is_at_rest
from tests.faults.jumping_clock import JumpingClock
from tests.running_server import RunningServer

LEAD_SECONDS = 10.0
"""Much longer than any caller waits between two requests on a connection, on a crowded machine too."""
RECOVERY_SECONDS = 300.0
"""A worker that takes another's place imports and compiles as at a start, beside all else that goes on."""
_PAUSE_SECONDS = 0.05
_START_SECONDS = 240.0
"""A start imports scikit-learn and compiles kernels, beside all else that goes on."""
_START_AGAIN_SECONDS = 30.0

WORKER, CHILD, KEEPER = "worker", "isolated", "keeper"
_ROLES = {b"headrace.cli.worker": WORKER, b"headrace.isolation": CHILD, b"headrace.sealed_memory": KEEPER}


class SoakServer:
    """One server, whatever processes it is at the moment.

    Attributes:
        name: What the plan calls it.
        running: Its process now.
        http_port: The port of REST, which stays.
        grpc_port: The port of gRPC, which stays.
        logs: What those processes wrote that have ended.
        turn: What ends its processes or stops them, one thing after the other.
        clock: The clock that its processes see, if it can be made to jump.
    """

    def __init__(self, name: str, models: Path, *options: str, clock: JumpingClock | None = None) -> None:
        """Keep how it is started.

        Args:
            name: What the plan calls it.
            models: The directory of models.
            options: More options of ``headrace serve``.
            clock: The clock that its processes see; the machine's if left out.
        """
        self.clock = clock
        self.name = name
        self.logs: list[str] = []
        self.turn = asyncio.Lock()
        self._models = models
        self._options = ("--allow-code", "--drain-lead-seconds", str(LEAD_SECONDS), *options)
        self.http_port = self.grpc_port = 0

    def start(self) -> None:
        """Start it, on the ports that it had before; blocks until it is ready."""
        ports = ("--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port))
        options = (*self._options, *(ports if self.http_port else ()))
        environment = self.clock.environment if self.clock else None
        self.running = RunningServer(self._models, *options, environment=environment, seconds=_START_SECONDS)
        self.running.__enter__()
        self.http_port, self.grpc_port = self.running.http_port, self.running.grpc_port

    def start_again(self) -> int:
        """Start it after it has ended; ports may be taken for a moment longer.

        Returns:
            How many attempts failed.

        Raises:
            AssertionError: It does not start.
        """
        until = time.monotonic() + _START_AGAIN_SECONDS
        failures = 0
        while True:
            try:
                self.start()
            except AssertionError:
                self._keep_log()
                failures += 1
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
            else:
                return failures

    def end(self, number: int) -> int:
        """Send its first process a signal, and wait until all of its processes have ended; blocks.

        Returns:
            The exit code of the first.
        """
        everyone = [process for process, _ in self.processes()]
        self.running.process.send_signal(number)
        code = self.running.wait_until_ended(60)
        until = time.monotonic() + 60
        while left := [process for process in everyone if is_alive(process)]:
            if time.monotonic() > until:
                for process in left:
                    os.kill(process, signal.SIGKILL)
                raise AssertionError(f"processes of {self.name} did not end: {left}")
            time.sleep(_PAUSE_SECONDS)
        self._keep_log()
        return code

    def _keep_log(self) -> None:
        self.logs += [*self.running.errors, f"--- {self.name} ended ---"]

    def processes(self) -> list[tuple[int, str]]:
        """Its processes with their roles, its first one first."""
        first = self.running.process.pid
        return [(first, self.name), *_below(first)]

    def of_role(self, role: str) -> list[int]:
        """Its processes of a role."""
        return [process for process, its in self.processes() if its == role]

    async def recovered(self, shelves: dict[str, Shelf]) -> bool:
        """Wait until it is ready, and each model has been seen in the versions that it shall have.

        Args:
            shelves: What is on disk, by model; read anew each time.

        Returns:
            Whether that came true in time.
        """
        until = time.monotonic() + RECOVERY_SECONDS
        for path in ("/v2/health/ready", f"/v2/models/{ISOLATED}/ready"):
            if not await come_true(partial(self.is_ready, path), until - time.monotonic()):
                return False
        for model in MODELS:
            if not await come_true(partial(self._is_at_rest, model, shelves), until - time.monotonic()):
                return False
        return True

    async def _is_at_rest(self, model: str, shelves: dict[str, Shelf]) -> bool:
        return is_at_rest(await self.states(model), shelves[model])

    async def is_ready(self, path: str) -> bool:
        """Whether a question about readiness is answered with yes."""
        return (await self._get(path)).status_code == httpx.codes.OK

    async def states(self, model: str) -> dict[int, str]:
        """The states of a model's versions, in TensorFlow Serving's words."""
        answer = (await self._get(f"/v1/models/{model}")).json()
        return {int(one["version"]): one["state"] for one in answer.get("model_version_status", ())}

    async def _get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            return await client.get(f"http://127.0.0.1:{self.http_port}{path}")


async def come_true(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Wait until a condition holds; what cannot be asked does not hold yet.

    Returns:
        Whether it came true in time.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(httpx.HTTPError, OSError, ValueError):
            if await condition():
                return True
        await asyncio.sleep(_PAUSE_SECONDS)
    return False


def is_alive(process: int) -> bool:
    """Whether a process is there, and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _below(process: int) -> Iterator[tuple[int, str]]:
    for task in _children(process):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{task}/cmdline").read_bytes()
            role = next((role for text, role in _ROLES.items() if text in command), "other")
            yield task, role
        yield from _below(task)


def _children(process: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return sorted(found)
