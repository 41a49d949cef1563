"""Models in Python that do what no model should, on request; and the processes they run in."""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.still_serves import MODEL
from tests.model_directories import write
from tests.running_server import RunningServer

NAME = "hostile"
PREDICT = f"/v1/models/{NAME}:predict"
METRICS = "/monitoring/prometheus/metrics"

HOSTILE = """
import ctypes
import os
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory

import numpy as np

HELD = []


class Model:
    inputs = [("x", "INT64", [])]
    outputs = [("y", "INT64", [])]

    def predict(self, inputs):
        x = inputs["x"]
        for order in x[x < 0].tolist():
            getattr(self, ORDERS[order])()
        y = x * 2
        return {"y": y[:-1] if (x == -6).any() else y}

    def crash(self):
        ctypes.string_at(0)

    def leave(self):
        os._exit(0)

    def hang(self):
        ctypes.PyDLL(None).sleep(3600)  # with the GIL

    def leak(self):
        HELD.append(np.ones(2_000_000))

    def garble(self):
        os.write(1, bytes(range(256)) * 64 + b"\\n")
        os.write(2, b"\\xff\\xfe no text \\x1b[2J\\n")

    def cut(self):
        pass

    def quit(self):
        sys.exit(0)

    def grab(self):
        np.ones(10**9)

    def help(self):
        HELD.append(SharedMemory(f"hostile-{os.getpid()}", create=True, size=8))
        HELD.append(subprocess.Popen(["sleep", "600"]))


ORDERS = {
    -1: "crash", -2: "leave", -3: "hang", -4: "leak", -5: "garble", -6: "cut", -8: "quit", -9: "grab",
    -10: "help",
}
"""

CRASH, LEAVE, HANG, LEAK, GARBLE, CUT, QUIT, GRAB, HELP = -1, -2, -3, -4, -5, -6, -8, -9, -10


def write_hostile(models: Path, name: str = "hostile", version: int = 1, settings: str = "") -> None:
    """Write a version that obeys negative numbers, isolated."""
    write(models, name, version, HOSTILE, f"isolate = true\n{settings}")


def children_of(process: int) -> list[int]:
    """The ids of the processes that one has started, from any of its threads."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            found += [int(one) for one in (task / "children").read_text().split()]
        except OSError:  # a thread that has just ended
            continue
    return found


def is_there(process: int) -> bool:
    """Whether a process runs; one that has ended and is not waited for yet does not."""
    try:
        os.kill(process, 0)
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def ask(server: RunningServer, *values: int, seconds: float | None = None) -> tuple[int, object]:
    """The status, and the predictions or the error."""
    body = json.dumps({"instances": list(values)}).encode()
    headers = {} if seconds is None else {"x-request-timeout-ms": str(int(seconds * 1000))}
    status, answer = server.request("POST", PREDICT, body, headers)
    said = json.loads(answer)
    return status, said.get("predictions", said.get("error"))


def restarts(server: RunningServer) -> dict[str, int]:
    """How often the process was replaced, by why."""
    text = server.get(METRICS)[1].decode()
    found = re.findall(r'headrace_isolated_restarts_total\{.*reason="(\w+)".*\} (\d+)', text)
    return {reason: int(float(count)) for reason, count in found}


def answers(server: RunningServer) -> bool:
    return ask(server, 21) == (200, [42])


@contextmanager
def neighbours(server: RunningServer) -> Iterator[None]:
    """Somebody asks the good model without a pause meanwhile, and gets every answer."""
    ended, wrong, answered = threading.Event(), list[object](), list[int]()

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        number = 0
        while not ended.is_set():
            number += 1
            connection.request("POST", f"/v1/models/{MODEL}:predict", json.dumps({"instances": [number]}))
            response = connection.getresponse()
            said = response.status, json.loads(response.read())
            if said != (200, {"predictions": [number + 1.0]}):
                wrong.append(said)
            answered.append(number)
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
        server.wait_for(lambda: len(answered) > 20, "the neighbour to be answered")
    finally:
        ended.set()
        thread.join(120)
    assert not thread.is_alive()
    assert wrong == []
