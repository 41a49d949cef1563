"""One process of ``sharing``: loads versions as a server does, touches them, and drops them, as told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.model.servable import Servable
from headrace.runtimes import registry
from headrace.sealed_memory.file_copying import use_keeper
from headrace.versions.manifest import check_manifest

ROWS = 2**16
_BATCHES = {"lookup": 2**7, "clicks": 2**6}  # so that every page of a table of 1 GiB is touched


def load(directory: Path) -> Servable:
    """Check a version against its manifest, and load it."""
    runtime = registry.recognised(directory, "")
    manifest = check_manifest(directory, registry.checks_itself(directory, runtime))
    files = None if manifest is None else {name: one.sha256 for name, one in manifest.files.items()}
    return registry.load(directory, registry.RuntimeOptions(checksums=files))


def touch(servable: Servable, kind: str, size_bytes: int) -> None:
    """Have a model answer for rows all over its table."""
    random = np.random.default_rng(0)
    rows = size_bytes // 128
    for start in range(_BATCHES[kind]):
        if kind == "lookup":
            servable.predict({"ad": np.arange(start * 32 % 4096, rows, 4096)})
            servable.predict({"ad": random.integers(0, rows, ROWS)})
        else:
            ads = random.integers(0, 2**62, ROWS)
            servable.predict({"ad": ads, "user": np.zeros(ROWS, np.int64)})


def main() -> None:
    """Do what standard input says, and print how many seconds each took."""
    descriptor, kind, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if descriptor >= 0:
        use_keeper(descriptor)
    held: list[Servable] = []

    def drop(_: str) -> None:
        held.pop(0).close()

    verbs: dict[str, Callable[[str], object]] = {
        "load": lambda path: held.append(load(Path(path))),
        "touch": lambda _: touch(held[-1], kind, size),
        "drop": drop,
    }
    for line in sys.stdin:
        verb, _, argument = line.rstrip().partition(" ")
        started = time.monotonic()
        verbs[verb](argument)
        print(time.monotonic() - started, flush=True)


if __name__ == "__main__":
    main()
