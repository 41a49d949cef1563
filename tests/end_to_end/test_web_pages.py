"""Web pages of other origins, as browsers ask for them: with keys and without, on each transport."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import example
from tests.running_server import RunningServer
from tests.unit.access.keys_of_tests import entry, key_of, written

PREDICT = "/v1/models/half_plus_two:predict"
BODY = json.dumps({"instances": [1.0]}).encode()
SHOP, EVIL = {"origin": "https://shop.example"}, {"origin": "https://evil.example"}
WANTED = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key,content-type"}


def asked(
    server: RunningServer, method: str, path: str, headers: dict[str, str]
) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        connection.request(method, path, BODY if method == "POST" else None, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


@pytest.mark.parametrize("options", [(), ("--http-server", "uvicorn")], ids=["h2corn", "uvicorn"])
def test_pages_of_named_origins_may_ask(tmp_path: Path, options: tuple[str, ...]) -> None:
    example.write(tmp_path / "models")
    with RunningServer(tmp_path / "models", "--cors-origins", SHOP["origin"], *options) as server:
        status, said = asked(server, "OPTIONS", PREDICT, {**SHOP, **WANTED})
        assert (status, said["access-control-allow-origin"]) == (200, SHOP["origin"])
        assert said["access-control-allow-methods"] == "POST"
        assert said["access-control-allow-headers"] == "x-api-key,content-type"
        status, said = asked(server, "POST", PREDICT, SHOP)
        assert (status, said["access-control-allow-origin"], said["vary"]) == (200, SHOP["origin"], "origin")
        status, said = asked(server, "POST", PREDICT, EVIL)
        assert (status, said["vary"]) == (200, "origin")  # answered: a browser keeps it from the page
        assert "access-control-allow-origin" not in said
        status, said = asked(server, "OPTIONS", PREDICT, {**EVIL, **WANTED})
        assert status == 405
        assert "access-control-allow-origin" not in said
        status, said = asked(server, "GET", "/v1/models/nothing", SHOP)
        assert (status, said["access-control-allow-origin"]) == (404, SHOP["origin"])


def test_pages_need_keys_where_everybody_does_and_browsers_do_not(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    keys = written(tmp_path / "keys.toml", entry("page", ["predict"], ["half*"]))
    options = ("--access-file", str(keys), "--cors-origins", "*")
    with RunningServer(tmp_path / "models", *options) as server:
        status, said = asked(server, "OPTIONS", PREDICT, {**SHOP, **WANTED})
        assert (status, said["access-control-allow-origin"]) == (200, "*")
        assert "access-control-allow-credentials" not in said
        status, said = asked(server, "POST", PREDICT, SHOP)
        assert (status, said["access-control-allow-origin"]) == (401, "*")
        status, said = asked(server, "POST", PREDICT, {**SHOP, "x-api-key": key_of("page").text})
        assert (status, said["access-control-allow-origin"]) == (200, "*")
        assert asked(server, "OPTIONS", PREDICT, {})[0] == 401
        assert asked(server, "OPTIONS", "/nothing", {**SHOP, **WANTED})[0] == 401


def test_nothing_is_said_out_of_the_box(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    with RunningServer(tmp_path / "models") as server:
        status, said = asked(server, "OPTIONS", PREDICT, {**SHOP, **WANTED})
        assert status == 405
        for found in (said, asked(server, "POST", PREDICT, SHOP)[1]):
            assert not [name for name in found if name == "vary" or name.startswith("access-control")]


def test_an_origin_that_no_browser_sends_is_an_error_at_the_start(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    command = [sys.executable, "-m", "headrace", "serve", str(tmp_path / "models")]
    command += ["--cors-origins", "https://shop.example/"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "--cors-origins: expected origins as browsers send them" in ended.stderr
