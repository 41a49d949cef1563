"""Files that earlier headraces wrote, unpacked for a test that reads or serves them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data/formats"
EARLIER = ("before-keys", "with-keys")
"""Those that there are, the newest last; what wrote them is in the folder's README."""


def unpack(name: str, directory: Path) -> Any:
    """Unpack one of them.

    Args:
        name: Which.
        directory: Where to.

    Returns:
        What must be read from it, as its ``make.py`` says.
    """
    with tarfile.open(FOLDER / f"{name}.tar.xz") as packed:
        packed.extractall(directory, filter="data")
    return json.loads((directory / "expected.json").read_text())
