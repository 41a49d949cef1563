"""`python -m tools.gate test|rest|summary`: run the test suite, and tell faults from false alarms.

``test`` runs the lanes fast and processes side by side, then services; ``rest`` runs the lane of that
name (``tests/lanes.py`` defines them). A test that fails in the lanes processes, services or rest gets a
second look: after everything else has ended, it runs alone, in a fresh process, twice. If it passes twice,
the run is green and reports the test as FLAKY; anything else is red. CONTRIBUTING.md has the rules.

``summary`` prints the results of all steps of continuous integration, with the totals last. It needs only the
standard library: it also runs when the installation has failed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.step import BUDGET_SECONDS, LATE, STEPS
from tools.step import run as run_command

RUNS: dict[str, tuple[tuple[tuple[str, ...], int], ...]] = {
    "test": ((("fast", "processes"), 4), (("services",), 2)),
    "rest": ((("rest",), 4),),
}
"""Lanes of each step, in order, with the number of pytest-xdist workers."""
SECOND_LOOK_LANES = ("processes", "services", "rest")
LOOKS = 2
MOST_FAILURES = 8
MOST_FLAKY = 3
SLOW_SECONDS = 10.0
SLOWEST_SHOWN = 10
LONGEST_LANES_SECONDS = 3300.0
LONGEST_LOOK_SECONDS = 700.0  # must exceed the longest time limit of a test

# Exit codes of tests/lanes.py; pytest itself uses 0 to 5.
LEFT_RUNNING, NOT_RUN = 9, 10
PYTEST_ENDS = {
    0: "all passed",
    1: "tests failed",
    2: "interrupted, or an error during collection",
    3: "internal error",
    4: "wrong usage",
    5: "no tests",
    LEFT_RUNNING: "processes or threads left running",
    NOT_RUN: "tests were collected and did not run",
    LATE: "stopped, as its time was over",
}
# pytest reports these in whichever test is running, not in the one that caused them.
LEAKS = re.compile(r"Pytest(UnraisableException|UnhandledThreadException|UnhandledCoroutine)Warning")
CRASH = re.compile(r"worker '\w+' crashed while running")


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one test in one run.

    Attributes:
        name: pytest's node id.
        lane: Its lane.
        exact: Whether it is marked ``exact``.
        outcome: "passed", "failed" or "skipped".
        seconds: Set-up, call and tear-down together.
        reason: The first line of the failure.
        leak: Whether a failure is an unraisable or thread exception, or a crash of the interpreter: it may
            come from an earlier test.
        ended: Whether its tear-down was reported, or a crash of its process.
    """

    name: str
    lane: str = "fast"
    exact: bool = False
    outcome: str = "passed"
    seconds: float = 0.0
    reason: str = ""
    leak: bool = False
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest.

    Attributes:
        exit_code: The exit code of its process.
        tests: The tests that it ran.
        uncollected: Files that could not be collected.
        skipped_files: Number of files that skipped all their tests while they were collected.
        reported_exit: The exit code that pytest reported at the end of its session; None if it did not.
        cut: Whether the report log ends within a line.
        seconds: How long it took.
        lanes: Lanes in each of which some test must pass.
    """

    exit_code: int
    tests: tuple[Result, ...]
    uncollected: tuple[str, ...] = ()
    skipped_files: int = 0
    reported_exit: int | None = 0
    cut: bool = False
    seconds: float = 0.0
    lanes: tuple[str, ...] = ()


@dataclass(slots=True)
class Verdict:
    """The decision on one step, kept in ``.data/gate/STEP.json``.

    Attributes:
        passed: Number of tests that passed, flaky ones included.
        failed: Number of tests that failed.
        skipped: Number of tests that were skipped.
        flaky: A line for each test that failed among others and passed alone.
        red: A line for each reason why the step is red; it is green if there is none.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    flaky: list[str] = field(default_factory=list)
    red: list[str] = field(default_factory=list)


# ---- Decisions -----------------------------------------------------------------------------------


