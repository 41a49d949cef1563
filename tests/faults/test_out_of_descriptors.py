"""All descriptors of the process are taken for a while: it says so once, and goes on when they are back."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.neighbours import Connection
from tests.faults.still_serves import connect, does_it_still_serve, http_request
from tests.model_directories import affine, write
from tests.running_server import RunningServer

FILES = 256
FEW_FILES = ("prlimit", f"--nofile={FILES}:{FILES}")
GRABBING = """
import os
import threading
import time

HELD = []


def let_go():
    while HELD:
        os.close(HELD.pop())


def let_go_later(seconds):
    while HELD and not os.path.exists("BEGIN"):
        time.sleep(0.01)
    time.sleep(seconds)
    let_go()


class Model:
    inputs = [("seconds", "FP32", [])]
    outputs = [("held", "INT64", [])]

    def predict(self, inputs):
        seconds = float(inputs["seconds"].max())
        if seconds > 0:
            try:
                while True:
                    HELD.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                threading.Thread(target=let_go_later, args=(seconds,), daemon=True).start()
        else:
            let_go()
        return {"held": [len(HELD)] * len(inputs["seconds"])}
"""
PICKED_UP = "connections are accepted again"
CANNOT_ACCEPT = "no connection could be accepted"


def taking(seconds: int) -> bytes:
    """Take all descriptors for so long from when it ``begin``s; 0 lets them go."""
    return http_request("/v1/models/grabs:predict", b'{"instances": [%d]}' % seconds)


@pytest.fixture
def served(models: Path) -> Path:
    write(models, "grabs", 1, GRABBING.replace("BEGIN", str(begin(models))))
    return models


def begin(models: Path) -> Path:
    """The file that is there when the time for which descriptors are taken has begun."""
    return models.parent / "begin"


def processor_seconds(server: RunningServer) -> float:
    spent = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


def test_a_version_that_comes_meanwhile_is_loaded_when_descriptors_are_back(served: Path) -> None:
    """Who has a connection is answered all the time."""
    with RunningServer(served, "--allow-code", prefix=FEW_FILES) as server:
        kept = Connection(server.http_port)

        def none_is_left() -> bool:
            """Take those, too, that a scan held when the others were taken."""
            assert kept.send(taking(60)) == 200
            return server.count_in_log("Too many open files") > 0

        server.wait_for(none_is_left, "it to be noticed")
        write(served, "late", 1, affine(1.0, 5.0))
        for _ in range(50):
            assert kept.send(http_request("/v2/health/ready", b"", method="GET")) == 200
        assert kept.send(taking(0)) == 200
        server.wait_for(lambda: server.get("/v2/models/late/ready")[0] == 200, "the version")
        for line in {line.partition(" warning ")[2] for line in server.errors} - {""}:
            assert server.count_in_log(f" warning {line}") == 1, "said once"
        kept.close()
        does_it_still_serve(server)
        assert server.stop() == 0


def test_connections_are_accepted_again_when_descriptors_are_back(served: Path) -> None:
    """The server under us closes all its connections when it cannot accept one; it once ended the process."""
    with RunningServer(served, "--allow-code", prefix=FEW_FILES) as server:
        kept = Connection(server.http_port)
        assert kept.send(taking(2)) == 200
        spent = processor_seconds(server)
        with connect(server.http_port) as waiting:  # it is in the system's queue
            begin(served).touch()
            server.wait_for(lambda: server.count_in_log(PICKED_UP) > 0, "descriptors to be free again")
            waiting.sendall(taking(0))
            waiting.settimeout(30)
            waiting.recv(4096)  # answered, or closed with those that were there: it came in either way
        assert processor_seconds(server) - spent < 1.0, "it waited, and did not try without a pause"
        assert server.count_in_log(CANNOT_ACCEPT) == 1
        kept.close()
        does_it_still_serve(server)
        assert server.stop() == 0


@pytest.mark.rest
def test_a_process_that_runs_out_of_them_again_and_again_ends_and_says_why(served: Path) -> None:
    """What keeps descriptors for itself gives them back with its process only."""
    with RunningServer(served, "--allow-code", prefix=FEW_FILES) as server:
        for times in range(1, 5):
            with closing(Connection(server.http_port)) as kept:
                assert kept.send(taking(1)) == 200
                connect(server.http_port).close()
                begin(served).touch()
                if times < 4:
                    server.wait_for(lambda n=times: server.count_in_log(PICKED_UP) == n, "accepting to go on")
            begin(served).unlink()
        assert server.wait_until_ended() == 1
    assert "no more requests can be accepted: Too many open files" in "".join(server.errors)
