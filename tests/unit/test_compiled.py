"""Machine code on disk is that of the sources."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from headrace import compiled

SOURCE = """
from headrace.compiled import cached

@cached(nogil=True)
def twice(number):
    return number + number
"""


def imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kept_kernel", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_kernel_is_kept_until_a_source_beside_it_changes(tmp_path: Path) -> None:
    file, other = tmp_path / "kept_kernel.py", tmp_path / "other.py"
    file.write_text(SOURCE)
    other.write_text("WHAT = 1")
    assert imported(file).twice(4) == 8
    again = imported(file).twice
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1
    other.write_text("WHAT = 2")
    compiled._fingerprint.cache_clear()  # as in a new process
    anew = imported(file).twice
    assert anew(4) == 8
    assert sum(anew.stats.cache_hits.values()) == 0
