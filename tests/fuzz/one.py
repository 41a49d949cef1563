"""One target, fuzzed by atheris: ``python -m tests.fuzz.one TARGET CORPUS [libFuzzer's options]``.

The corpus is a directory; a file, such as a finding, is run once. It ends with libFuzzer's code: 0 when the
time is over, another after a finding, which it writes to a file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import atheris

import headrace
from tests.fuzz.targets import TARGETS

_COMPILED = re.compile(
    r"^(?:from|import) (?:numba|llvmlite)|^from headrace\.(?:compiled|standing) ", re.MULTILINE
)


def _compiled_modules() -> Iterator[str]:
    """Modules with compiled kernels: numba cannot compile what is instrumented."""
    source = Path(headrace.__file__).parent
    for file in source.rglob("*.py"):
        if _COMPILED.search(file.read_text("utf-8")):
            yield ".".join(("headrace", *file.relative_to(source).with_suffix("").parts))


def main() -> None:
    """Write the seeds and begin, or run one file."""
    name, corpus, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["headrace"], exclude=list(_compiled_modules())):
        target, seeds = TARGETS[name]()
    place = Path(corpus)
    if not place.is_file():
        place.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds):
            (place / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], corpus, *options], target)
    atheris.Fuzz()


main()
