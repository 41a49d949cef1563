"""The page of faults names tests that exist, and the fuzz targets that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

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


@pytest.mark.parametrize("head", ["| target | what is fuzzed |", "| target | inputs | edges | findings |"])
def test_each_table_of_the_fuzz_targets_has_all_of_them_in_order(head: str) -> None:
    page = (DOCS / "reliability.md").read_text("utf-8")
    rows = page.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert [row.split("|")[1].strip(" `") for row in rows] == list(TARGETS)


def test_the_page_counts_the_inputs_of_its_table() -> None:
    page = (DOCS / "reliability.md").read_text("utf-8")
    counts = re.findall(r"^\| `\w+` \| ([\d,]+) \| [\d,]+ \| [\d,]+ \|$", page, re.MULTILINE)
    total = sum(int(one.replace(",", "")) for one in counts)
    assert f"tried {total:,} inputs" in page
