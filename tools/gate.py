"""`python -m tools.gate test|rest|summary`: run the test suite, and tell faults from false alarms.

``test`` runs the lanes fast and processes side by side, then services; ``rest`` runs the lane of that
name (``tests/lanes.py`` defines them). A test that fails in the lanes processes, services or rest gets a
second look: after everything else has ended, it runs alone, in a fresh process, twice. If it passes twice,
the run is green and reports the test as FLAKY; anything else is red. CONTRIBUTING.md has the rules.

``summary`` prints the results of all steps of continuous integration, with the totals last.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.step import STEPS

RUNS: dict[str, tuple[tuple[tuple[str, ...], int], ...]] = {
    "test": ((("fast", "processes"), 2), (("services",), 0)),
    "rest": ((("rest",), 2),),
}
"""Which lanes follow each other, and how many workers of pytest-xdist run each; 0 is pytest alone."""
SECOND_LOOK_LANES = ("processes", "services", "rest")
LOOKS = 2
MOST_FAILURES = 8
MOST_FLAKY = 3
SLOW_SECONDS = 10.0
SLOWEST_SHOWN = 10
LONGEST_LANES_SECONDS = 3600.0
LONGEST_LOOK_SECONDS = 400.0  # more than the time limit of any test
STEP_NAMES = ("install", "check", "test", "rest")

PYTEST_ENDS = {
    0: "all passed",
    1: "tests failed",
    2: "interrupted, or an error during collection",
    3: "internal error",
    4: "wrong usage",
    5: "no tests",
    9: "processes or threads left running",
}
# Raised where an object is freed or a thread ends, in whatever test runs at that moment.
LEAKS = re.compile(r"Pytest(UnraisableException|UnhandledThreadException|UnhandledCoroutine)Warning")
CRASH = re.compile(r"worker '\w+' crashed while running")


@dataclass(frozen=True, slots=True)
class Result:
    """What a run reported of one test.

    Attributes:
        name: pytest's node id.
        lane: Its lane.
        exact: Whether it is marked ``exact``.
        outcome: "passed", "failed" or "skipped".
        seconds: Set-up, call and tear-down together.
        reason: The first line of the failure.
        leak: Whether the failure is an unraisable or thread exception, or a crash of the interpreter: it may
            come from an earlier test.
    """

    name: str
    lane: str = "fast"
    exact: bool = False
    outcome: str = "passed"
    seconds: float = 0.0
    reason: str = ""
    leak: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest: its exit code, its tests, and the files that it could not collect."""

    exit_code: int
    tests: tuple[Result, ...]
    uncollected: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class Verdict:
    """What the gate decided about one step; ``.data/gate/STEP.json`` keeps it.

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
    """Return what went wrong with whole runs; no test gets a second look then."""
    found = [f"{file}: error during collection" for run in runs for file in run.uncollected]
    for run in runs:
        if run.exit_code not in (0, 1):
            found.append(f"pytest ended with {run.exit_code}: {PYTEST_ENDS.get(run.exit_code, 'it crashed')}")
        elif run.exit_code == 1 and not failures_of([run]):
            found.append("pytest ended with 1 and reported no failed test")
    if (count := len(failures_of(runs))) > MOST_FAILURES:
        found.append(f"{count} tests failed; at most {MOST_FAILURES} get a second look")
    return found


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
        looks: For each test that got a second look, why it failed then: nothing if it passed twice.
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
    return verdict


def overall(steps: Sequence[str], verdicts: dict[str, Verdict]) -> list[str]:
    """Return the reasons why a whole run of continuous integration is red.

    Args:
        steps: The lines that ``tools/step.py`` kept.
        verdicts: What was decided about the steps that run tests.
    """
    ended = {line.split()[1].rstrip(":"): line for line in steps}
    found = [f"step {name} did not run" for name in STEP_NAMES if name not in ended]
    found += [f"step {name} failed" for name, line in ended.items() if ": FAILED" in line]
    found += [line for verdict in verdicts.values() for line in verdict.red]
    flaky = sum(len(verdict.flaky) for verdict in verdicts.values())
    if flaky > MOST_FLAKY:
        found.append(f"{flaky} tests are flaky; at most {MOST_FLAKY} may be")
    return found


# ---- pytest --------------------------------------------------------------------------------------


def reason_of(report: dict[str, Any]) -> str:
    """Return the first line of a report's failure."""
    failure = report.get("longrepr") or ""
    if isinstance(failure, dict):
        failure = (failure.get("reprcrash") or {}).get("message") or "failed"
    return next((line.strip() for line in str(failure).splitlines() if line.strip()), "failed")


