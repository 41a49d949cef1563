"""A process that only sleeps and wakes: when it wakes late, the machine stood still, and not the server."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.models import ROOT
from benchmarks.processes import cores, on_core

SLEEP_SECONDS = 0.01
STALL_SECONDS = 0.1
"""Ten times what the load programs beside it make it late."""


@contextmanager
def told() -> Iterator[None]:
    """Watch while a benchmark runs, and say afterwards if the machine stood still meanwhile."""
    command = on_core(cores()[1], [sys.executable, "-m", "benchmarks.stalls"])
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            yield
        finally:
            watcher.terminate()
        stalls = [float(line) for line in watcher.communicate(timeout=10)[0].splitlines()]
    if stalls:
        print(f"  the machine stood still {len(stalls)} times meanwhile, for up to {max(stalls):.1f} s")


def main() -> None:
    """Print how late each late waking was, in seconds, until terminated."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    before = time.monotonic()
    while True:
        time.sleep(SLEEP_SECONDS)
        now = time.monotonic()
        if now - before > STALL_SECONDS:
            print(f"{now - before:.3f}", flush=True)
        before = now


if __name__ == "__main__":
    main()
