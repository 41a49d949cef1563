"""The REST part mounted in FastAPI and in Starlette applications, under uvicorn, as docs/serve.md has it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import seconds_left

APPLICATIONS = {
    "FastAPI": """
from fastapi import FastAPI

def make(lifespan):
    app = FastAPI(lifespan=lifespan)

    @app.get("/mine")
    def mine():
        return {"mine": True}

    return app
""",
    "Starlette": """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

def make(lifespan):
    return Starlette(routes=[Route("/mine", lambda request: JSONResponse({"mine": True}))], lifespan=lifespan)
""",
}
MOUNTING = """
import asyncio
import sys
from contextlib import asynccontextmanager

import uvicorn

from headrace import Engine
from headrace.server.server import application

engine = Engine(sys.argv[1])

@asynccontextmanager
async def lifespan(app):
    async with engine:
        yield

app = make(lifespan)
app.mount("/ml", application(engine))

class Printing(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

Printing(uvicorn.Config(app, port=0, log_level="warning")).run()
"""


@pytest.fixture(scope="module", params=APPLICATIONS)
def port(request: pytest.FixtureRequest, menagerie: Path) -> Iterator[int]:
    """The port of an application of the user's own."""
    command = [sys.executable, "-c", APPLICATIONS[request.param] + MOUNTING, str(menagerie)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the application did not start"
            yield int(line)
        finally:
            process.terminate()
            assert process.wait() in {0, -15, 143}


def ask(port: int, method: str, path: str, value: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, None if value is None else json.dumps(value))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_models_answer_below_the_mount(port: int) -> None:
    body = {"instances": [1.0, 2.0]}
    answer = (200, {"predictions": [3.5, 4.0]})
    assert ask(port, "POST", "/ml/v1/models/half_plus_two:predict", body) == answer
    assert ask(port, "POST", "/ml/v1/models/half_plus_two/versions/2:predict", body) == answer
    infer = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2.0]}]}
    status, found = ask(port, "POST", "/ml/v2/models/half_plus_two/infer", infer)
    assert (status, found["outputs"][0]["data"]) == (200, [4.0])


def test_the_applications_own_routes_go_on(port: int) -> None:
    assert ask(port, "GET", "/mine") == (200, {"mine": True})
    status, _ = ask(port, "POST", "/ml/v1/models/missing:predict", {"instances": [1]})
    assert status == 404


def test_health_tells_that_the_models_are_ready(port: int) -> None:
    until = time.monotonic() + seconds_left()
    while ask(port, "GET", "/ml/v2/health/ready")[0] != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
