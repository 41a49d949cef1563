"""A served directory with two models, and a Source that watches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lifecycle.watch import Watch, put


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path / "models" / "ctr" / "1")
    put(tmp_path / "models" / "ctr" / "2")
    put(tmp_path / "models" / "rank" / "7")
    return tmp_path / "models"


@pytest.fixture
def watch(root: Path) -> Watch:
    watch = Watch(root)
    watch.start()
    return watch
