"""Whoever changes a control record is killed, and the record breaks: what was decided last holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.versions.layout import CONTROL_FILE, CONTROL_LOCK, PIN_FILE
from headrace.versions.pins_and_holds import hold, pin, read_control, unpin
from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import affine, write
from tests.running_server import RunningServer

# Python tells of what it is about to ask of the system, before it asks: the process ends there.
KILLED = """
import os, signal, sys
from pathlib import Path
from headrace.versions.pins_and_holds import pin

directory, event, suffix = sys.argv[1:]

def end(name, arguments):
    if name == event and str(arguments[0]).endswith(suffix):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(end)
pin(Path(directory), 2)
"""


@pytest.mark.parametrize(
    ("event", "suffix"),
    [("open", ".unfinished"), ("os.rename", ".unfinished"), ("open", "/m")],
    ids=["before the draft", "between draft and rename", "before the directory is synced"],
)
def test_whoever_is_killed_while_changing_it_leaves_what_was_or_what_comes(
    models: Path, event: str, suffix: str
) -> None:
    model = models / "m"
    for number in (1, 2):
        write(models, "m", number, affine(0.0, float(number)))
    hold(model, 1, "audit")
    before = read_control(model)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(model), event, suffix], check=False)
    assert killed.returncode == -signal.SIGKILL
    after = read_control(model)
    assert after == before if suffix == ".unfinished" else after.revision == 2
    for left in model.glob(".*.unfinished"):  # as if it had been killed long ago
        changed = os.stat(left).st_mtime - 100
        os.utime(left, (changed, changed))
    pin(model, 1)
    assert read_control(model).revision == after.revision + 1, "nobody has the lock"
    assert {path.name for path in model.iterdir()} == {"1", "2", CONTROL_FILE, CONTROL_LOCK}


# While the earlier pin is about to be read, somebody else takes it over and removes it.
TAKEN_OVER = """
import sys
from pathlib import Path
from headrace.versions.pins_and_holds import hold, read_control

model, begun = Path(sys.argv[1]), []

def take_over(name, arguments):
    if name == "open" and str(arguments[0]).endswith("headrace.pin") and not begun:
        begun.append(True)
        hold(model, 1, "audit")

sys.addaudithook(take_over)
print(read_control(model).pin.number)
"""


def test_whoever_reads_while_an_earlier_pin_is_taken_over_sees_it_all_the_time(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
    (tmp_path / PIN_FILE).write_text("1\n")
    command = [sys.executable, "-c", TAKEN_OVER, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "1\n"
    assert not (tmp_path / PIN_FILE).exists()


def test_a_record_that_breaks_while_it_is_served_moves_nothing(models: Path) -> None:
    for number in (1, 2):
        write(models, "m", number, affine(0.0, float(number)))
    record = models / "m" / CONTROL_FILE
    with RunningServer(models) as server:

        def answered_by(number: int) -> bool:
            answer = server.post("/v1/models/m:predict", {"instances": [0.0]})
            return answer == (200, {"predictions": [float(number)]})

        assert answered_by(2)
        pin(models / "m", 1)
        server.wait_for(lambda: answered_by(1), "the version that it is pinned to")
        good = record.read_bytes()
        record.write_bytes(good[:-40])
        server.wait_for(
            lambda: any(f"{CONTROL_FILE}: not JSON" in line for line in server.errors), "a warning"
        )
        write(models, "m", 3, affine(0.0, 3.0))
        write(models, "new", 1, affine(1.0, 2.0))
        server.wait_for(lambda: server.get("/v2/models/new/ready")[0] == 200, "a later model to be served")
        assert answered_by(1)
        does_it_still_serve(server)
        record.write_bytes(good)
        unpin(models / "m")
        server.wait_for(lambda: answered_by(3), "the newest version")
