"""Which tests break a rule that ``make check`` can see."""

from __future__ import annotations

from datetime import date
from textwrap import dedent

import pytest

from tools.test_rules import broken_rules, flaky_faults

TODAY = date(2026, 11, 26)


def broken(text: str, path: str = "tests/faults/test_a.py") -> list[str]:
    return list(broken_rules(path, dedent(text)))


@pytest.mark.parametrize(
    "text",
    [
        "began = time.monotonic()\n    ask()\n    assert time.monotonic() - began < 2",
        "began = time.thread_time()\n    took = time.thread_time() - began\n    assert took <= 1",
        "began = time.monotonic()\n    took = time.monotonic() - began\n    assert 1 < took < 2",
        "spent.append(time.monotonic() - began)\n    worst = max(spent)\n    assert 5 > worst",
        "assert reads.longest_seconds < 5",
        "before = server.rss_bytes()\n    assert server.rss_bytes() - before < 100",
        "assert resource.getrusage(0).ru_maxrss < 100",
    ],
)
def test_an_upper_bound_is_for_tests_of_timing_only(text: str) -> None:
    function = f"def test_a():\n    {text}\n"
    assert len(broken(function)) == 1
    assert broken(f"@pytest.mark.timing\n{function}") == []
    assert broken(f"pytestmark = pytest.mark.timing\n{function}") == []


@pytest.mark.parametrize(
    "text",
    [
        "began = time.monotonic()\n    ask()\n    assert time.monotonic() - began > 2",
        "deadline = time.monotonic() + 20\n    while not done():\n        assert time.monotonic() < deadline",
        "while not ended.is_set():\n        ask()",
        "while (data := connection.recv(1)):\n        pass",
        "while asked < 100:\n        ask()",
        "names = [thread.name for thread in threading.enumerate()]",
        'found = file in os.listdir("/proc/self/fd")',
        "async with asyncio.timeout(20):\n        while not done():\n            pass",
        "assert len(answers) < 3",
    ],
)
def test_these_are_allowed(text: str) -> None:
    assert broken(f"def test_a():\n    {text}\n") == []


@pytest.mark.parametrize("text", ["while not done():\n        pass", "while True:\n        ask()"])
def test_a_loop_in_tests_of_processes_has_a_deadline(text: str) -> None:
    assert "without a deadline" in broken(f"def test_a():\n    {text}\n")[0]
    assert broken(f"def test_a():\n    {text}\n", "tests/unit/test_a.py") == []


@pytest.mark.parametrize(
    "text", ["threading.active_count()", "len(threading.enumerate())", 'len(os.listdir("/proc/self/fd"))']
)
def test_threads_and_descriptors_are_not_counted_here(text: str) -> None:
    assert "in a process of their own" in broken(f"def test_a():\n    before = {text}\n")[0]


THIS = "tests/unit/tools/test_test_rules.py::test_these_are_allowed"


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (f'test = "{THIS}"\nreason = "r"\nuntil = 2026-12-10', None),
        (f'test = "{THIS}[a]"\nreason = "r"\nuntil = 2026-11-26', None),
        (f'test = "{THIS}"\nreason = "r"\nuntil = 2026-12-11', "more than 14 days ahead"),
        (f'test = "{THIS}"\nreason = "r"\nuntil = 2026-11-25', "was to be mended"),
        (f'test = "{THIS}"\nuntil = 2026-11-27', "no reason"),
        (f'test = "{THIS}"\nreason = "r"', "is a date"),
        (f'test = "{THIS}x"\nreason = "r"\nuntil = 2026-11-27', "no such test"),
        ('reason = "r"\nuntil = 2026-11-27', "no such test"),
    ],
)
def test_flaky_tests_are_listed_with_a_reason_and_a_date(entry: str, fault: str | None) -> None:
    found = list(flaky_faults(f"[[flaky]]\n{entry}\n", TODAY))
    assert len(found) == (fault is not None)
    assert fault is None or fault in found[0]
