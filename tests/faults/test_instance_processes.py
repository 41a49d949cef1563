"""Instances are processes: they compute at once, and one that ends is replaced while the others answer."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.isolated_models import METRICS, children_of, is_there, restarts
from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import UNPROBED, write
from tests.running_server import RunningServer

NAME = "pair"
SECONDS = 50.0
MEETS = """
import os
import time
from pathlib import Path

FOLDER = Path(FOLDER_OF_THE_TEST)


def wait_for(condition):
    until = time.monotonic() + 120
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("nobody came")
        time.sleep(0.002)


def sign(name):
    (FOLDER / f"{name}.{os.getpid()}").touch()


class Model:
    inputs = [("meeting", "INT64", [])]
    outputs = [("process", "INT64", [])]

    def load(self, path, context):
        wait_for(lambda: not (FOLDER / "closed").exists())

    def predict(self, inputs):
        meeting = int(inputs["meeting"][0])
        sign(meeting)
        if meeting:
            wait_for(lambda: len(list(FOLDER.glob(f"{meeting}.*"))) == 2)
        return {"process": [os.getpid()] * len(inputs["meeting"])}

    def close(self):
        sign("closing")
        wait_for(lambda: len(list(FOLDER.glob("closing.*"))) == 2)
        sign("closed_together")
"""
"""Asked for meeting N, a process answers when another one is asked for it, too; for meeting 0, at once.

A process closes when another one closes, too.
"""
ALONE = 0


class Meetings:
    """A server with that model, and what its processes have written."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        self.server, self.folder = server, folder

    def ask(self, meeting: int) -> tuple[int, object]:
        """The status, and the process that answered or the error."""
        body = json.dumps({"instances": [meeting]}).encode()
        status, answer = self.server.request("POST", f"/v1/models/{NAME}:predict", body)
        said = json.loads(answer)
        return status, said["predictions"][0] if status == 200 else said["error"]

    def who_was_in(self, meeting: int) -> set[int]:
        """The processes that computed it."""
        return {int(one.suffix[1:]) for one in self.folder.glob(f"{meeting}.*")}

    def meet(self, meeting: int) -> set[int]:
        """Have two processes compute at once."""
        with ThreadPoolExecutor(2) as callers:
            answers = [callers.submit(self.ask, meeting) for _ in range(2)]
            said = [one.result(SECONDS) for one in answers]
        assert [status for status, _ in said] == [200, 200], said
        met = {process for _, process in said}
        assert met == self.who_was_in(meeting)
        return {one for one in met if isinstance(one, int)}

    def processes(self) -> int:
        """How many answer, as the metrics say."""
        found = re.search(
            rb'headrace_isolated_ready\{model="pair",version="1"\} (\S+)', self.server.get(METRICS)[1]
        )
        return int(float(found[1])) if found else 0


@pytest.fixture
def meetings(models: Path, tmp_path: Path) -> Iterator[Meetings]:
    folder = tmp_path / "meetings"
    folder.mkdir()
    content = MEETS.replace("FOLDER_OF_THE_TEST", repr(str(folder)))
    write(models, NAME, 1, content, "[batching]\nmax_batch_rows = 1\ninstance_processes = 2\n" + UNPROBED)
    with RunningServer(models, "--allow-code") as server:
        yield Meetings(server, folder)
        does_it_still_serve(server)
        left = children_of(server.process.pid)
        server.stop()
        assert not [child for child in left if is_there(child)]
        closed = {int(one.suffix[1:]) for one in folder.glob("closed_together.*")}
        assert closed == set(left), "closed one after the other"


def test_one_of_two_is_killed_and_the_other_answers_until_another_takes_its_place(meetings: Meetings) -> None:
    server = meetings.server
    first = set(children_of(server.process.pid))
    assert len(first) == 2
    assert meetings.who_was_in(ALONE) == first, "both were warmed up"
    assert meetings.processes() == 2
    assert meetings.meet(1) == first, "both compute at once"

    (meetings.folder / "closed").touch()  # whoever takes its place has to wait
    with ThreadPoolExecutor(1) as callers:
        hanging: Future[tuple[int, object]] = callers.submit(meetings.ask, 2)
        server.wait_for(lambda: len(meetings.who_was_in(2)) == 1, "a call")
        (killed,) = meetings.who_was_in(2)
        os.kill(killed, signal.SIGKILL)
        status, said = hanging.result(SECONDS)
    assert (status, "was ended by SIGKILL" in str(said)) == (500, True), said
    (other,) = first - {killed}
    for _ in range(10):
        assert meetings.ask(ALONE) == (200, other)
    assert meetings.processes() == 1
    assert server.get(f"/v2/models/{NAME}/ready")[0] == 200

    (meetings.folder / "closed").unlink()
    server.wait_for(lambda: meetings.processes() == 2, "another process")
    assert restarts(server) == {"killed": 1}
    second = meetings.meet(3)
    assert other in second
    assert killed not in second


def test_while_none_is_left_requests_are_refused(meetings: Meetings) -> None:
    server = meetings.server
    (meetings.folder / "closed").touch()
    for process in children_of(server.process.pid):
        os.kill(process, signal.SIGKILL)
    server.wait_for(lambda: meetings.processes() == 0, "both to end")
    server.wait_for(lambda: "was ended by SIGKILL" in str(meetings.ask(ALONE)[1]), "the reason")
    assert meetings.ask(ALONE)[0] == 503
    assert server.get(f"/v2/models/{NAME}/ready")[0] != 200
    (meetings.folder / "closed").unlink()
    server.wait_for(lambda: meetings.processes() == 2, "both to be replaced")
    assert restarts(server) == {"killed": 2}
    meetings.meet(1)
