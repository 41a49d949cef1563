"""Models of 1 GiB in servers, and in bare processes with and without a keeper: memory in all, and load times.

Memory is the proportional set size of the processes, with the keeper's, after all of the table was touched.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import sharing_servers
from benchmarks.rounds import Effort
from headrace.sealed_memory.keeper import KeeperProcess
from tests.faults.worker_processes import pss_bytes
from tests.sharing_models import publish_clicks, publish_lookup

SIZE = 2**30
SMALL = 2**12
PROCESSES = (1, 2, 4)


class Side:
    """A process that loads models as it is told."""

    def __init__(self, keeper: KeeperProcess | None, kind: str) -> None:
        """Start it; without a keeper it makes its own copies."""
        descriptor = -1 if keeper is None else keeper.descriptor
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sharing_side", str(descriptor), kind, str(SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=() if keeper is None else (descriptor,),
        )
        self.pid = self._process.pid

    def does(self, verb: str) -> float:
        """Tell it something, and wait until it is done: seconds."""
        assert self._process.stdin and self._process.stdout  # noqa: PT018 - pipes, both
        self._process.stdin.write(f"{verb}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def sides(count: int, kind: str, *, shares: bool) -> Iterator[tuple[list[Side], list[int]]]:
    """Start processes, with a keeper or without; the process identifiers of all of them come along."""
    with contextlib.ExitStack() as held:
        keeper = held.enter_context(contextlib.closing(KeeperProcess())) if shares else None
        started = [held.enter_context(contextlib.closing(Side(keeper, kind))) for _ in range(count)]
        yield started, [one.pid for one in started] + ([keeper.pid] if keeper else [])


def run(effort: Effort) -> None:
    """Print a table of servers, and one of bare processes for each kind of model."""
    sharing_servers.run()
    for kind, publish in (("clicks", publish_clicks), ("lookup", publish_lookup)):
        with tempfile.TemporaryDirectory() as name:
            versions = [publish(Path(name), size, seed) for seed, size in enumerate((SMALL, SIZE, SIZE))]
            print(f"  {kind}, GiB with a small model → with one of 1 GiB → while the next one takes over")
            for count in PROCESSES:
                for shares in (True, False):
                    _measure(kind, versions, count, shares=shares)


def _measure(kind: str, versions: list[Path], count: int, *, shares: bool) -> None:
    small, large, newer = versions
    with sides(count, kind, shares=shares) as (processes, everybody):
        for one in processes:
            one.does(f"load {small}")
        before = pss_bytes(everybody)
        loads = [one.does(f"load {large}") for one in processes]
        for one in processes:
            one.does("drop")
            one.does("touch")
        after = pss_bytes(everybody)
        for one in processes:
            one.does(f"load {newer}")
            one.does("touch")
        both = pss_bytes(everybody)
    memory = " → ".join(f"{size / 2**30:.2f}" for size in (before, after, both))
    later = f", the others {max(loads[1:]):.2f}" if count > 1 else ""
    print(
        f"    {count} {'with a keeper' if shares else 'each its own':<13} {memory} GiB; "
        f"load: the first {loads[0]:.2f} s{later}",
        flush=True,
    )
