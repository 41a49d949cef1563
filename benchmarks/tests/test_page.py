"""The page of benchmarks has a line for each of them."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.__main__ import NAMES

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_benchmarks_lists_them_all() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/benchmarks.md").read_text("utf-8"), re.MULTILINE)
    assert set(NAMES) <= set(listed)
