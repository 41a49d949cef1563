"""Checks the rules for tests that can be seen in their text (CONTRIBUTING.md, "Tests").

* No upper bound on time, or on a process's memory, outside tests marked ``timing``.
* No ``while`` without a deadline in tests of other processes: the loop compares a clock or a count, or its
  condition ends when the test sets a flag or closes a socket or file.
* A process's threads and descriptors are counted only by programs that tests start; looking one up is fine.
* ``tests/flaky.toml`` lists tests that exist, with a reason and a date at most 14 days ahead.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from tests.lanes import home_of

ROOT = Path(__file__).resolve().parent.parent
CLOCKS = {
    name + unit
    for name in ("monotonic", "perf_counter", "thread_time", "process_time")
    for unit in ("", "_ns")
} | {"time_ns"}
MEASURES = {"ru_maxrss", "rss", "rss_bytes", "longest_seconds", "slowest", "slowest_seconds"} | {
    "elapsed",
    "took",
}
DEADLINES = ("deadline", "until")
ENDED_BY_OTHERS = {"is_set", "wait", "recv", "recv_into", "recvfrom", "read", "readline"}
"""Calls that end when the test sets a flag or closes a socket or file."""
FLAGS = {"is_set", "wait"}
RAISING = {"accept", "sendall"}
"""Calls that raise once the socket or its other end is closed: they end any loop."""
OWN_PROCESS = re.compile(r"\bthreading\.enumerate\(|/proc/(self|\{os\.getpid\(\)\})/(fd|task)\b|/dev/fd\b")
FLAKY_DAYS = 14

BOUND = "upper bound on time or memory; mark the test `timing`, or assert a count"
ENDLESS = "`while` without a deadline; compare time.monotonic() with one"
COUNTED = (
    "counts threads or descriptors of pytest's own process; count them in a program that the test starts"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.ClassDef
Loop = ast.While | ast.For | ast.AsyncFor
ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE


def names_in(node: ast.AST) -> set[str]:
    """Return all names and attributes that a piece of code uses."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a piece of code."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def called_in(node: ast.AST) -> set[str]:
    """Return the names of the functions and methods that a piece of code calls."""
    functions = [call.func for call in calls_in(node)]
    names = {one.attr for one in functions if isinstance(one, ast.Attribute)}
    return names | {one.id for one in functions if isinstance(one, ast.Name)}


def reads_clock(node: ast.AST) -> bool:
    """Tell whether a piece of code reads a clock, such as ``time.time()`` or ``loop.time()``."""
    return bool(CLOCKS & names_in(node)) or "time" in called_in(node)


# ---- Upper bounds ----


def assignments_in(function: ast.AST) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    """Yield the targets and the value of each assignment, loop and ``append`` in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield node.targets, node.value
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield [node.target], node.value
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield [node.target], node.iter
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append"
        ):
            yield [node.func.value], node.args[0]


def stored_in(*targets: ast.expr) -> set[str]:
    """Return the names and attributes that an assignment stores in."""
    names: set[str] = set()
    for one in targets:
        if isinstance(one, ast.Tuple | ast.List):
            names |= stored_in(*one.elts)
        elif isinstance(one, ast.Subscript | ast.Starred):
            names |= stored_in(one.value)
        elif isinstance(one, ast.Name | ast.Attribute):
            names.add(one.id if isinstance(one, ast.Name) else one.attr)
    return names


class Measured:
    """The names in a function that hold clock readings, and those that hold measured times or sizes.

    Attributes:
        readings: Names of points in time.
        names: Names of differences of such, of sizes, and of values computed from them.
    """

    def __init__(self, function: ast.AST) -> None:
        """Find the names by following the function's assignments until no more are found."""
        self.readings: set[str] = set()
        self.names: set[str] = set()
        before, assignments = -1, list(assignments_in(function))
        while before < len(self.readings) + len(self.names):
            before = len(self.readings) + len(self.names)
            for targets, value in assignments:
                if self.holds(value):
                    self.names |= stored_in(*targets)
                elif self.is_reading(value):
                    self.readings |= stored_in(*targets)

    def is_reading(self, node: ast.AST) -> bool:
        """Tell whether an expression is computed from clock readings."""
        return reads_clock(node) or bool(self.readings & names_in(node))

    def holds(self, node: ast.AST) -> bool:
        """Tell whether an expression is a measured time or size, such as a difference of clock readings."""
        if (self.names | MEASURES) & names_in(node):
            return True
        return any(
            isinstance(one, ast.BinOp)
            and isinstance(one.op, ast.Sub)
            and self.is_reading(one.left)
            and (self.is_reading(one.right) or isinstance(one.right, ast.Name | ast.Attribute))
            for one in ast.walk(node)
        )


