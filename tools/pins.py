"""`python tools/pins.py PYTHON`: print an environment's packages as a constraints file of pip.

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
    freeze = [python, "-m", "pip", "freeze", "--all", "--exclude", "pip"]
    told = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout
    print("\n".join([HEADER, *pins(told.splitlines())]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
