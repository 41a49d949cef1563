"""One target, fuzzed by atheris: ``python -m tests.fuzz.one TARGET CORPUS [libFuzzer's options]``.

The corpus is a directory; a file, such as a finding, is run once. It ends with libFuzzer's code: 0 when the
time is over, another after a finding, which it writes to a file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import atheris

import headrace
from tests.fuzz.targets import LAST, TARGETS

_COMPILED = re.compile(
    r"^(?:from|import) (?:numba|llvmlite)|^from headrace\.(?:compiled|standing) ", re.MULTILINE
)

_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_.-]{2,40}")
"""Words of the seeds, such as names of settings and headers, which are put into inputs as a whole."""


def _compiled_modules() -> Iterator[str]:
    """Modules with compiled kernels: numba cannot compile what is instrumented."""
    source = Path(headrace.__file__).parent
    for file in source.rglob("*.py"):
        if _COMPILED.search(file.read_text("utf-8")):
            yield ".".join(("headrace", *file.relative_to(source).with_suffix("").parts))


def _keeping(target: Callable[[bytes], None], file: Path) -> Callable[[bytes], None]:
    """Write an input that is a finding to a file at once: the process may end before libFuzzer does so."""

    def kept(data: bytes) -> None:
        try:
            target(data)
        except BaseException:
            file.write_bytes(data)
            raise

    return kept


def main() -> None:
    """Write the seeds and begin, or run one file."""
    name, corpus, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["headrace"], exclude=list(_compiled_modules())):
        target, seeds = TARGETS[name]()
    place = Path(corpus)
    if not place.is_file():
        place.mkdir(parents=True, exist_ok=True)
        words = set[bytes]()
        for number, seed in enumerate(seeds):
            (place / f"seed-{number}").write_bytes(seed)
            words.update(_WORD.findall(seed))
        dictionary = place.with_name("words")
        dictionary.write_bytes(b"".join(b'"%s"\n' % word for word in sorted(words)))
        options.append(f"-dict={dictionary}")
        target = _keeping(target, place.with_name(LAST))
    atheris.Setup([sys.argv[0], corpus, *options], target)
    atheris.Fuzz()


main()
