"""`python -m tools.burn TEST…`: run tests ten times beside two busy loops.

It finds tests that depend on the speed of the machine. Each run is a process of its own, without
pytest-xdist. Exits 1 unless all runs pass.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack

from tests.lanes import LANES
from tools.step import run

BUSY_LOOPS = 2
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


def ended(process: subprocess.Popen[bytes]) -> None:
    """Kill a busy loop and wait for it."""
    process.kill()
    process.wait()


def main() -> int:
    """Run what the command line names, and return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.burn", description=__doc__)
    parser.add_argument("tests", nargs="+", metavar="TEST", help="files or tests, as pytest takes them")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="number of runs (default: 10)")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs: expected at least 1, got {options.runs}")
    failed = 0
    with ExitStack() as stack:
        for _ in range(BUSY_LOOPS):
            loop = subprocess.Popen([sys.executable, "-c", BUSY])
            stack.callback(ended, loop)
        lanes = [f"--lane={lane}" for lane in LANES if lane != "timing"]
        for number in range(1, options.runs + 1):
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *lanes, *options.tests]
            code = run(command)
            failed += code != 0
            print(
                f"run {number} of {options.runs}: {'ok' if code == 0 else f'FAILED with {code}'}", flush=True
            )
    print(f"{options.runs - failed} of {options.runs} runs passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
