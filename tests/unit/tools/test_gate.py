"""What the gate decides: which failures get a second look, and which runs are red."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.gate import (
    MOST_FAILURES,
    Result,
    Run,
    Verdict,
    faults_of,
    judge,
    overall,
    read_log,
    to_look_at,
    why_not_passed,
)

FAILED = Result("tests/faults/test_a.py::test_a", "processes", outcome="failed", reason="assert 1 == 2")
PASSED = Result("tests/unit/test_b.py::test_b")
STEPS = [
    f"STEP {name}: ok (1 s); load 0.1 before, 0.2 after" for name in ("install", "check", "test", "rest")
]


def run(*tests: Result, exit_code: int = 1, uncollected: tuple[str, ...] = ()) -> Run:
    return Run(exit_code, tests, uncollected, reported_exit=exit_code)


def test_a_run_without_failures_is_green() -> None:
    verdict = judge([run(PASSED, exit_code=0)], {})
    assert (verdict.passed, verdict.failed, verdict.red) == (1, 0, [])


@pytest.mark.parametrize("lane", ["processes", "services", "rest"])
def test_a_failure_beside_others_gets_a_second_look(lane: str) -> None:
    failed = Result("tests/faults/test_a.py::test_a", lane, outcome="failed", reason="late")
    assert to_look_at([run(failed, PASSED)]) == [failed]


def test_two_passes_alone_are_green_and_flaky() -> None:
    verdict = judge([run(FAILED, PASSED)], {FAILED.name: []})
    assert verdict == Verdict(2, 0, 0, [f"{FAILED.name}: assert 1 == 2"], [])


@pytest.mark.parametrize("again", [["assert 1 == 2"], ["assert 1 == 2", "assert 1 == 3"]])
def test_a_failure_alone_is_red_with_all_reasons(again: list[str]) -> None:
    verdict = judge([run(FAILED)], {FAILED.name: again})
    assert verdict.failed == 1
    assert verdict.red == ["; alone: ".join([f"{FAILED.name}: assert 1 == 2", *again])]


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        (Result("t", "fast", outcome="failed", reason="r"), "lane fast"),
        (Result("t", "processes", exact=True, outcome="failed", reason="r"), "marked exact"),
        (Result("t", "rest", leak=True, outcome="failed", reason="r"), "leak"),
    ],
    ids=str,
)
def test_some_failures_are_red_at_once(failed: Result, said: str) -> None:
    runs = [run(failed, FAILED)]
    assert to_look_at(runs) == []
    verdict = judge(runs, {})
    assert verdict.failed == 2
    assert any(said in line for line in verdict.red)
    assert any(line.startswith(FAILED.name) for line in verdict.red)  # all reasons are given


@pytest.mark.parametrize("exit_code", [2, 3, 4, 5, 9, -11, 124])
def test_any_exit_code_but_0_and_1_is_red_at_once(exit_code: int) -> None:
    runs = [run(FAILED, exit_code=exit_code)]
    assert to_look_at(runs) == []
    assert f"pytest ended with {exit_code}" in faults_of(runs)[0]


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        (Run(0, (PASSED,), reported_exit=None), "its report log says nothing"),
        (Run(0, (FAILED,), reported_exit=1), "its report log says 1"),
        (Run(1, (FAILED,), reported_exit=1, cut=True), "its report log is cut off"),
        (Run(0, (Result("t", ended=False),)), "t: it did not end"),
        (Run(0, (PASSED,), lanes=("fast", "services")), "lane services: no test passed"),
        (Run(0, (Result("t", outcome="skipped"),), lanes=("fast",)), "lane fast: no test passed"),
    ],
    ids=["no end", "another end", "cut", "a test without end", "empty lane", "all skipped"],
)
def test_a_run_that_did_not_run_all_tests_to_their_end_is_red_at_once(faulty: Run, said: str) -> None:
    assert to_look_at([faulty]) == []
    assert any(said in line for line in judge([faulty], {}).red)


@pytest.mark.parametrize(
    ("alone", "reason"),
    [
        (Run(0, (Result("t"),)), None),
        (Run(1, (Result("t", outcome="failed", reason="late"),), reported_exit=1), "late"),
        (Run(0, (Result("t", outcome="skipped"),)), "skipped"),
        (Run(0, ()), "it ran 0 tests, not this one"),
        (Run(0, (Result("t", ended=False),)), "t: it did not end"),
        (Run(4, ()), "pytest ended with 4: wrong usage"),
    ],
    ids=str,
)
def test_only_a_pass_is_a_pass(alone: Run, reason: str | None) -> None:
    assert why_not_passed("t", alone) == reason


def test_a_run_that_failed_without_a_failed_test_is_red() -> None:
    assert faults_of([run(PASSED)])


def test_an_error_during_collection_is_red() -> None:
    assert judge([run(PASSED, exit_code=1, uncollected=("tests/unit/test_c.py",))], {}).red


@pytest.mark.parametrize(("failures", "looks"), [(MOST_FAILURES, MOST_FAILURES), (MOST_FAILURES + 1, 0)])
def test_many_failures_get_no_second_look(failures: int, looks: int) -> None:
    runs = [run(*(Result(f"t{n}", "rest", outcome="failed", reason="r") for n in range(failures)))]
    assert len(to_look_at(runs)) == looks


@pytest.mark.parametrize(("flaky", "is_red"), [(3, False), (4, True)])
def test_more_than_three_flaky_tests_are_red(flaky: int, is_red: bool) -> None:
    failed = [Result(f"t{number}", "rest", outcome="failed", reason="r") for number in range(flaky)]
    assert bool(judge([run(*failed)], {test.name: [] for test in failed}).red) is is_red


def test_all_steps_together_are_green_if_each_is() -> None:
    assert overall(STEPS, {"test": Verdict(5), "rest": Verdict(5, flaky=["a"])}) == []


def test_many_flaky_tests_of_one_step_are_told_once() -> None:
    red = "4 tests are flaky; at most 3 may be"
    verdicts = {"test": Verdict(flaky=["a", "b", "c", "d"], red=[red]), "rest": Verdict()}
    assert overall(STEPS, verdicts) == [red]


@pytest.mark.parametrize(
    ("steps", "verdicts", "said"),
    [
        (STEPS[:3], {}, "step rest did not run"),
        ([*STEPS[:3], "STEP rest: FAILED (3 s)"], {}, "step rest failed"),
        (STEPS, {"test": Verdict(5)}, "step rest kept no verdict"),
        (STEPS, {"test": Verdict(red=["t: r"])}, "t: r"),
        (STEPS, {"test": Verdict(flaky=["a", "b"]), "rest": Verdict(flaky=["c", "d"])}, "4 tests are flaky"),
    ],
    ids=["missing", "failed", "no verdict", "red", "flaky in sum"],
)
def test_all_steps_together_are_red_if_one_is(
    steps: list[str], verdicts: dict[str, Verdict], said: str
) -> None:
    assert any(said in line for line in overall(steps, verdicts))


def report(when: str, outcome: str = "passed", longrepr: object = None, *marks: str) -> str:
    return json.dumps(
        {
            "$report_type": "TestReport",
            "nodeid": "tests/faults/test_a.py::test_a",
            "when": when,
            "outcome": outcome,
            "duration": 1.0,
            "longrepr": longrepr,
            "keywords": dict.fromkeys(marks, 1),
            "user_properties": [["lane", "rest"]],
        }
    )


END = json.dumps({"$report_type": "SessionFinish", "exitstatus": 1})
THREAD = "pytest.PytestUnhandledThreadExceptionWarning: Exception in thread Thread-3"


def test_a_test_is_its_three_phases() -> None:
    failure = {"reprcrash": {"message": "AssertionError: it is late\nassert 1 == 2"}}
    lines = [report("setup"), report("call", "failed", failure, "exact"), report("teardown"), END]
    run = read_log(lines, 1)
    (test,) = run.tests
    assert (test.lane, test.exact, test.outcome, test.seconds) == ("rest", True, "failed", 3.0)
    assert (test.reason, test.ended) == ("AssertionError: it is late", True)
    assert (run.uncollected, run.reported_exit, run.cut) == ((), 1, False)


def test_a_test_whose_last_phase_is_not_reported_has_not_ended() -> None:
    (test,) = read_log([report("setup"), report("call")], 0).tests
    assert not test.ended


@pytest.mark.parametrize(
    "message",
    [
        "pytest.PytestUnraisableExceptionWarning: Exception ignored in: <socket>",
        THREAD,
        "worker 'gw1' crashed while running 'tests/faults/test_a.py::test_a'",
    ],
)
def test_leaks_and_crashes_are_told_from_failures(message: str) -> None:
    (test,) = read_log([report("???", "failed", message)], 1).tests
    assert test.leak
    assert test.ended


def test_a_leak_is_seen_although_the_test_failed_before() -> None:
    (test,) = read_log(
        [report("call", "failed", "assert 1 == 2"), report("teardown", "failed", THREAD)], 1
    ).tests
    assert test.leak
    assert test.reason == f"assert 1 == 2; {THREAD}"


def test_the_lane_is_what_the_plugin_says() -> None:
    own = json.loads(report("call"))
    own["user_properties"].append(["lane", "processes"])
    (test,) = read_log([json.dumps(own)], 0).tests
    assert test.lane == "rest"


@pytest.mark.parametrize(("outcome", "found"), [("failed", ("tests/unit/test_c.py",)), ("skipped", ())])
def test_files_that_cannot_be_collected_are_reported_and_skipped_ones_counted(
    outcome: str, found: tuple[str, ...]
) -> None:
    line = {"$report_type": "CollectReport", "nodeid": "tests/unit/test_c.py", "outcome": outcome}
    run = read_log([json.dumps(line)], 0)
    assert (run.uncollected, run.skipped_files) == (found, int(outcome == "skipped"))
    assert judge([run], {}).skipped == run.skipped_files


def test_a_log_that_is_cut_off_is_a_fault() -> None:
    run = read_log([report("setup"), '{"$report_type": "Test'], 1)
    assert run.cut
    assert faults_of([run])


@pytest.mark.parametrize("module", ["tools.gate", "tools.step"])
def test_steps_need_only_the_standard_library(module: str) -> None:
    """Continuous integration runs them with the system's Python, before anything is installed."""
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-S", "-c", f"import {module}"], cwd=root, check=True)
