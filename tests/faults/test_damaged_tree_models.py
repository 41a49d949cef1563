"""A damaged file of a tree ensemble is refused, or answers: it never ends the process.

LightGBM and XGBoost read beyond the end of such files and follow any index in them, so headrace checks the
files first. ``make fuzz`` (the target ``trees``) damages more of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMES, SEED = 40, 1


@pytest.mark.rest
def test_no_damage_ends_the_process() -> None:
    command = [sys.executable, "-m", "tests.fuzz.trees", str(TIMES), str(SEED)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = ran.stdout.splitlines()[-1]
    assert ran.returncode == 0, f"file {last}: {ran.stderr[-2000:]}"
    assert last.split()[1] == str(TIMES - 1)
