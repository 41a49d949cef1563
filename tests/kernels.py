"""`python -m tests.kernels`: compile the kernels of click models before tests need them, each once.

Otherwise a test would compile a kernel within its time limit, and parallel tests would compile it twice.
"""

from __future__ import annotations

import subprocess
import sys

SERVING = ("headrace", "compile", "--factors", "4", "--factors", "8", "--quantize", "16", "--quantize", "8")
LEARNING = (
    "tests/conformance/test_click_models.py",
    "tests/unit/stream/test_block_joining.py",
    "-k=test_learns or same_bits or weight_is_a_factor or of_every_type",
)
"""Tests that use most kernels of learning. Their results count when they run in their lane, not here."""


def main() -> int:
    """Compile for serving and for learning side by side; return an exit code."""
    learning = subprocess.Popen([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *LEARNING])
    serving = subprocess.run([sys.executable, "-m", *SERVING], check=False)
    learning.wait()
    return serving.returncode


if __name__ == "__main__":
    sys.exit(main())
