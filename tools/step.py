"""`python tools/step.py NAME COMMAND…`: run one step of continuous integration and report its result.

Prints ``STEP NAME: ok|FAILED (seconds)`` with the machine's load and stolen time, keeps that line in
``.data/gate/steps``, one for each step, and exits with the command's code. Needs only the standard library:
the first step installs everything else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

STEPS = Path(".data/gate/steps")
BUDGET_SECONDS = {"install": 240, "check": 60, "test": 660, "rest": 840}
"""On two shared cores: `make test` takes at most 12 minutes after the installation, the whole run 30."""

LATE = 124
"""The exit code of a command that was stopped because its time was over."""
ENDING_SECONDS = 60.0


def run(command: Sequence[str], seconds: float | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run a command and return its exit code; ``LATE`` if it was stopped after so many seconds.

    When this process is interrupted or terminated, the command is too, and has time to end what it started.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    process = subprocess.Popen(command, env=env)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return LATE
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def stolen_seconds() -> float | None:
    """Return the CPU time stolen by the hypervisor since boot; None if the system does not report it."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except FileNotFoundError:
        return None
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def described(name: str, code: int, seconds: float, load: tuple[float, float], stolen: float | None) -> str:
    """Return the line that reports a step.

    Args:
        name: The step.
        code: The exit code of its command.
        seconds: How long it took.
        load: The load average of the last minute, before and after.
        stolen: Stolen processor time during the step, in seconds; None if the system does not tell.
    """
    result = "ok" if code == 0 else "FAILED"
    line = f"STEP {name}: {result} ({seconds:.0f} s); load {load[0]:.1f} before, {load[1]:.1f} after"
    if stolen is not None:
        line += f"; {stolen:.1f} s stolen"
    budget = BUDGET_SECONDS.get(name)
    return line if budget is None or seconds <= budget else f"{line}; OVER BUDGET of {budget} s"


def main(name: str, *command: str) -> int:
    """Run a step's command and return its exit code."""
    before, stolen, began = os.getloadavg()[0], stolen_seconds(), time.monotonic()
    code = run(command)
    seconds, after = time.monotonic() - began, stolen_seconds()
    spent = None if stolen is None or after is None else after - stolen
    line = described(name, code, seconds, (before, os.getloadavg()[0]), spent)
    STEPS.parent.mkdir(parents=True, exist_ok=True)
    kept = STEPS.read_text("utf-8").splitlines() if STEPS.exists() else []
    kept = [one for one in kept if not one.startswith(f"STEP {name}:")]
    STEPS.write_text("\n".join([*kept, line, ""]), encoding="utf-8")
    print(line, flush=True)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
