"""Which tests break a rule that ``make check`` can see."""

from __future__ import annotations

from datetime import date
from textwrap import dedent, indent

import pytest

from tools.test_rules import BOUND, COUNTED, ENDLESS, broken_rules, flaky_faults

TODAY = date(2026, 11, 26)
OF_PROCESSES, OF_SERVICES = "tests/faults/test_overload.py", "tests/conformance/test_queues.py"
FAST, HELPER = "tests/unit/test_config.py", "tests/running_server.py"


def broken(text: str, path: str = OF_PROCESSES) -> list[str]:
    """Return the messages for a test with this body, or for a whole file."""
    if "def test_" not in text:
        text = "def test_a():\n" + indent(dedent(text), "    ")
    return [line.split(": ", 1)[1] for line in broken_rules(path, text)]


@pytest.mark.parametrize(
    "text",
    [
        "began = time.monotonic()\nask()\nassert time.monotonic() - began < 2",
        "began = time.thread_time()\ntook = time.thread_time() - began\nassert took <= 1",
        "began = time.monotonic()\ntook = time.monotonic() - began\nassert 1 < took < 2",
        "spent.append(time.monotonic() - began)\nworst = max(spent)\nassert 5 > worst",
        "self.spent.append(time.monotonic() - began)\nassert max(self.spent) < 5",
        "began = time.time()\nask()\nassert time.time() - began < 2",
        "began = loop.time()\nask()\nassert loop.time() - began < 2",
        "began = time.time_ns()\nask()\nassert time.time_ns() - began < 2",
        "began = time.process_time_ns()\nask()\nassert time.process_time_ns() - began < 2",
        "began = time.monotonic()\nask()\nended = time.monotonic()\nassert ended - began < 2",
        "began = time.monotonic()\ns: float = time.monotonic() - began\nassert s < 2",
        "began = time.monotonic()\nassert (s := time.monotonic() - began) > 0\nassert s < 2",
        "spent = [time.monotonic() - began]\nfor one in spent:\n    assert one < 2",
        "spent = [time.monotonic() - began]\nassert all(one < 2 for one in spent)",
        "s = time.monotonic() - began\nassert not s > 2",
        "s = time.monotonic() - began\nif s > 2:\n    pytest.fail('slow')",
        "s = time.monotonic() - began\nif s > 2:\n    raise AssertionError",
        "for _ in range(3):\n    assert time.monotonic() - began < 2",
        "deadline = time.monotonic() + 2\nask()\nassert time.monotonic() < deadline",
        "assert reads.longest_seconds < 5",
        "before = server.rss_bytes()\nassert server.rss_bytes() - before < 100",
        "assert resource.getrusage(0).ru_maxrss < 100",
        "assert psutil.Process(pid).memory_info().rss < 100",
    ],
)
def test_an_upper_bound_is_for_tests_of_timing_only(text: str) -> None:
    assert broken(text) == [BOUND]
    function = "def test_a(self):\n" + indent(text, "    ")
    method = indent(function, "    ")
    assert broken(f"@pytest.mark.timing\n{function}") == []
    assert broken(f"pytestmark = pytest.mark.timing\n{function}") == []
    assert broken(f"class TestA:\n{method}") == [BOUND]
    assert broken(f"@pytest.mark.timing\nclass TestA:\n{method}") == []
    assert broken(f"class TestA:\n    pytestmark = [pytest.mark.timing]\n{method}") == []


def test_one_parameter_that_is_marked_does_not_exempt_the_others() -> None:
    parameters = "[1, pytest.param(2, marks=pytest.mark.timing)]"
    text = f"@pytest.mark.parametrize('n', {parameters})\ndef test_a(n):\n    assert run.slowest < n\n"
    assert broken(text) == [BOUND]


