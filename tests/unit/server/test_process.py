"""How a server ends where a model is still at work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENDS = "from headrace.server.process import end_at_once; end_at_once(3)"
PROGRAM = f"print('x'); {ENDS}"


def test_a_process_exits_with_its_code_even_if_its_output_cannot_be_flushed() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    assert (done.returncode, done.stderr) == (3, b"")


@pytest.mark.parametrize("output", ["sys.stdout = None", "sys.stdout.close()"])
def test_a_process_without_output_ends_with_its_code(output: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import sys; {output}; {ENDS}"], check=False)
    assert done.returncode == 3
