"""The sources of an earlier commit of this repository, as a release that servers and verbs are started of."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest

from headrace.server.handover.messages import PROTOCOLS

ROOT = Path(__file__).resolve().parent.parent
_SPOKEN = "src/headrace/server/handover/messages.py"


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout


def oldest_that_hands_over() -> str:
    """Find the oldest commit whose servers speak a protocol of handing over that today's speak.

    A test that needs it is skipped where the history is not there.
    """
    try:
        shallow = _git("rev-parse", "--is-shallow-repository").split() != [b"false"]
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git, or the history of this repository, is not here")
    if shallow:
        pytest.skip("this clone is shallow: it has no earlier commits")
    for commit in _git("log", "--reverse", "--format=%H", "--", _SPOKEN).decode().split():
        found = re.search(
            r"^PROTOCOLS = (\(.*\))$", _git("show", f"{commit}:{_SPOKEN}").decode(), re.MULTILINE
        )
        if found and set(ast.literal_eval(found[1])) & set(PROTOCOLS):
            return commit
    raise AssertionError(f"no commit speaks one of {PROTOCOLS}: has {_SPOKEN} been renamed?")


class EarlierRelease:
    """Sources of a commit in a folder.

    Attributes:
        commit: Which.
        environment: What makes a process import them.
    """

    def __init__(self, folder: Path, commit: str) -> None:
        self.commit = commit
        with tarfile.open(fileobj=BytesIO(_git("archive", commit, "src"))) as packed:
            packed.extractall(folder, filter="data")
        self.environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(folder / "src")}
        where = self.run("-c", "import headrace; print(headrace.__file__)")
        assert Path(where.strip()).is_relative_to(folder), where

    def run(self, *words: str, fails: bool = False) -> str:
        """Run its Python; what it printed, with its errors."""
        ran = subprocess.run(
            [sys.executable, *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert (ran.returncode != 0) == fails, ran.stdout
        return ran.stdout
