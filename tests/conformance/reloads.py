"""Reload a runtime's large model and print by how many bytes the process grew.

Usage: python -m tests.conformance.reloads KIND DIR TIMES
"""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path

from headrace.runtimes import registry
from tests.conformance.runtime_example import Example

WARM_UP = 10


def reload(large: Example, directory: Path, times: int) -> None:
    """Load, ask and close a model again and again."""
    for _ in range(times):
        servable = registry.load(directory, large.options)
        servable.predict(large.inputs(2))
        servable.close()
    gc.collect()


def resident_bytes() -> int:
    """Return how much memory this process holds."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def main(kind: str, directory: Path, times: int) -> None:
    """Print the growth."""
    large: Example = getattr(importlib.import_module(f"tests.conformance.{kind}_models"), kind.upper()).large
    large.write(directory)
    reload(large, directory, WARM_UP)
    before = resident_bytes()
    reload(large, directory, times)
    print(resident_bytes() - before)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
