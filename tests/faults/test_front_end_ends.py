"""A front end whose server ends by itself: the process says so, drains, and ends with 1."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.model_directories import affine, write

SCRIPT = """
import asyncio, sys
from headrace.cli.main import main
from headrace.frontends.transport.{module} import {kind}

start = {kind}.start

async def start_and_end(self):
    await start(self)
    server = {server}
    asyncio.get_running_loop().call_later(0.3, lambda: {ends})

{kind}.start = start_and_end
sys.exit(main(["serve", *sys.argv[1:]]))
"""
FRONT_ENDS = {
    "h2corn": ("h2corn", "H2cornTransport", "self._current[0]._server", "server.shutdown()", ()),
    "uvicorn": (
        "uvicorn", "UvicornTransport", "self._server", "setattr(server, 'should_exit', True)",
        ("--http-server", "uvicorn"),
    ),
    "grpcio": (
        "grpcio", "GrpcioTransport", "self._server", "asyncio.ensure_future(server.stop(0))",
        ("--grpc-server", "grpcio"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_a_server_whose_front_end_ends_by_itself_says_so_and_ends(tmp_path: Path, name: str) -> None:
    write(tmp_path, "m", 1, affine(1.0, 1.0))
    module, kind, server, ends, options = FRONT_ENDS[name]
    script = SCRIPT.format(module=module, kind=kind, server=server, ends=ends)
    command = [sys.executable, "-c", script, str(tmp_path)]
    command += ["--http-port", "0", "--grpc-port", "0", "--drain-lead-seconds", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert f"the front end {kind} ended unexpectedly; no more requests can be accepted" in ended.stderr
    assert "stopped" in ended.stderr.splitlines()[-1]