def comparisons(node: ast.AST, holds: bool) -> Iterator[tuple[ast.Compare, bool]]:
    """Yield the comparisons in a condition, and whether each holds where the condition has that value."""
    if isinstance(node, ast.Compare):
        yield node, holds
    for child in ast.iter_child_nodes(node):
        yield from comparisons(
            child, holds != (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
        )


def asserted(function: ast.AST) -> Iterator[tuple[int, ast.Compare, bool]]:
    """Yield line, comparison and expected value of assertions, and of ``if``s whose body fails."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            yield from ((node.lineno, *one) for one in comparisons(node.test, True))
        elif isinstance(node, ast.If) and any(
            isinstance(one, ast.Raise) or "fail" in called_in(one) for one in node.body
        ):
            yield from ((node.lineno, *one) for one in comparisons(node.test, False))


def upper_bounds(function: ast.AST) -> Iterator[int]:
    """Yield the lines of assertions that bound a measured time or size from above."""
    measured = Measured(function)
    polled = {inner for loop in ast.walk(function) if isinstance(loop, Loop) for inner in ast.walk(loop)}
    for line, comparison, holds in asserted(function):
        sides = [comparison.left, *comparison.comparators]
        for left, operator, right in zip(sides, comparison.ops, sides[1:], strict=False):
            smaller = left if isinstance(operator, ast.Lt | ast.LtE) == holds else right
            late = comparison not in polled and reads_clock(smaller)
            if isinstance(operator, ORDERS) and (late or measured.holds(smaller)):
                yield line


def is_timing(node: ast.Module | Scope) -> bool:
    """Tell whether a module, class or function is marked ``timing`` as a whole."""
    if not isinstance(node, ast.Module) and any(
        ast.unparse(one).startswith("pytest.mark.timing") for one in node.decorator_list
    ):
        return True
    return not isinstance(node, Function) and any(
        isinstance(one, ast.Assign) and {"pytestmark", "timing"} <= names_in(one) for one in node.body
    )


def functions_of(node: ast.Module | Scope, timing: bool = False) -> Iterator[tuple[Function, bool]]:
    """Yield a module's functions and methods, and whether each is marked ``timing``."""
    timing = timing or is_timing(node)
    if isinstance(node, Function):
        yield node, timing
        return
    for one in node.body:
        if isinstance(one, Scope):
            yield from functions_of(one, timing)


# ---- Loops ----


def grown_in(loop: ast.While) -> set[str]:
    """Return the names that a loop increases, or sets to a clock reading."""
    return {
        name
        for node in ast.walk(loop)
        for targets, value in (assignments_in(node) if isinstance(node, ast.stmt) else ())
        for name in stored_in(*targets)
        if isinstance(node, ast.AugAssign) or name in names_in(value) or reads_clock(value)
    }


def is_limit(comparison: ast.Compare, grown: set[str]) -> bool:
    """Tell whether a comparison in a loop is with a clock, a deadline or a count."""
    names = names_in(comparison)
    if reads_clock(comparison) or any(name.rpartition("_")[2] in DEADLINES for name in names):
        return True
    return bool(names & grown) and not isinstance(comparison.ops[0], ast.Eq | ast.NotEq)


def is_ended_by_others(condition: ast.expr) -> bool:
    """Tell whether a loop's condition ends when a flag is set, or a socket or file has no more."""
    if isinstance(condition, ast.BoolOp):
        parts = [is_ended_by_others(one) for one in condition.values]
        return any(parts) if isinstance(condition.op, ast.And) else all(parts)
    if isinstance(condition, ast.UnaryOp):
        return isinstance(condition.operand, ast.Call) and bool(FLAGS & called_in(condition.operand))
    if isinstance(condition, ast.Compare) and not isinstance(condition.ops[0], ast.Eq):
        return False
    return bool((ENDED_BY_OTHERS - FLAGS) & called_in(condition))


def has_deadline(loop: ast.While) -> bool:
    """Tell whether a loop has a deadline, a count, or a limited wait."""
    if any(isinstance(one, ast.Compare) and is_limit(one, set()) for one in ast.walk(loop)):
        return True
    grown, conditions = (
        grown_in(loop),
        [loop.test, *(one.test for one in loop.body if isinstance(one, ast.If))],
    )
    if any(is_limit(one, grown) for condition in conditions for one, _ in comparisons(condition, True)):
        return True
    return is_ended_by_others(loop.test) or bool(RAISING & called_in(loop))


def endless_loops(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of loops without a deadline that are not inside ``async with asyncio.timeout(…)``."""
    timed = {
        inner
        for block in ast.walk(tree)
        if isinstance(block, ast.AsyncWith)
        and any("timeout" in names_in(one.context_expr) for one in block.items)
        for inner in ast.walk(block)
    }
    for loop in (one for one in ast.walk(tree) if isinstance(one, ast.While)):
        if loop not in timed and not has_deadline(loop):
            yield loop.lineno


# ---- Counts of this process ----


def is_of_this_process(node: ast.AST) -> bool:
    """Tell whether an expression lists all threads or descriptors of this process."""
    chosen = any(isinstance(one, ast.comprehension) and one.ifs for one in ast.walk(node))
    return not chosen and OWN_PROCESS.search(ast.unparse(node)) is not None


def counts_of_this_process(scope: ast.AST) -> Iterator[int]:
    """Yield the lines that count threads or descriptors of this process."""
    values = [(targets, value) for targets, value in assignments_in(scope) if is_of_this_process(value)]
    lists = {one.id for targets, _ in values for one in targets if isinstance(one, ast.Name)}
    for call in calls_in(scope):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        if name == "len":
            counts = is_of_this_process(call) or ast.unparse(call.args[0]) in lists
        else:  # ``psutil.Process(pid)`` is another process
            own = name in ("num_fds", "num_threads") and not any(one.args for one in calls_in(call.func))
            counts = own or name == "active_count"
        if counts:
            yield call.lineno


def broken_rules(path: str, text: str) -> Iterator[str]:
    """Yield a line for each rule that a file of tests breaks."""
    tree = ast.parse(text, path)
    for function, timing in functions_of(tree):
        if not timing:
            yield from (f"{path}:{line}: {BOUND}" for line in upper_bounds(function))
        yield from (f"{path}:{line}: {COUNTED}" for line in counts_of_this_process(function))
    is_helper = Path(path).parent == Path("tests")
    if is_helper or home_of(ROOT, path) != "fast":
        yield from (f"{path}:{line}: {ENDLESS}" for line in endless_loops(tree))


# ---- The list of flaky tests ----


def exists(test: str) -> bool:
    """Tell whether a test's file, classes and function exist; its parameters are not looked at."""
    file, *names = test.partition("[")[0].split("::")
    if not names or not (ROOT / file).is_file():
        return False
    bodies: list[ast.stmt] = ast.parse((ROOT / file).read_text("utf-8")).body
    for name in names:
        found = [one for one in bodies if isinstance(one, Scope) and one.name == name]
        if not found:
            return False
        bodies = found[0].body
    return True


def flaky_faults(text: str, today: date) -> Iterator[str]:
    """Yield the faults in the list of flaky tests."""
    tables = tomllib.loads(text)
    for name in tables.keys() - {"flaky"}:
        yield f"tests/flaky.toml: {name}: unknown table; entries are [[flaky]]"
    for entry in tables.get("flaky", []):
        test, until = entry.get("test", ""), entry.get("until")
        if not entry.get("reason"):
            yield f"tests/flaky.toml: {test}: no reason"
        if not exists(test):
            yield f"tests/flaky.toml: {test}: there is no such test"
        if type(until) is not date:  # a datetime is a date, too
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
