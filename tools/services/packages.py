"""Commands from the system's packages, installed where that is allowed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.services.errors import ServiceError

SCRIPT = Path(__file__).resolve().parent.parent / "system_packages.sh"


def say(what: str) -> None:
    """Report progress to whoever waits."""
    print(what, file=sys.stderr, flush=True)


def ensure(*commands: str) -> None:
    """Make sure that commands are there.

    Raises:
        ServiceError: One is missing and cannot be installed; the text says which package to install.
    """
    missing = [command for command in commands if shutil.which(command) is None]
    if not missing:
        return
    say(f"installing what is missing: {', '.join(missing)}")
    done = subprocess.run([str(SCRIPT), *missing], capture_output=True, text=True, check=False)
    still = [command for command in missing if shutil.which(command) is None]
    if done.returncode != 0 or still:
        raise ServiceError((done.stderr or done.stdout).strip() or f"cannot install {', '.join(missing)}")
