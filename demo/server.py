"""`headrace serve` as a real process: started, asked how it is, and stopped as an operator would."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 180.0  # the first time on a machine, kernels are compiled
STOP_SECONDS = 30.0
ADDRESS = re.compile(rb"(REST|gRPC)\s+(?:http://)?\S+:(\d+)")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready.

    Attributes:
        process: Its process.
        http_port: Where it speaks REST.
        grpc_port: Where it speaks gRPC.
        ready_seconds: How long it took from its start to readiness.
    """

    process: asyncio.subprocess.Process
    http_port: int
    grpc_port: int
    ready_seconds: float

    def cpu_seconds(self) -> float:
        """Give the processor time that the process has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ports(process: asyncio.subprocess.Process) -> dict[bytes, int]:
    """Read what the server prints until it has said both its ports."""
    found: dict[bytes, int] = {}
    if process.stdout is None:
        raise ValueError("the server's output is not piped")
    while not found.keys() >= {b"REST", b"gRPC"}:
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        if not line:
            raise SystemExit("the server ended before it had opened its ports")
        if address := ADDRESS.search(line):
            found[address[1]] = int(address[2])
    return found


def is_ready(port: int, model: str) -> bool:
    """Ask whether a model has a version that answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{model}/ready") as reply:
            return bool(reply.status == 200)
    except urllib.error.HTTPError:
        return False


def last_words(log: Path) -> str:
    """Give the end of a log."""
    return log.read_text(errors="replace")[-2000:]


@asynccontextmanager
async def serving(models: Path, model: str, log: Path) -> AsyncIterator[Server]:
    """Start a server on free ports, wait for the model, and stop it with SIGTERM whatever happens."""
    began = time.perf_counter()
    command = Path(sys.executable).with_name("headrace")
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            command, "serve", models, "--http-port", "0", "--grpc-port", "0",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    try:
        found = await ports(process)
        while not is_ready(found[b"REST"], model):
            if time.perf_counter() - began > START_SECONDS:
                raise SystemExit(f"{model} was not ready in time:\n{last_words(log)}")
            await asyncio.sleep(0.02)
        yield Server(process, found[b"REST"], found[b"gRPC"], time.perf_counter() - began)
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> None:
    """Ask it to drain and end; kill it only when it does not."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.communicate(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise SystemExit("the server did not end within its time after SIGTERM, and was killed") from None