def faults_of(runs: Sequence[Run]) -> list[str]:
    """Return the faults of whole runs; any of them rules out a second look."""
    found = [line for run in runs for line in faults_of_run(run)]
    if (count := len(failures_of(runs))) > MOST_FAILURES:
        found.append(f"{count} tests failed; at most {MOST_FAILURES} get a second look")
    return found


def faults_of_run(run: Run) -> list[str]:
    """Return the faults of one run: a sign that some test did not run, or not to its end."""
    code = run.exit_code
    found = [f"{file}: error during collection" for file in run.uncollected]
    found += [f"{test.name}: it did not end" for test in run.tests if not test.ended]
    if code not in (0, 1):
        found.append(f"pytest ended with {code}: {PYTEST_ENDS.get(code, 'it crashed')}")
    elif run.cut:
        found.append(f"pytest ended with {code}, and its report log is cut off")
    elif run.reported_exit != code:
        told = "nothing" if run.reported_exit is None else run.reported_exit
        found.append(f"pytest ended with {code}, and its report log says {told}")
    elif code == 1 and not failures_of([run]):
        found.append("pytest ended with 1 and reported no failed test")
    passed = {test.lane for test in run.tests if test.outcome == "passed"}
    return found + [f"lane {lane}: no test passed" for lane in run.lanes if lane not in passed]


def failures_of(runs: Sequence[Run]) -> list[Result]:
    """Return the tests that failed."""
    return [test for run in runs for test in run.tests if test.outcome == "failed"]


def why_final(test: Result) -> str | None:
    """Say why a failed test gets no second look; None if it gets one."""
    if test.leak:
        return "a leak or a crash, maybe of an earlier test"
    if test.exact:
        return "marked exact"
    return None if test.lane in SECOND_LOOK_LANES else f"lane {test.lane}"


def to_look_at(runs: Sequence[Run]) -> list[Result]:
    """Return the tests that get a second look: none if the step is red anyway."""
    failures = failures_of(runs)
    return [] if faults_of(runs) or any(map(why_final, failures)) else failures


def judge(runs: Sequence[Run], looks: dict[str, list[str]]) -> Verdict:
    """Decide whether a step is green.

    Args:
        runs: The runs of its lanes.
        looks: Reasons of the failures in second looks, by test; an empty list means two passes.
    """
    tests = [test for run in runs for test in run.tests]
    verdict = Verdict(red=faults_of(runs), skipped=sum(test.outcome == "skipped" for test in tests))
    for test in failures_of(runs):
        line = f"{test.name}: {test.reason}"
        again = looks.get(test.name)
        if again is None:
            verdict.red.append(f"{line} ({why_final(test) or 'no second look'})")
        elif again:
            verdict.red.append("; alone: ".join([line, *again]))
        else:
            verdict.flaky.append(line)
    if len(verdict.flaky) > MOST_FLAKY:
        verdict.red.append(f"{len(verdict.flaky)} tests are flaky; at most {MOST_FLAKY} may be")
    verdict.failed = len(failures_of(runs)) - len(verdict.flaky)
    verdict.passed = len(tests) - verdict.skipped - verdict.failed
    verdict.skipped += sum(run.skipped_files for run in runs)
    return verdict


def overall(steps: Sequence[str], verdicts: dict[str, Verdict]) -> list[str]:
    """Return the reasons why a whole run of continuous integration is red.

    Args:
        steps: The lines that ``tools/step.py`` kept.
        verdicts: The verdicts of the steps that run tests.
    """
    ended = {line.split()[1].rstrip(":"): line for line in steps}
    found = [f"step {name} did not run" for name in BUDGET_SECONDS if name not in ended]
    found += [f"step {name} kept no verdict" for name in RUNS if name not in verdicts]
    found += [f"step {name} failed" for name, line in ended.items() if ": FAILED" in line]
    found += [line for verdict in verdicts.values() for line in verdict.red]
    each = [len(verdict.flaky) for verdict in verdicts.values()]
    if (flaky := sum(each)) > MOST_FLAKY >= max(each):  # more in one step is in its verdict
        found.append(f"{flaky} tests are flaky; at most {MOST_FLAKY} may be")
    return found


