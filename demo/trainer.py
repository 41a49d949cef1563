"""`headrace train` as a real process: rows go in at its standard input, versions appear in a directory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa

from demo.clicks import ARROW_SCHEMA, record_batch
from demo.features import Page
from demo.server import last_words

END_SECONDS = 60.0


class Trainer:
    """A trainer that waits for rows.

    Attributes:
        process: Its process.
        summary: The last line it printed, once it has ended.
    """

    def __init__(self, process: subprocess.Popen[bytes], rows: IO[bytes]) -> None:
        """Open the stream.

        Args:
            process: The process.
            rows: Its standard input.
        """
        self.process = process
        self.summary: dict[str, object] = {}
        self._rows = rows
        self._writer = pa.ipc.new_stream(rows, ARROW_SCHEMA)

    async def learn(self, pages: Sequence[Page]) -> None:
        """Hand over pages whose verdicts are known now; wait while the trainer is behind."""
        await asyncio.to_thread(self._write, pages)

    async def finish(self) -> None:
        """End the stream, and wait for the last version and the summary."""
        self._writer.close()
        output, _ = await asyncio.to_thread(self.process.communicate, timeout=END_SECONDS)
        lines = output.decode().splitlines()
        self.summary = json.loads(lines[-1]) if lines else {}

    def _write(self, pages: Sequence[Page]) -> None:
        self._writer.write_batch(record_batch(pages))
        self._rows.flush()


@asynccontextmanager
async def training(config: Path, versions: Path, every_rows: int, log: Path) -> AsyncIterator[Trainer]:
    """Start a trainer; end it, by force if it was left in the middle."""
    command = [str(Path(sys.executable).with_name("headrace")), "train", "--config", str(config)]
    command += ["--publish", str(versions), "--every-rows", str(every_rows), "--window-rows", str(every_rows)]
    command += ["--keep", "0"]  # The table looks up each version when it first answers.
    with log.open("wb") as errors:
        process = subprocess.Popen(  # noqa: ASYNC220 - Arrow writes to a file, not to a stream of asyncio
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    if process.stdin is None:
        raise ValueError("the trainer's input is not piped")
    try:
        yield Trainer(process, process.stdin)
    except BrokenPipeError:
        raise SystemExit(f"the trainer has ended too early:\n{last_words(log)}") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
