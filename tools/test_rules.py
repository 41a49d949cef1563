"""Checks the rules for tests that can be seen in their text (CONTRIBUTING.md, "Tests").

* No upper bound on time, or on a process's memory, outside tests marked ``timing``.
* No ``while`` without a deadline in tests of other processes: the loop reads a clock, counts, or waits for
  a flag, socket or file that the test controls.
* A process's threads and descriptors are counted only by programs that tests start; looking one up is fine.
* ``tests/flaky.toml`` lists tests that exist, with a reason and a date at most 14 days ahead.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLOCKS = {"monotonic", "perf_counter", "thread_time", "process_time", "monotonic_ns", "perf_counter_ns"}
MEASURES = {"ru_maxrss", "rss_bytes", "longest_seconds", "slowest", "slowest_seconds", "elapsed", "took"}
OF_OTHERS = ("tests/faults/", "tests/end_to_end/")
PROC_OF_THIS_PROCESS = {"/proc/self/fd", "/proc/self/task", "/dev/fd"}
DEADLINES = ("deadline", "until", "end", "due", "over")
ENDED_BY_OTHERS = {
    "is_set",
    "wait",
    "recv",
    "recv_into",
    "read",
    "readline",
    "recvfrom",
    "sendall",
    "write",
    "accept",
}
"""A flag that the test sets, or a socket or file whose other end or size the test decides."""
FLAKY_DAYS = 14

Function = ast.FunctionDef | ast.AsyncFunctionDef


def names_in(node: ast.AST) -> set[str]:
    """Return all names and attributes that a piece of code uses."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a piece of code."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def is_measured(node: ast.AST, measured: set[str]) -> bool:
    """Tell whether an expression is a measured time or size, such as a difference of clock readings."""
    if any(isinstance(one, ast.Name) and one.id in measured for one in ast.walk(node)):
        return True
    if MEASURES & names_in(node):
        return True
    differences = (
        one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub)
    )
    return any(CLOCKS & names_in(one) for one in differences)


def assignments_in(function: ast.AST) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    """Yield the targets and the value of each assignment and of each ``append`` in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield node.targets, node.value
        elif isinstance(node, ast.AugAssign):
            yield [node.target], node.value
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append"
        ):
            yield [node.func.value], node.args[0]


def measured_names(function: ast.AST) -> set[str]:
    """Return the names in a function that hold measured times or sizes, or are computed from such."""
    measured: set[str] = set()
    while True:
        values = (targets for targets, value in assignments_in(function) if is_measured(value, measured))
        targets = [one for some in values for target in some for one in ast.walk(target)]
        found = measured | {one.id for one in targets if isinstance(one, ast.Name)}
        if found == measured:
            return measured
        measured = found


def upper_bounds(function: ast.AST) -> Iterator[int]:
    """Yield the lines of assertions that a measured time or size is at most something."""
    measured = measured_names(function)
    for node in (one for one in ast.walk(function) if isinstance(one, ast.Assert)):
        for comparison in (one for one in ast.walk(node.test) if isinstance(one, ast.Compare)):
            sides = [comparison.left, *comparison.comparators]
            for left, operator, right in zip(sides, comparison.ops, sides[1:], strict=False):
                smaller = left if isinstance(operator, ast.Lt | ast.LtE) else right
                if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and is_measured(
                    smaller, measured
                ):
                    yield node.lineno


def is_timing(node: ast.AST) -> bool:
    """Tell whether a function is marked ``timing``."""
    return isinstance(node, Function) and any("timing" in names_in(one) for one in node.decorator_list)


def functions_of(tree: ast.Module) -> Iterator[Function]:
    """Yield the functions of a module and the methods of its classes, not those inside them."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from (one for one in node.body if isinstance(one, Function))


def has_deadline(loop: ast.While) -> bool:
    """Tell whether a loop reads a clock, waits for a limited time, or ends when its test does."""
    names = names_in(loop)
    if (CLOCKS | ENDED_BY_OTHERS) & names or any(name.rpartition("_")[2] in DEADLINES for name in names):
        return True
    if isinstance(loop.test, ast.Compare) and isinstance(loop.test.ops[0], ast.Lt | ast.GtE):
        return True  # it counts
    return any(word.arg in ("timeout", "seconds") for call in calls_in(loop) for word in call.keywords)


def timed_blocks(function: Function) -> Iterator[ast.AsyncWith]:
    """Yield the ``async with asyncio.timeout(…)`` blocks of a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.AsyncWith) and any(
            "timeout" in names_in(one.context_expr) for one in node.items
        ):
            yield node


def counts_this_process(call: ast.Call) -> bool:
    """Tell whether a call counts threads or descriptors of this process."""
    if isinstance(call.func, ast.Name) and call.func.id == "len":
        texts = {one.value for one in ast.walk(call) if isinstance(one, ast.Constant)}
        return {"threading", "enumerate"} <= names_in(call.args[0]) or bool(texts & PROC_OF_THIS_PROCESS)
    return {"threading", "active_count"} <= names_in(call.func)


def broken_rules(path: str, text: str) -> Iterator[str]:
    """Yield a line for each rule that a file of tests breaks."""
    tree = ast.parse(text, path)
    marked = any(
        isinstance(node, ast.Assign) and "pytestmark" in names_in(node) and "timing" in names_in(node)
        for node in tree.body
    )
    for function in functions_of(tree):
        if not marked and not is_timing(function):
            for line in upper_bounds(function):
                yield f"{path}:{line}: an upper bound on time or memory outside a test marked `timing`"
        if path.startswith(OF_OTHERS):
            timed = {inner for block in timed_blocks(function) for inner in ast.walk(block)}
            for loop in (one for one in ast.walk(function) if isinstance(one, ast.While)):
                if loop not in timed and not has_deadline(loop):
                    yield f"{path}:{loop.lineno}: a `while` without a deadline"
    for call in calls_in(tree):
        if counts_this_process(call):
            yield f"{path}:{call.lineno}: threads and descriptors are counted in a process of their own"


def flaky_faults(text: str, today: date) -> Iterator[str]:
    """Yield what is wrong with the list of flaky tests."""
    for entry in tomllib.loads(text).get("flaky", []):
        test, until = entry.get("test", ""), entry.get("until")
        file, _, name = test.partition("::")
        if not entry.get("reason"):
            yield f"tests/flaky.toml: {test}: no reason"
        if not (ROOT / file).is_file() or f"def {name.partition('[')[0]}(" not in (ROOT / file).read_text(
            "utf-8"
        ):
            yield f"tests/flaky.toml: {test}: there is no such test"
        if not isinstance(until, date):
            yield f"tests/flaky.toml: {test}: `until` is a date, such as {today + timedelta(days=7)}"
        elif until < today:
            yield f"tests/flaky.toml: {test}: was to be mended by {until}"
        elif until > today + timedelta(days=FLAKY_DAYS):
            yield f"tests/flaky.toml: {test}: {until} is more than {FLAKY_DAYS} days ahead"


def main() -> int:
    """Check all tests, print what breaks a rule, and return an exit code."""
    found = [
        line
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in broken_rules(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]
    found += flaky_faults((ROOT / "tests/flaky.toml").read_text("utf-8"), datetime.now(UTC).date())
    print("\n".join([*found, f"rules for tests: {len(found)} broken"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
