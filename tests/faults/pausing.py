"""Kill a program at a chosen call: it pauses there until it is killed.

Run as a program, ``MARKER MOMENT NUMBER DIRECTORY MODULE ARGUMENT…`` runs ``python -m MODULE ARGUMENT…``
until the moment comes for the NUMBER-th time, makes the file MARKER, and waits.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from headrace.evaluation.progressive_validation import Windows
from headrace.versions import manifest
from tests.waiting import seconds_left

ROOT = Path(__file__).resolve().parents[2]
COME_SECONDS = 120.0
"""How long a test waits for the moment."""
HELD_SECONDS = 150.0
"""Time after which a paused program exits by itself, if its test failed to kill it."""

MOMENTS = {
    "filled": (manifest, "write_manifest"),  # a draft in DIRECTORY has all files but its manifest
    "whole": (manifest, "sync_tree"),  # a draft in DIRECTORY lacks nothing but its number
    "learnt": (Windows, "add"),  # the model has learnt rows that nobody has counted yet
}


def pausing(marker: Path, moment: str, number: int, directory: Path) -> list[str]:
    """Return the start of a command that pauses; a module and its arguments follow."""
    return [
        *(sys.executable, "-m", "tests.faults.pausing"),
        *(str(marker), moment, str(number), str(directory)),
    ]


def kill_paused(command: Sequence[str], marker: Path) -> None:
    """Run a command that pauses, and kill it when it does."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + seconds_left()
        while not marker.exists():
            assert process.poll() is None, f"the program ended with {process.returncode} before its pause"
            assert time.monotonic() < deadline, f"the program did not reach its pause in {COME_SECONDS} s"
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL


def pause_at(marker: Path, moment: str, number: int, directory: Path) -> None:
    """Replace the chosen function by one that pauses at its NUMBER-th call.

    Calls whose first argument is a path outside ``directory`` do not count.
    """
    owner, name = MOMENTS[moment]
    function, calls = getattr(owner, name), count(1)

    def paused(*arguments: object, **options: object) -> object:
        first = arguments[0]
        if (not isinstance(first, Path) or first.parent == directory) and next(calls) == number:
            marker.touch()
            time.sleep(HELD_SECONDS)
            os._exit(3)
        return function(*arguments, **options)

    setattr(owner, name, paused)


if __name__ == "__main__":
    _, marker_, moment_, number_, directory_, *sys.argv = sys.argv
    pause_at(Path(marker_), moment_, int(number_), Path(directory_))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
