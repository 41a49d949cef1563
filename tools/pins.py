"""`python tools/pins.py PYTHON`: print what an environment has installed as a constraints file of pip.

Lines are bare ``name==version``. Packages installed from a folder or a link, such as headrace itself, are
left out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

HEADER = "# Written by `make upgrade`: the versions that the tests ran with."


def pins(frozen: Iterable[str]) -> list[str]:
    """Return the lines of ``pip freeze`` that name a package and its version, sorted by name."""
    return sorted((line for line in frozen if "==" in line and " " not in line), key=str.lower)


def main(python: str) -> None:
    """Print the constraints file of an environment."""
    told = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    print("\n".join([HEADER, *pins(told.splitlines())]))


if __name__ == "__main__":
    main(*sys.argv[1:])
