"""One server process: started, signalled, waited for, and found again by a later command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tools.services.errors import ServiceError

POLL_SECONDS = 0.02

# The kernel ties a process to the thread that has started it, so that thread must live as long as the
# program: a test may well restart a server in a thread of its own.
_SPAWNER = ThreadPoolExecutor(1, "spawner")


def _stat(pid: int) -> tuple[str, int] | None:
    """Read a process's state letter and the clock tick of its birth; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return fields[0], int(fields[19])


@dataclass(slots=True)
class Process:
    """A process that this program, or an earlier one, has started.

    Attributes:
        pid: Its number.
        born: The clock tick of its birth, which tells it from a later process of the same number.
        child: What waits for it, if this program has started it.
    """

    pid: int
    born: int
    child: subprocess.Popen[bytes] | None = None

    @classmethod
    def spawn(
        cls,
        command: Sequence[str],
        *,
        folder: Path,
        log: Path,
        environment: Mapping[str, str],
        tied: bool,
    ) -> Self:
        """Start a process in a session of its own, so that Ctrl-C in a terminal does not reach it.

        Args:
            command: Its words.
            folder: The directory that it runs in.
            log: The file that its output is appended to.
            environment: What is added to this program's environment.
            tied: The kernel kills it when this program ends, however that ends.

        Raises:
            ServiceError: The command does not exist, or ended at once.
        """
        ties = shutil.which("setpriv") if tied else None
        prefix = [ties, "--pdeathsig", "KILL"] if ties else []
        with log.open("ab") as output:
            try:
                child = _SPAWNER.submit(
                    subprocess.Popen,
                    [*prefix, *command],
                    cwd=folder,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                ).result()
            except OSError as error:
                raise ServiceError(f"cannot start {command[0]}: {error}") from error
        found = _stat(child.pid)
        if found is None:  # only who waits takes a child away, and nobody did
            raise ServiceError(f"{command[0]} ended at once; see {log}")
        return cls(child.pid, found[1], child)

    def alive(self) -> bool:
        """Say whether it runs; a frozen process does."""
        if self.child is not None:
            return self.child.poll() is None
        found = _stat(self.pid)
        return found is not None and found[1] == self.born and found[0] not in "ZX"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if it has ended."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:  # it ended between the two lines
                return

    def stopped(self) -> bool:
        """Say whether all of its threads stand still, which takes a moment after SIGSTOP."""
        try:
            tasks = list(Path(f"/proc/{self.pid}/task").iterdir())
            threads = [task.joinpath("stat").read_text("ascii", "replace") for task in tasks]
        except (FileNotFoundError, ProcessLookupError):  # one has ended meanwhile
            return False
        return all(text.rpartition(")")[2].split()[0] in "Tt" for text in threads)

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; False if it has not within so many seconds."""
        until = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True
