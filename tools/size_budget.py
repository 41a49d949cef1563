"""Checks the size budget: functions, files and parameter lists stay small enough to be read at once.

A file whose first line is ``# Longer than 500 lines: REASON`` may have up to 700.

Prints the 90th percentiles and the largest of each; exits 1 when something is over.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOTS = ("src", "tests", "tools", "demo", "benchmarks")
GENERATED_SUFFIXES = ("_pb2.py",)
LIMITS = {"function lines": 60, "file lines": 500, "long file lines": 700, "parameters": 6}
ALLOWANCE = re.compile(r"# Longer than 500 lines: \S+ \S+")
"""First line of a file that may be longer; the reason has two words or more."""

SHOWN = 3


@dataclass(frozen=True, slots=True)
class Measure:
    """The size of one thing.

    Attributes:
        kind: What was counted, a key of ``LIMITS``.
        where: The file, line and name.
        size: The count.
    """

    kind: str
    where: str
    size: int


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters a caller may pass; self, cls, * and ** are not among them."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args]
    bound = bool(named) and named[0].arg in ("self", "cls")
    return len(named) - bound + len(arguments.kwonlyargs)


def measure(path: Path, text: str) -> Iterator[Measure]:
    """Measure one file: itself, and every function in it, docstrings included."""
    kind = "long file lines" if ALLOWANCE.match(text) else "file lines"
    yield Measure(kind, str(path), text.count("\n"))
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{path}:{node.lineno} {node.name}"
            yield Measure("function lines", where, (node.end_lineno or node.lineno) - node.lineno + 1)
            yield Measure("parameters", where, parameters(node))


def percentile_90(sizes: Iterable[int]) -> int:
    """Give the size that nine of ten do not exceed."""
    ordered = sorted(sizes)
    return ordered[(9 * (len(ordered) - 1) + 9) // 10] if ordered else 0


def sources(roots: Iterable[str]) -> Iterator[Path]:
    """Give the files that the budget holds for."""
    for root in roots:
        for path in sorted(Path(root).rglob("*.py")):
            if not path.name.endswith(GENERATED_SUFFIXES):
                yield path


def main(arguments: list[str]) -> int:
    """Measure the roots given, or all, and report."""
    measures = [
        found for path in sources(arguments or ROOTS) for found in measure(path, path.read_text("utf-8"))
    ]
    over = 0
    for kind, limit in LIMITS.items():
        found = sorted((one for one in measures if one.kind == kind), key=lambda one: -one.size)
        p90 = percentile_90(one.size for one in found)
        print(f"{kind}: limit {limit}, 90 % at most {p90}, of {len(found)}")
        too_large = [one for one in found if one.size > limit]
        over += len(too_large)
        for one in too_large or found[:SHOWN]:
            print(f"  {'OVER' if one.size > limit else '    '} {one.size:4} {one.where}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
