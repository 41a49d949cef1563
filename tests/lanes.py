"""A pytest plugin: test lanes, time limits, and a check for leaked processes and threads.

A lane is a set of tests that run under the same conditions; ``tools/gate.py`` runs them, and
``pytest --lane NAME`` runs one of them by hand:

* ``fast``: tests inside one process;
* ``processes``: tests in ``faults`` and ``end_to_end``, which start servers of headrace;
* ``services``: tests in files that name a fixture of ``tests/services.py``;
* ``rest``: tests marked ``rest``, from anywhere;
* ``timing``: tests marked ``timing``, from anywhere.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterable
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.waiting import set_time_limit
from tools.gate import LEFT_RUNNING, NOT_RUN

LANES = ("fast", "processes", "services", "rest", "timing")
MOST_SECONDS = {"rest": 600.0, "timing": 600.0}
"""The time limit of a test in these lanes; ``USUAL_SECONDS`` in the others."""
USUAL_SECONDS = 300.0

CROWDING = ("overload", "worst", "heavy", "busy", "many", "more_connections", "under_load", "reloads", "slow")
"""Words in the names of files of process tests that overload a server."""

ENDING_SECONDS = 20.0
RUN_TAG = "HEADRACE_TEST_RUN"
LEFT = pytest.StashKey[list[str]]()
RAN = pytest.StashKey[int]()
FIRST_SEEN = WeakKeyDictionary[threading.Thread, str]()
"""The test after which each running thread was seen first."""

# Threads of pytest-xdist and of drivers' event loops.
THREADS_OF_TOOLS = (
    "execnet",
    "pytest_timeout",
    "asyncio_",
    "tokio",
    "Dummy-",
    "tqdm",
    "spawner",
    "event_loop",
)


@cache
def services_of(file: Path) -> frozenset[str]:
    """Return the services whose fixtures (``tests/services.py``) a file of tests names."""
    named = r"\b(?:(redis|cassandra|kafka)_server|own_(redis|cassandra|kafka))\b"
    return frozenset(one or other for one, other in re.findall(named, file.read_text("utf-8")))


def home_of(root: Path, nodeid: str) -> str:
    """Return the lane that a test's file belongs to, whatever its marks say."""
    file = nodeid.partition("::")[0]
    if services_of(root / file):
        return "services"
    return "processes" if file.startswith(("tests/end_to_end/", "tests/faults/")) else "fast"


def lane_of(item: pytest.Item) -> str:
    """Return the lane of a test: by its marks first, then by its file."""
    marked = (mark for mark in ("timing", "rest") if item.get_closest_marker(mark))
    return next(marked, None) or home_of(item.config.rootpath, item.nodeid)


class Scopes(LoadScopeScheduling):
    """Assigns tests to workers of pytest-xdist by file, and by group where tests must not run side by side.

    Process tests are two groups. Tests that overload a server are in one group: two of them at once would
    test the machine. The tests of Cassandra are a group and those of Kafka another: each is started once.
    """

    def __init__(self, root: Path, *args: Any) -> None:
        super().__init__(*args)
        self._root = root

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        match home_of(self._root, nodeid):
            case "processes":
                return process_group_of(file)
            case "services":
                named = services_of(self._root / file)
                return next((one for one in ("kafka", "cassandra") if one in named), file)
        return file


def process_group_of(file: str) -> str:
    """Return the group of a file of process tests: half of its folder."""
    folder, name = os.path.split(file)
    half = 0 if any(word in name for word in CROWDING) else zlib.crc32(name.encode()) % 2
    return f"{folder}/{half}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Scopes(config.rootpath, config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lane", action="append", choices=LANES, default=[], help="run this lane; may be repeated"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen lanes and set each test's time limit."""
    wanted, kept = config.getoption("--lane"), []
    for item in items:
        lane = lane_of(item)
        if wanted and lane not in wanted:
            continue
        kept.append(item)
        item.user_properties.append(("lane", lane))
        item.add_marker(pytest.mark.timeout(limit_of(item, lane)), append=False)
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept


