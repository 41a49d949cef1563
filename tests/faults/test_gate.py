"""The gate, run on small suites: each kind of fault turns it red, and a false alarm does not."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytestmark = pytest.mark.rest  # each starts pytest several times

ROOT = Path(__file__).resolve().parents[2]
LEFT_BEHIND = """
    import subprocess, sys
    def test_leaves_a_process():
        code = "import time; time.sleep(600)"
        left = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        left.returncode = 0  # or Python would warn of it
        open("left", "w").write(str(left.pid))
"""
PARENT_LEFT = """
    import subprocess, sys
    def test_leaves_a_grandchild():
        code = (
            "import subprocess, sys; n = subprocess.DEVNULL\\n"
            "left = [sys.executable, '-c', 'import time; time.sleep(600)']\\n"
            "open('left', 'w').write(str(subprocess.Popen(left, stdin=n, stdout=n, stderr=n).pid))"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
"""
THREAD_LEFT = """
    import threading
    def test_leaves_a_thread():
        threading.Thread(target=threading.Event().wait, daemon=True, name="forgotten").start()
"""
THREAD_THAT_NEVER_ENDS = """
    import threading
    def test_leaves_a_thread():
        threading.Thread(target=threading.Event().wait, name="forgotten").start()
"""
BUSY_POOL = """
    import concurrent.futures, threading
    def test_leaves_a_pool():
        concurrent.futures.ThreadPoolExecutor().submit(threading.Event().wait)
"""
RAISES_LATE = """
    import threading, time
    def fail():
        time.sleep(0.2)
        raise ValueError("nobody hears of it")
    def test_starts_a_thread():
        threading.Thread(target=fail).start()
"""
FREED_LATE = """
    import gc
    class Broken:
        def __del__(self):
            raise ValueError("in __del__")
    def test_makes_a_cycle():
        gc.disable()
        broken = Broken()
        broken.self = broken
"""
THREAD_AND_ASSERTION = """
    import threading
    from pathlib import Path
    def test_fails_once():
        seen = Path("seen").exists()
        Path("seen").touch()
        if not seen:
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        assert seen, "the machine was busy"
"""
ENDS_THE_PROCESS = """
    import os
    def test_ends_the_process():
        os._exit(0)
    def test_is_never_run():
        assert False
"""
ENDS_PYTEST = """
    import pytest
    def test_ends_pytest():
        pytest.exit("enough", returncode=0)
    def test_is_never_run():
        assert False
"""
ENDS_THE_WORKER = """
    import os, threading, time
    def end():
        time.sleep(0.3)
        os._exit(7)
    def test_starts_a_thread():
        threading.Thread(target=end, daemon=True).start()
"""
ALONE = """
    import os, pytest
    from pathlib import Path
    def test_fails_once():
        if Path("seen").exists():
            {}
        Path("seen").touch()
        assert False, "the machine was busy"
"""
SERVICES = """
    # redis_server
"""
FIRST_TIME_ONLY = """
    from pathlib import Path
    def test_fails_once():
        seen = Path("seen").exists()
        Path("seen").touch()
        assert seen, "the machine was busy"
"""
WRONG = """
    def test_is_wrong():
        assert 1 == 2, "a wrong status"
"""
EXACT = """
    import pytest
    @pytest.mark.exact
    def test_counts():
        assert [7] == [], "a lost request"
"""
UNRAISABLE = """
    class Broken:
        def __del__(self):
            raise ValueError("in __del__")
    def test_frees_an_object():
        Broken()
"""
SETTINGS = """[pytest]
addopts = --import-mode=importlib -p xdist -p pytest_timeout -p pytest_reportlog.plugin -p tests.lanes
filterwarnings = error
markers =
    rest
    exact
    timing
"""
RIGHT = """
    def test_is_right():
        assert True
"""


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Path]:
    """A project with an empty suite; what its tests leave running is killed."""
    (tmp_path / "conftest.py").write_text("import tests.lanes\ntests.lanes.ENDING_SECONDS = 0.5\n")
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    yield tmp_path
    if (tmp_path / "left").exists():
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def run_gate(
    suite: Path, step: str, arguments: Sequence[str], **options: str
) -> subprocess.CompletedProcess[str]:
    """Run a step of the gate, with options in its environment."""
    own = ("PYTEST_", "HEADRACE_TEST")  # of the run that this test is part of
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | options
    command = [sys.executable, "-m", "tools.gate", step, *arguments]
    return subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)


def gate(
    suite: Path, step: str = "test", arguments: Sequence[str] = ("tests",)
) -> tuple[int, str, dict[str, Any]]:
    """Run a step of the gate; give its exit code, what it printed and what it decided."""
    ran = run_gate(suite, step, arguments)
    return ran.returncode, ran.stdout, json.loads((suite / f".data/gate/{step}.json").read_text("utf-8"))


def write(suite: Path, **files: str) -> None:
    """Write files of tests: ``unit_test_a`` becomes ``tests/unit/test_a.py``."""
    for name, text in files.items():
        folder, _, file = name.partition("_")
        path = suite / "tests" / folder / f"{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), "utf-8")


def test_a_test_that_fails_beside_others_and_passes_alone_is_flaky_and_green(suite: Path) -> None:
    write(suite, faults_test_a=FIRST_TIME_ONLY, unit_test_b=RIGHT)
    code, said, verdict = gate(suite)
    assert code == 0, said
    assert "FLAKY: tests/faults/test_a.py::test_fails_once: AssertionError: the machine was busy" in said
    assert (verdict["passed"], verdict["failed"]) == (2, 0)


def test_a_test_that_fails_alone_too_is_red_with_all_reasons(suite: Path) -> None:
    write(suite, faults_test_a=WRONG, unit_test_b=RIGHT)
    code, said, verdict = gate(suite)
    assert (code, verdict["passed"], verdict["failed"]) == (1, 1, 1), said
    assert said.count("a wrong status; alone: AssertionError: a wrong status; alone: AssertionError") == 1


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"unit_test_a": FIRST_TIME_ONLY}, "lane fast"),
        ({"faults_test_a": EXACT}, "marked exact"),
        ({"faults_test_a": UNRAISABLE}, "a leak or a crash"),
        ({"unit_test_a": LEFT_BEHIND}, "pytest ended with 9"),
        ({"faults_test_a": PARENT_LEFT}, "pytest ended with 9"),
        ({"unit_test_a": THREAD_LEFT}, "pytest ended with 9"),
        ({"faults_test_a": SERVICES + THREAD_THAT_NEVER_ENDS}, "pytest ended with 9"),
        ({"unit_test_a": BUSY_POOL}, "pytest ended with 9"),
        ({"unit_test_a": RAISES_LATE}, "pytest ended with 9"),
        ({"unit_test_a": FREED_LATE}, "pytest ended with 9"),
        ({"unit_test_a": ENDS_THE_WORKER}, "pytest ended with 9"),
        ({"faults_test_a": THREAD_AND_ASSERTION}, "a leak or a crash"),
        ({"faults_test_a": SERVICES + ENDS_THE_PROCESS}, "crashed while running"),
        ({"faults_test_a": SERVICES + ENDS_PYTEST}, "test_ends_pytest: it did not end"),
        ({"unit_test_a": "import nowhere"}, "tests/unit/test_a.py: error during collection"),
    ],
    ids=[
        "fast", "exact", "unraisable", "process", "grandchild", "thread", "endless thread", "pool",
        "late exception", "late unraisable", "worker", "thread and assertion", "process ends",
        "pytest ends", "collection",
    ],
)  # fmt: skip
def test_faults_are_red_without_a_second_look(suite: Path, files: dict[str, str], reason: str) -> None:
    write(suite, unit_test_b=RIGHT, **files)
    code, said, verdict = gate(suite)
    assert code == 1, said
    assert reason in "\n".join(verdict["red"])
    assert said.count("$ pytest") == 2  # fast and processes, then services: nobody looked again
    if "pytest ended with 9" in reason:
        assert "LEFT RUNNING: " in said


@pytest.mark.parametrize(
    ("alone", "reason"),
    [
        ('pytest.skip("nothing to see")', "skipped"),
        ("os._exit(0)", "test_fails_once: it did not end"),
        ('pytest.exit("enough", returncode=0)', "pytest ended with 10"),
    ],
    ids=["skip", "end of the process", "end of pytest"],
)
def test_a_test_that_does_not_pass_alone_is_red(suite: Path, alone: str, reason: str) -> None:
    write(suite, faults_test_a=ALONE.format(alone), unit_test_b=RIGHT)
    code, said, verdict = gate(suite)
    assert (code, verdict["flaky"]) == (1, []), said
    assert verdict["red"][0].count(reason) == 2


def test_without_a_selection_each_lane_has_tests(suite: Path) -> None:
    write(suite, faults_test_a=RIGHT, unit_test_b=RIGHT)
    assert gate(suite, "test", ())[2]["red"][-1] == "lane services: no test passed"
    write(suite, faults_test_c=SERVICES + RIGHT)
    assert gate(suite, "test", ())[0] == 0


def test_options_of_the_caller_leave_no_test_out(suite: Path) -> None:
    write(suite, faults_test_a=WRONG, unit_test_b=RIGHT)
    ran = run_gate(suite, "test", ("tests",), PYTEST_ADDOPTS="-k right")
    assert ran.returncode == 1
    assert "1 passed, 1 failed" in ran.stdout


def test_a_file_that_does_not_exist_is_an_error(suite: Path) -> None:
    write(suite, unit_test_a=RIGHT)
    ran = run_gate(suite, "test", ("tests/unit/test_a.py", "tests/unit/test_b.py::test_is_right"))
    assert ran.returncode == 2
    assert "no such file: tests/unit/test_b.py::test_is_right" in ran.stderr


def test_one_gate_runs_at_a_time(suite: Path) -> None:
    write(suite, unit_test_a=RIGHT)
    (suite / ".data/gate").mkdir(parents=True)
    with (suite / ".data/gate/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = run_gate(suite, "test", ("tests",))
    assert ran.returncode == 2
    assert "another gate runs in this folder" in ran.stderr


def test_the_rest_runs_by_itself(suite: Path) -> None:
    marked = "import pytest\n@pytest.mark.rest\ndef test_takes_long():\n    assert True\n"
    write(suite, unit_test_a=marked, unit_test_b=RIGHT)
    assert gate(suite, "test")[2]["passed"] == gate(suite, "rest")[2]["passed"] == 1
