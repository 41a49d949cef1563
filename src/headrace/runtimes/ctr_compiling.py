"""Compile and cache a click model's kernels, as the child process that `ctr_kernels` starts."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.base.errors import LoadError
from headrace.runtimes.ctr import CtrServable, servable_of
from headrace.runtimes.ctr_kernels import run_once
from headrace.runtimes.kernel_compiling import compile_as_child
from headrace.versions.layout import version_directories

_ATTEMPTS = 10


def main() -> None:
    """Compile and cache the kernels that a version needs."""
    compile_as_child(lambda: run_once(servable_like(Path(sys.argv[1]))))


def servable_like(version: Path) -> CtrServable:
    """Load a version; if a trainer has deleted it meanwhile, load its model's newest one.

    Raises:
        LoadError: It is damaged, or no version is left.
    """
    for _ in range(_ATTEMPTS):
        try:
            return servable_of(version)
        except LoadError:
            others = {} if version.exists() else _versions_beside(version)
            if not others:
                raise
            version = others[max(others)]
    return servable_of(version)


def _versions_beside(version: Path) -> dict[int, Path]:
    try:
        return version_directories(version.parent)
    except OSError:
        return {}


if __name__ == "__main__":
    main()
