"""The page of faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
FAULTS = (DOCS / "reliability.md").read_text("utf-8").partition("## Faults")[2].partition("## A soak")[0]
ROWS = [
    line.strip("|\n").split("|")
    for line in FAULTS.splitlines()
    if line.startswith("| ") and not line.startswith("| fault |")
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip() for row in ROWS])
def test_each_fault_has_tests_of_these_names(row: list[str]) -> None:
    _fault, _happens, tests = row
    named = re.findall(r"\[(\w+)\]\(([^)]+)\)", tests)
    assert named
    for name, file in named:
        assert re.search(rf"^def test_{name}\(", (DOCS / file).read_text("utf-8"), re.MULTILINE), name


def test_there_are_rows() -> None:
    assert len(ROWS) > 15
