"""A directory with the model that goes on whatever happens to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.still_serves import MODEL
from tests.model_directories import affine, write


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory of models of the test's own, with the good model in it."""
    directory = tmp_path / "models"
    write(directory, MODEL, 1, affine(1.0, 1.0))
    return directory