def limit_of(item: pytest.Item, lane: str) -> float:
    """Return a test's time limit in seconds: its lane's, or its own if that is less."""
    limit, own = MOST_SECONDS.get(lane, USUAL_SECONDS), item.get_closest_marker("timeout")
    seconds = own.kwargs.get("timeout", own.args[0] if own.args else None) if own else None
    return min(limit, seconds) if seconds else limit  # 0 would mean no limit


# ---- What is left running ------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Tag the processes that tests start; workers of pytest-xdist inherit the tag.

    When pytest is terminated it ends as on Ctrl-C: fixtures end what they started.
    """
    config.stash[LEFT], config.stash[RAN] = [], 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        os.environ[RUN_TAG] = f"{os.getpid()}-{time.monotonic_ns()}"


def processes_left() -> list[str]:
    """Return the command lines of processes with this run's tag, grandchildren included."""
    tag, found = f"{RUN_TAG}={os.environ[RUN_TAG]}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            tagged = tag in (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is another user's
            continue
        # multiprocessing's tracker lives as long as the process that uses shared memory.
        tracks = "from multiprocessing.resource_tracker import main" in command
        if tagged and int(process.name) != os.getpid() and not tracks:
            found.append(f"process {process.name}: {command}")
    return found


def threads_left() -> list[str]:
    """Return the names of threads that tests started in this process, and the tests after which they ran."""
    own = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    known = (thread for thread in own if not thread.name.startswith(THREADS_OF_TOOLS))
    left = (thread for thread in known if not is_idle_in_pool(thread))
    return [f"thread {thread.name} since {FIRST_SEEN.get(thread, 'the last test')}" for thread in left]


def is_idle_in_pool(thread: threading.Thread) -> bool:
    """Tell whether a thread waits in a pool without a name: such pools may live as long as their process."""
    frame = sys._current_frames().get(thread.ident or 0)
    return (
        thread.name.startswith("ThreadPoolExecutor-")
        and frame is not None
        and frame.f_code.co_filename.endswith("concurrent/futures/thread.py")
        and frame.f_code.co_name == "_worker"
    )


def after_ending(left: Callable[[], list[str]]) -> list[str]:
    """Wait up to ``ENDING_SECONDS`` for threads or processes to end; return those that remain."""
    deadline = time.monotonic() + ENDING_SECONDS
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Limit the test's waits, count the tests that ran to their end, and note the threads that they leave."""
    set_time_limit(limit_of(item, lane_of(item)))
    result = yield
    item.config.stash[RAN] += 1
    for thread in threading.enumerate():
        FIRST_SEEN.setdefault(thread, item.nodeid)
    return result


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with ``LEFT_RUNNING`` when tests left something running, whichever test ran last."""
    left = session.config.stash[LEFT]
    # After the last test nobody else hears of what fails in a thread or is raised where an object is freed.
    threading.excepthook = lambda args: left.append(f"exception in thread {args.thread}: {args.exc_value!r}")
    sys.unraisablehook = lambda args: left.append(
        f"unraisable exception in {args.object}: {args.exc_value!r}"
    )
    gc.collect()  # objects in cycles may keep threads, as those of grpc.aio do
    left += after_ending(threads_left)
    gc.collect()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_running"] = left
        return
    if sys.platform == "linux":
        left += after_ending(processes_left)
    if left:
        session.exitstatus = LEFT_RUNNING
    elif session.exitstatus in (0, 1) and did_not_run(session):
        session.exitstatus = NOT_RUN


def did_not_run(session: pytest.Session) -> bool:
    """Tell whether tests that this process collected did not run, as after ``pytest.exit`` within a test."""
    controls = session.config.getoption("numprocesses", None)
    meant = session.config.option.collectonly or session.shouldfail or session.shouldstop
    return not (controls or meant) and session.config.stash[RAN] < len(session.items)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process although a thread is left that never ends."""
    if config.stash[LEFT] and not hasattr(config, "workerinput"):
        sys.stdout.flush()
        os._exit(LEFT_RUNNING)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collect what a worker of pytest-xdist reported as left running."""
    crashed = [f"worker {node.gateway.id} ended without a report: {error}"]
    node.config.stash[LEFT] += getattr(node, "workeroutput", {}).get("left_running", crashed)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    said: Iterable[str] = config.stash[LEFT]
    for line in said:
        terminalreporter.write_line(f"LEFT RUNNING: {line}")