# ---- pytest --------------------------------------------------------------------------------------


def reason_of(report: dict[str, Any]) -> str:
    """Return the first line of a report's failure."""
    failure = report.get("longrepr") or ""
    if isinstance(failure, dict):
        failure = (failure.get("reprcrash") or {}).get("message") or "failed"
    return next((line.strip() for line in str(failure).splitlines() if line.strip()), "failed")


def read_log(lines: Iterable[str], exit_code: int) -> Run:
    """Read the log of pytest-reportlog.

    Args:
        lines: The lines of the log.
        exit_code: The exit code of pytest's process.
    """
    results: dict[str, Result] = {}
    uncollected, skipped_files, reported_exit, is_cut = [], 0, None, False
    for line in lines:
        try:
            report = json.loads(line)
        except ValueError:
            is_cut = True
            break
        kind, outcome = report.get("$report_type"), report.get("outcome")
        if kind == "CollectReport" and outcome == "failed":
            uncollected.append(report["nodeid"])
        elif kind == "CollectReport" and outcome == "skipped":
            skipped_files += 1
        elif kind == "SessionFinish":
            reported_exit = report["exitstatus"]
        elif kind == "TestReport":
            name = report["nodeid"]
            results[name] = with_phase(results.get(name, Result(name, ended=False)), report)
    return Run(exit_code, tuple(results.values()), tuple(uncollected), skipped_files, reported_exit, is_cut)


def with_phase(test: Result, report: dict[str, Any]) -> Result:
    """Add the report of one phase of a test to what the others said."""
    outcome = report.get("outcome")
    lanes = [value for key, value in report.get("user_properties") or () if key == "lane"]
    test = replace(
        test,
        lane=lanes[0] if lanes else test.lane,
        exact=test.exact or "exact" in report.get("keywords", ()),
        seconds=test.seconds + report.get("duration", 0.0),
        ended=test.ended or report.get("when") not in ("setup", "call"),
    )
    if outcome == "failed":
        told, first = json.dumps(report.get("longrepr")), test.outcome != "failed"
        return replace(
            test,
            outcome="failed",
            reason=reason_of(report) if first else f"{test.reason}; {reason_of(report)}",
            leak=test.leak or bool(LEAKS.search(told) or CRASH.search(told)),
        )
    return replace(test, outcome="skipped") if outcome == "skipped" and test.outcome == "passed" else test


