"""What the gate decides: which failures get a second look, and which runs are red."""

from __future__ import annotations

import json

import pytest

from tools.gate import MOST_FAILURES, Result, Run, Verdict, faults_of, judge, overall, reported, to_look_at

FAILED = Result("tests/faults/test_a.py::test_a", "processes", outcome="failed", reason="assert 1 == 2")
PASSED = Result("tests/unit/test_b.py::test_b")
STEPS = [
    f"STEP {name}: ok (1 s); load 0.1 before, 0.2 after" for name in ("install", "check", "test", "rest")
]


def run(*tests: Result, exit_code: int = 1, uncollected: tuple[str, ...] = ()) -> Run:
    return Run(exit_code, tests, uncollected)


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


@pytest.mark.parametrize(
    ("steps", "verdicts", "said"),
    [
        (STEPS[:3], {}, "step rest did not run"),
        ([*STEPS[:3], "STEP rest: FAILED (3 s)"], {}, "step rest failed"),
        (STEPS, {"test": Verdict(red=["t: r"])}, "t: r"),
        (STEPS, {"test": Verdict(flaky=["a", "b"]), "rest": Verdict(flaky=["c", "d"])}, "4 tests are flaky"),
    ],
    ids=["missing", "failed", "red", "flaky in sum"],
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


def test_a_test_is_its_three_phases() -> None:
    failure = {"reprcrash": {"message": "AssertionError: it is late\nassert 1 == 2"}}
    lines = [report("setup"), report("call", "failed", failure, "exact"), report("teardown")]
    tests, uncollected = reported(lines)
    (test,) = tests
    assert (test.lane, test.exact, test.outcome, test.seconds) == ("rest", True, "failed", 3.0)
    assert test.reason == "AssertionError: it is late"
    assert uncollected == ()


@pytest.mark.parametrize(
    "message",
    [
        "pytest.PytestUnraisableExceptionWarning: Exception ignored in: <socket>",
        "pytest.PytestUnhandledThreadExceptionWarning: Exception in thread Thread-3",
        "worker 'gw1' crashed while running 'tests/faults/test_a.py::test_a'",
    ],
)
def test_leaks_and_crashes_are_told_from_failures(message: str) -> None:
    ((test,), _) = reported([report("call", "failed", message)])
    assert test.leak


def test_a_file_that_cannot_be_collected_is_reported() -> None:
    line = json.dumps(
        {"$report_type": "CollectReport", "nodeid": "tests/unit/test_c.py", "outcome": "failed"}
    )
    assert reported([line]) == ((), ("tests/unit/test_c.py",))
