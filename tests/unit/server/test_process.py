"""How a server ends where a model is still at work."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = "from headrace.server.process import end_at_once; print('x'); end_at_once(3)"


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