def run_pytest(name: str, arguments: Sequence[str], most_seconds: float) -> Run:
    """Run pytest in a process of its own and read its report, which stays in ``.data/gate/NAME.jsonl``."""
    log, began = STEPS.parent / f"{name}.jsonl", time.monotonic()
    log.unlink(missing_ok=True)
    # The caller's own options for pytest could leave tests out.
    own = {key: value for key, value in os.environ.items() if key not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    command = [sys.executable, "-m", "pytest", f"--report-log={log}", *arguments]
    print(" ".join(["$ pytest", *arguments]), flush=True)
    code = run_command(command, most_seconds, own)
    run = read_log(log.read_text("utf-8").splitlines() if log.exists() else (), code)
    return replace(run, seconds=time.monotonic() - began)


def run_lanes(lanes: tuple[str, ...], workers: int, arguments: Sequence[str]) -> Run:
    """Run some lanes together, and print how long each took."""
    chosen = [*(f"--lane={lane}" for lane in lanes), f"--numprocesses={workers}"]
    run = run_pytest("-".join(lanes), ["-q", *chosen, *arguments], LONGEST_LANES_SECONDS)
    for lane in lanes:
        tests = [test for test in run.tests if test.lane == lane]
        spent = sum(test.seconds for test in tests)
        print(
            f"LANE {lane}: {len(tests)} tests, {spent:.0f} s of tests, {run.seconds:.0f} s in all", flush=True
        )
    if not arguments:
        return replace(run, lanes=lanes)
    # A selection may leave lanes without tests.
    return replace(run, exit_code=0, reported_exit=0) if run.exit_code == 5 else run


def look_again(test: Result) -> list[str]:
    """Run a failed test alone, twice, and return the reasons of its failures: none if it passed twice."""
    alone = ["-q", "-p", "no:cacheprovider", test.name]
    runs = [run_pytest(f"alone-{look}", alone, LONGEST_LOOK_SECONDS) for look in range(LOOKS)]
    return [reason for run in runs if (reason := why_not_passed(test.name, run))]


def why_not_passed(name: str, run: Run) -> str | None:
    """Say why a run of one test alone is no pass; None if it is."""
    if faults := faults_of_run(run):
        return "; ".join(faults)
    if [test.name for test in run.tests] != [name]:
        return f"it ran {len(run.tests)} tests, not this one"
    (test,) = run.tests
    return None if test.outcome == "passed" else test.reason or test.outcome


# ---- Steps ---------------------------------------------------------------------------------------


def print_slowest(runs: Sequence[Run]) -> None:
    """Print the slowest tests, and those too slow for their lane."""
    tests = sorted((test for run in runs for test in run.tests), key=lambda test: -test.seconds)
    print("the slowest tests:")
    for test in tests[:SLOWEST_SHOWN]:
        print(f"  {test.seconds:6.1f} s  {test.name}")
    for test in tests:
        if test.lane not in ("rest", "timing") and test.seconds > SLOW_SECONDS:
            print(f"SLOW: {test.name}: {test.seconds:.1f} s without the mark `rest`")


def kept(step: str) -> Path:
    """Return the file that keeps a step's verdict."""
    return STEPS.parent / f"{step}.json"


def print_verdict(verdict: Verdict) -> None:
    """Print a verdict, the counts last."""
    for line in verdict.flaky:
        print(f"FLAKY: {line}")
    for line in verdict.red:
        print(f"FAILED: {line}")
    print(f"{verdict.passed} passed, {verdict.failed} failed, {verdict.skipped} skipped", flush=True)


def run_step(step: str, arguments: Sequence[str]) -> int:
    """Run the lanes of a step, look again at what failed, keep the verdict and return an exit code."""
    kept(step).parent.mkdir(parents=True, exist_ok=True)
    with (STEPS.parent / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another gate runs in this folder: it holds {lock.name}", file=sys.stderr)
            return 2
        kept(step).unlink(missing_ok=True)
        runs = [run_lanes(lanes, workers, arguments) for lanes, workers in RUNS[step]]
        verdict = judge(runs, {test.name: look_again(test) for test in to_look_at(runs)})
        kept(step).write_text(json.dumps(asdict(verdict), indent=1), encoding="utf-8")
    print_slowest(runs)
    print_verdict(verdict)
    return 1 if verdict.red else 0


def summarize() -> int:
    """Print the results of all steps and return an exit code."""
    steps = STEPS.read_text("utf-8").splitlines() if STEPS.exists() else []
    verdicts = {
        name: Verdict(**json.loads(kept(name).read_text("utf-8"))) for name in RUNS if kept(name).exists()
    }
    print("\n".join(steps))
    each = verdicts.values()
    flaky = [line for verdict in each for line in verdict.flaky]
    passed, failed = sum(verdict.passed for verdict in each), sum(verdict.failed for verdict in each)
    red = overall(steps, verdicts)
    print_verdict(Verdict(passed, failed, sum(verdict.skipped for verdict in each), flaky, red))
    return 1 if red else 0


def main() -> int:
    """Parse the command line and run the step."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # reasons may be any text
    parser = argparse.ArgumentParser(
        prog="python -m tools.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=(*RUNS, "summary"))
    parser.add_argument("arguments", nargs="*", metavar="TEST", help="files or tests; all if none is named")
    options = parser.parse_args()
    missing = [one for one in options.arguments if not Path(one.partition("::")[0]).exists()]
    if missing:  # pytest-xdist would run nothing, and report no error
        parser.error(f"no such file: {', '.join(missing)}")
    return summarize() if options.step == "summary" else run_step(options.step, options.arguments)


if __name__ == "__main__":
    sys.exit(main())