@pytest.mark.parametrize(
    "text",
    [
        "began = time.monotonic()\nask()\nassert time.monotonic() - began > 2",
        "began = time.monotonic()\nask()\nassert not time.monotonic() - began < 2",
        "deadline = time.monotonic() + 20\nwhile not done():\n    assert time.monotonic() < deadline",
        "for _ in range(9):\n    assert time.monotonic() < deadline",
        "while True:\n    ask()\n    if time.monotonic() > deadline:\n        pytest.fail('it never came')",
        "start = time.time_ns() - 1000\nassert start <= written",
        "while not ended.is_set():\n    ask()",
        "while not stopped.wait(0.1):\n    ask()",
        "while (data := connection.recv(1)):\n    pass",
        "while chunk := file.read():\n    pass",
        "while line := process.stdout.readline().strip():\n    pass",
        "while not is_all(found) and len(head := file.read(9)) == 9:\n    found.append(head)",
        "while asked < 100:\n    asked += 1",
        "while b'x' not in answer:\n    answer += connection.recv(1)",
        "while (left := left - 1) > 0:\n    ask()",
        "while not done():\n    turns += 1\n    if turns > 100:\n        raise RuntimeError",
        "while True:\n    connection, _ = listening.accept()",
        "async with asyncio.timeout(20):\n    while not done():\n        pass",
        "names = [thread.name for thread in threading.enumerate()]",
        "own = [one for one in threading.enumerate() if one.name == 'a']\nassert len(own) == 1",
        'found = file in os.listdir("/proc/self/fd")',
        'count = len(os.listdir(f"/proc/{pid}/fd"))',
        "count = psutil.Process(pid).num_fds()",
        "assert len(answers) < 3",
    ],
)
def test_these_are_allowed(text: str) -> None:
    assert broken(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "while not done():\n    pass",
        "while True:\n    ask()",
        "while server.answered() < 100:\n    pass",
        "while len(taken) < 3:\n    take()",
        "while self.count() < 3:\n    self.asked += 1",
        "while b'ready' not in process.stdout.readline():\n    pass",
        "while process.stdout.readline() != b'ready':\n    pass",
        "while not done():\n    event.wait(.1)",
        "while not done():\n    event.wait(timeout=.1)",
        "while not done():\n    connection.recv(1)",
        "while not is_over():\n    pass",
        "while status != 200:\n    status = ask()",
        "while status < 200:\n    status = ask()",
        "while not ended.is_set() or waiting():\n    ask()",
        "while stopped.wait(0.1):\n    ask()",
        "while not done():\n    file.write(text)",
    ],
)
def test_a_loop_outside_the_fast_lane_has_a_deadline(text: str) -> None:
    assert broken(text) == broken(text, OF_SERVICES) == broken(text, HELPER) == [ENDLESS]
    assert broken(text, FAST) == []


@pytest.mark.parametrize(
    "text",
    [
        "before = threading.active_count()",
        "before = len(threading.enumerate())",
        "threads = threading.enumerate()\nbefore = len(threads)",
        'before = len(os.listdir("/proc/self/fd"))',
        'before = len(os.listdir(f"/proc/{os.getpid()}/fd"))',
        "before = psutil.Process().num_fds()",
        "before = process.num_fds()",
    ],
)
def test_threads_and_descriptors_of_this_process_are_not_counted(text: str) -> None:
    assert broken(text) == [COUNTED]


THIS = "tests/unit/tools/test_test_rules.py::test_these_are_allowed"
METHOD = "tests/unit/tools/test_test_rules.py::TestInAClass::test_it_is_found"


class TestInAClass:
    @pytest.mark.parametrize(
        ("test", "is_there"),
        [
            (METHOD, True),
            (f"{METHOD}[a::b]", True),
            (f"{METHOD}x", False),
            (METHOD.replace("InA", ""), False),
        ],
    )
    def test_it_is_found(self, test: str, is_there: bool) -> None:
        found = list(flaky_faults(f'[[flaky]]\ntest = "{test}"\nreason = "r"\nuntil = 2026-11-27\n', TODAY))
        assert ["no such test" in line for line in found] == [True] * (not is_there)


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (f'test = "{THIS}"\nreason = "r"\nuntil = 2026-12-10', None),
        (f'test = "{THIS}[a]"\nreason = "r"\nuntil = 2026-11-26', None),
        (f'test = "{THIS}"\nreason = "r"\nuntil = 2026-12-11', "more than 14 days ahead"),
        (f'test = "{THIS}"\nreason = "r"\nuntil = 2026-11-25', "was to be mended"),
        (f'test = "{THIS}"\nuntil = 2026-11-27', "no reason"),
        (f'test = "{THIS}"\nreason = "r"', "is a date"),
        (f'test = "{THIS}"\nreason = "r"\nuntil = 2026-12-01T00:00:00', "is a date"),
        (f'test = "{THIS}x"\nreason = "r"\nuntil = 2026-11-27', "no such test"),
        ('reason = "r"\nuntil = 2026-11-27', "no such test"),
    ],
)
def test_flaky_tests_are_listed_with_a_reason_and_a_date(entry: str, fault: str | None) -> None:
    found = list(flaky_faults(f"[[flaky]]\n{entry}\n", TODAY))
    assert len(found) == (fault is not None)
    assert fault is None or fault in found[0]


def test_an_unknown_table_in_the_list_of_flaky_tests_is_a_fault() -> None:
    found = list(flaky_faults(f'[[flakey]]\ntest = "{THIS}"\nreason = "r"\nuntil = 2026-11-27\n', TODAY))
    assert len(found) == 1
    assert "flakey: unknown table" in found[0]