def reported(lines: Iterable[str]) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    """Read the log of pytest-reportlog: the tests that ran, and the files that could not be collected."""
    results: dict[str, Result] = {}
    uncollected = []
    for report in map(json.loads, lines):
        kind, outcome = report.get("$report_type"), report.get("outcome")
        if kind == "CollectReport" and outcome == "failed":
            uncollected.append(report["nodeid"])
        if kind != "TestReport":
            continue
        name, told = report["nodeid"], json.dumps(report.get("longrepr"))
        test = results.get(name, Result(name))
        test = replace(
            test,
            lane=dict(report.get("user_properties") or ()).get("lane", test.lane),
            exact=test.exact or "exact" in report.get("keywords", ()),
            seconds=test.seconds + report.get("duration", 0.0),
        )
        if outcome == "failed" and test.outcome != "failed":
            leak = bool(LEAKS.search(told) or CRASH.search(told))
            test = replace(test, outcome="failed", reason=reason_of(report), leak=leak)
        elif outcome == "skipped" and test.outcome == "passed":
            test = replace(test, outcome="skipped")
        results[name] = test
    return tuple(results.values()), tuple(uncollected)


def run_pytest(name: str, arguments: Sequence[str], most_seconds: float) -> Run:
    """Run pytest in a process of its own and read its report, which stays in ``.data/gate/NAME.jsonl``."""
    log, began = STEPS.parent / f"{name}.jsonl", time.monotonic()
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--report-log={log}", *arguments]
    print(" ".join(["$ pytest", *arguments]), flush=True)
    try:
        code = subprocess.run(command, check=False, timeout=most_seconds).returncode
    except subprocess.TimeoutExpired:
        code = 124
    tests, uncollected = reported(log.read_text("utf-8").splitlines() if log.exists() else ())
    return Run(code, tests, uncollected, time.monotonic() - began)


def run_lanes(lanes: Sequence[str], workers: int, arguments: Sequence[str]) -> Run:
    """Run some lanes together, and print how long each took."""
    chosen = [f"--lane={lane}" for lane in lanes] + ([f"--numprocesses={workers}"] if workers else [])
    run = run_pytest("-".join(lanes), ["-q", *chosen, *arguments], LONGEST_LANES_SECONDS)
    for lane in lanes:
        tests = [test for test in run.tests if test.lane == lane]
        spent = sum(test.seconds for test in tests)
        print(
            f"LANE {lane}: {len(tests)} tests, {spent:.0f} s of tests, {run.seconds:.0f} s in all", flush=True
        )
    return run


def look_again(test: Result) -> list[str]:
    """Run a failed test alone, twice, and return why it failed: nothing if it passed twice."""
    alone = ["-q", "-p", "no:cacheprovider", test.name]
    runs = [run_pytest("alone", alone, LONGEST_LOOK_SECONDS) for _ in range(LOOKS)]
    return [
        next(
            (one.reason for one in run.tests if one.outcome == "failed"), f"pytest ended with {run.exit_code}"
        )
        for run in runs
        if run.exit_code != 0
    ]


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
    """Print a verdict, with the count of tests last."""
    for line in verdict.flaky:
        print(f"FLAKY: {line}")
    for line in verdict.red:
        print(f"FAILED: {line}")
    print(f"{verdict.passed} passed, {verdict.failed} failed, {verdict.skipped} skipped", flush=True)


def run_step(step: str, arguments: Sequence[str]) -> int:
    """Run the lanes of a step, look again at what failed, keep the verdict and return an exit code."""
    runs = [run_lanes(lanes, workers, arguments) for lanes, workers in RUNS[step]]
    if arguments:  # A selection may leave a lane without tests.
        runs = [replace(run, exit_code=0) if run.exit_code == 5 else run for run in runs]
    verdict = judge(runs, {test.name: look_again(test) for test in to_look_at(runs)})
    print_slowest(runs)
    print_verdict(verdict)
    kept(step).parent.mkdir(parents=True, exist_ok=True)
    kept(step).write_text(json.dumps(asdict(verdict), indent=1), encoding="utf-8")
    return 1 if verdict.red else 0


def summarize() -> int:
    """Print what all steps came to, and return an exit code."""
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
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=(*RUNS, "summary"))
    parser.add_argument("arguments", nargs="*", metavar="TEST", help="files or tests; all if none is named")
    options = parser.parse_args()
    return summarize() if options.step == "summary" else run_step(options.step, options.arguments)


if __name__ == "__main__":
    sys.exit(main())
