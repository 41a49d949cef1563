"""`python -m tests.kernels`: compile the kernels of click models before tests need them, each once.

Otherwise a test would compile a kernel within its time limit, and parallel tests would compile it twice.
"""

from __future__ import annotations

import subprocess
import sys

from tests.click_blocks import block_of
from tests.conformance.test_click_models import CASES, SCHEMAS, learn, made

SERVING = ("compile", "--factors", "4", "--factors", "8", "--quantize", "16", "--quantize", "8")


def main() -> int:
    """Compile for serving in another process and for learning in this one; return an exit code."""
    serving = subprocess.Popen([sys.executable, "-m", "headrace", *SERVING])
    for kind, schema, optimizer in CASES:
        learn(made(kind, schema, optimizer), block_of(SCHEMAS[schema], 100))
    return serving.wait()


if __name__ == "__main__":
    sys.exit(main())
