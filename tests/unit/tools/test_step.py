"""The report of a step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.step import BUDGET_SECONDS, described

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("code", "result"), [(0, "ok"), (1, "FAILED"), (-9, "FAILED")])
def test_a_step_is_reported_with_its_load(code: int, result: str) -> None:
    line = described("check", code, 12.4, (0.5, 2.0), 1.25)
    assert line == f"STEP check: {result} (12 s); load 0.5 before, 2.0 after; 1.2 s stolen"


def test_a_step_that_takes_too_long_is_over_budget() -> None:
    assert "OVER BUDGET of 840 s" in described("rest", 0, BUDGET_SECONDS["rest"] + 1, (0.0, 0.0), None)
    assert "OVER" not in described("rest", 0, BUDGET_SECONDS["rest"], (0.0, 0.0), None)


def test_the_budgets_are_those_that_were_promised() -> None:
    assert BUDGET_SECONDS["check"] + BUDGET_SECONDS["test"] == 12 * 60
    assert sum(BUDGET_SECONDS.values()) == 30 * 60


@pytest.mark.parametrize("code", [0, 3])
def test_a_step_keeps_its_line_and_the_exit_code(tmp_path: Path, code: int) -> None:
    step = [sys.executable, ROOT / "tools/step.py", "name"]
    command = [*step, sys.executable, "-c", f"raise SystemExit({code})"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == code
    assert (tmp_path / ".data/gate/steps").read_text() == ran.stdout
