"""The table of limits names tests that exist, and each setting of [limits] with its default."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from headrace.config import Limits

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLE = (DOCS / "limits.md").read_text("utf-8").partition("## Every limit")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith(("| what |", "| **"))
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_limit_has_a_setting_or_a_number_an_error_and_tests_of_these_names(row: list[str]) -> None:
    assert len(row) == 4
    what, limit, error, tests = row
    assert what
    assert limit
    assert error
    named = re.findall(r"\[(\w+)\]\(([^)]+)\)", tests)
    assert named
    for name, file in named:
        text = (DOCS / file).read_text("utf-8")
        assert re.search(rf"^(async )?def test_{name}\(", text, re.MULTILINE), name


@pytest.mark.parametrize("field", msgspec.structs.fields(Limits), ids=lambda field: str(field.name))
def test_each_setting_is_there_with_its_default(field: msgspec.structs.FieldInfo) -> None:
    assert f"`limits.{field.name}` = {field.default}" in TABLE


def test_there_are_rows() -> None:
    assert len(ROWS) > 35
