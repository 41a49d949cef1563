"""Each target of the fuzzer starts, and reads its seeds; otherwise only ``make fuzz`` would show that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.targets import TARGETS

_READ_ALL = """
import sys
from tests.fuzz.targets import TARGETS
read, seeds = TARGETS[sys.argv[1]]()
for one in seeds:
    read(one)
"""


@pytest.mark.rest
@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_read(name: str) -> None:
    words = [sys.executable, "-c", _READ_ALL, name]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
